"""DRF throttling with one changed import: DRF's own names and behaviour, exact and in one call."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.urls import include, path
from rest_framework import decorators
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimit_lua.testing import move_clock
from django_ratelimit_lua.throttling import (
    AnonRateThrottle,
    BaseThrottle,
    SimpleRateThrottle,
)
from tests.engine.test_cost import calls
from tests.unit.throttling.test_classes import Anon, Scoped, User


class HeaderAuthentication(BaseAuthentication):
    """Believes a header; the tests need no database."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        return (SimpleNamespace(pk=name, is_authenticated=True), None) if name else None


class Burst(User):
    scope = "burst"


class Sustained(User):
    scope = "sustained"


class Foreign(BaseThrottle):
    asked = 0

    def allow_request(self, request: Any, view: Any) -> bool:
        type(self).asked += 1
        return True


class Plain(APIView):
    authentication_classes = (HeaderAuthentication,)
    throttle_classes: tuple[type[BaseThrottle], ...] = ()

    def get(self, request: Any, **kwargs: Any) -> Response:
        return Response({"ok": True})

    def post(self, request: Any, **kwargs: Any) -> Response:
        return Response({"ok": True})


class Three(Plain):
    throttle_classes = (Anon, Foreign, User, Scoped)
    throttle_scope = "uploads"


@api_view(["GET"])
@throttle_classes([Anon])
def function(request: Any) -> Response:
    return Response({"ok": True})


class Things(ViewSet):
    authentication_classes = ()
    throttle_classes = (Anon,)
    throttle_cost = {"list": 10}  # noqa: RUF012 - as users write it

    def list(self, request: Any) -> Response:
        return Response([])

    def retrieve(self, request: Any, pk: str) -> Response:
        return Response({})


router = SimpleRouter()
router.register("things", Things, basename="thing")
urlpatterns = [
    path("three", Three.as_view()),
    path("function", function),
    path("", include(router.urls)),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def answers(
    throttles: Any, times: int, method: str = "get", view: type[Plain] = Plain, **headers: str
) -> list[int]:
    handler = type("View", (view,), {"throttle_classes": throttles}).as_view()
    factory = APIRequestFactory()
    return [
        handler(getattr(factory, method)("/", headers=headers)).status_code for _ in range(times)
    ]


def test_anonymous_clients_and_users_are_counted_as_in_drf() -> None:
    """Anonymous clients are counted by address, and users by primary key. `Anon` ignores users."""
    assert Counter(answers((Anon,), 35)) == {200: 30, 429: 5}
    assert Counter(answers((Anon,), 35, **{"X-User": "ada"})) == {200: 35}
    assert Counter(answers((User,), 55, **{"X-User": "ada"})) == {200: 50, 429: 5}
    assert answers((User,), 1, **{"X-User": "grace"}) == [200]


def test_a_refusal_by_one_throttle_costs_the_others_nothing() -> None:
    """The burst throttle refuses. The sustained one has counted only admitted requests."""
    assert Counter(answers((Burst, Sustained), 40)) == {200: 20, 429: 20}
    throttle = Sustained()
    view = type("View", (Plain,), {"throttle_classes": (Sustained,)})()
    request = view.initialize_request(APIRequestFactory().get("/"))
    throttle.allow_request(request, view)
    assert throttle.state.used == 21


@pytest.mark.usefixtures("quiet")  # It counts what Redis is asked.
def test_three_throttles_cost_one_evalsha(direct: redis.Redis) -> None:
    """Throttles of other packages in the same list are called as usual."""
    client = APIClient()
    client.get("/three")
    direct.config_resetstat()
    Foreign.asked = 0
    response = client.get("/three")
    assert response.status_code == 200
    assert calls(direct) == {"evalsha": 1}
    assert Foreign.asked == 1
    limits = response.wsgi_request.ratelimit.limits
    assert [state.name for state in limits] == ["anon", "user", "uploads"]


def test_parallel_requests_are_admitted_exactly_up_to_the_rates(live_server: Any) -> None:
    """On a real server, ten requests pass for anonymous clients and for a user."""

    def get(user: str) -> int:
        request = urllib.request.Request(
            f"{live_server.url}/three", headers={"X-User": user} if user else {}
        )
        try:
            with urllib.request.urlopen(request) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with ThreadPoolExecutor(40) as pool:
        found = Counter(pool.map(get, ["", "ada"] * 100))
    assert found == {200: 20, 429: 180}


def test_a_decorator_of_drf_gives_a_function_its_scope() -> None:
    """`@throttle_scope` of newer versions of DRF names the scope, below `@api_view`."""
    if not hasattr(decorators, "throttle_scope"):
        pytest.skip("this DRF has no @throttle_scope")

    @api_view(["GET"])
    @throttle_classes([Scoped])
    @decorators.throttle_scope("uploads")
    def uploads(request: Any) -> Response:
        return Response({"ok": True})

    factory = APIRequestFactory()
    statuses = Counter(uploads(factory.get("/")).status_code for _ in range(12))
    assert statuses == {200: 10, 429: 2}


def test_each_view_has_its_scope() -> None:
    """Without a scope there is no limit. A scope without a rate is an error that names it."""
    assert answers((Scoped,), 3) == [200] * 3
    limited = type("Limited", (Plain,), {"throttle_scope": "uploads"})
    assert Counter(answers((Scoped,), 12, view=limited)) == {200: 10, 429: 2}
    free = type("Free", (Plain,), {"throttle_scope": "none"})
    assert answers((Scoped,), 12, view=free) == [200] * 12
    typo = type("Typo", (Plain,), {"throttle_scope": "upload"})
    unknown = "'upload' scope; DEFAULT_THROTTLE_RATES has: anon"
    with pytest.raises(ImproperlyConfigured, match=unknown):
        answers((Scoped,), 1, view=typo)


def test_rates_can_depend_on_methods_and_costs_on_actions() -> None:
    """A rate is a dict by method, and `throttle_cost` is a dict by action."""
    rates = {"anon": {"POST": "2/m", "GET": None, "*": "3/m"}}
    by_method = type("ByMethod", (AnonRateThrottle,), {"THROTTLE_RATES": rates})
    assert answers((by_method,), 5) == [200] * 5
    assert answers((by_method,), 3, "post") == [200, 200, 429]
    assert answers((by_method,), 4, "options") == [200, 200, 200, 429]
    client = APIClient()
    assert [client.get("/things/").status_code for _ in range(2)] == [200, 200]
    assert [client.get("/things/1/").status_code for _ in range(10)] == [200] * 10
    assert client.get("/things/1/").status_code == 429


class Frozen(SimpleRateThrottle):
    """Written against DRF: a frozen clock, its own key, its own rate format, and hooks."""

    scope = "frozen"
    THROTTLE_RATES = {"frozen": "3 each minute"}  # noqa: RUF012 - as users write it
    moment = 1_000_000.0
    heard: list[str] = []  # noqa: RUF012

    def timer(self) -> float:
        return self.moment

    def parse_rate(self, rate: str) -> tuple[int, int]:
        return int(rate.split()[0]), 60

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        who = request.headers.get("X-Who")
        return who and self.cache_format % {"scope": self.scope, "ident": who}

    def throttle_success(self) -> bool:
        self.heard.append(f"yes {self.key}")
        return super().throttle_success()

    def throttle_failure(self) -> bool:
        self.heard.append(f"no {self.wait():.0f}")
        return super().throttle_failure()


def test_throttles_written_for_drf_work() -> None:
    """They override `timer`, `get_cache_key`, `parse_rate`, `throttle_success` and others."""
    Frozen.heard.clear()
    assert answers((Frozen,), 5) == [200] * 5
    assert answers((Frozen,), 4, **{"X-Who": "ada"}) == [200, 200, 200, 429]
    assert Frozen.heard == ["yes throttle_frozen_ada"] * 3 + ["no 60"]
    Frozen.moment += 60
    assert answers((Frozen,), 1, **{"X-Who": "ada"}) == [200]


def test_a_throttle_with_its_own_allow_request_is_decided_alone() -> None:
    """If it admits a request itself, the other throttles do not count the request for it."""

    class Choosy(User):
        def allow_request(self, request: Any, view: Any) -> bool:
            return request.method == "GET" or super().allow_request(request, view)

    assert answers((Burst, Choosy), 3) == [200] * 3
    view = type("View", (Plain,), {"throttle_classes": (User,)})()
    throttle = User()
    throttle.allow_request(view.initialize_request(APIRequestFactory().get("/")), view)
    assert throttle.state.used == 1
    assert answers((Choosy,), 1, "post") == [200]


def test_a_throttle_can_be_called_without_a_view() -> None:
    """It may also be called more often than a view would."""
    request = Plain().initialize_request(APIRequestFactory().get("/"))
    throttle = type("Two", (Anon,), {"rate": "2/m"})()
    assert [throttle.allow_request(request, None) for _ in range(3)] == [True, True, False]
    assert Anon().wait() is None


def test_throttles_of_one_scope_with_other_rates_do_not_share_a_count() -> None:
    """A client that alternates between two views gets at most the sum of both rates."""
    long, short = (type("T", (Anon,), {"rate": rate}) for rate in ("3/d", "2/m"))
    with move_clock() as clock:
        assert answers((long,), 4) == [200, 200, 200, 429]
        assert answers((short,), 3) == [200, 200, 429]
        clock.advance(61)
        assert answers((short,), 1) == [200]
        assert answers((long,), 1) == [429]
        assert answers((short, long), 1) == [429]


def test_the_wait_is_none_if_a_request_is_never_allowed() -> None:
    """Otherwise `wait()` is finite."""
    assert answers((type("T", (Anon,), {"rate": "5/m"}),), 5) == [200] * 5
    throttle = type("T", (Anon,), {"rate": "5/m"})()
    request = Plain().initialize_request(APIRequestFactory().get("/"))
    assert not throttle.allow_request(request, None)
    assert 0 < throttle.wait() <= 60
    never = type("Never", (Anon,), {"rate": "0/s"})()
    assert not never.allow_request(request, None)
    assert never.wait() is None


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window"])
def test_a_throttle_can_choose_another_algorithm(algorithm: str) -> None:
    """An algorithm with a state of constant size can be chosen."""
    by_attribute = type("B", (Anon,), {"rate": "3/h", "algorithm": algorithm, "scope": "b"})
    assert answers((by_attribute,), 4) == [200] * 3 + [429]
    attributes = {"rate": "3/h", "algorithm": "gcra", "options": {"burst": 1}, "scope": "c"}
    assert answers((type("C", (Anon,), attributes),), 2) == [200, 429]


def test_a_very_large_rate_is_counted_by_a_sliding_window() -> None:
    """A sliding log would store each of a million units."""
    assert answers((type("Large", (Anon,), {"rate": "1000000/d"}),), 1) == [200]


def test_a_disabled_site_throttles_no_request(settings: Any) -> None:
    """The setting is `RATELIMIT_ENABLE = False`."""
    settings.RATELIMIT_ENABLE = False
    assert answers((type("Closed", (Anon,), {"rate": "0/s"}),), 2) == [200, 200]
