"""Explanations of requests to views of every kind have the limits that are counted, and a reset
allows the next real request.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import AnonRateThrottle as Foreign
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.management.arguments import build_request
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.explain import explain, reset_counts
from django_ratelimit_lua.throttling import (
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    UserRateThrottle,
)

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"
TWO, FIVE, NINE = (ratelimit(key="ip", rate=rate) for rate in ("2/h", "5/h", "9/h"))


def fine(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse("fine")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@method_decorator(TWO, name="dispatch")
class OnClass(Plain):
    pass


class OnMethod(View):
    @method_decorator([TWO, FIVE])
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@method_decorator(NINE, name="dispatch")
class OnBoth(OnMethod):
    pass


class CallsParent(OnBoth):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class Hides(OnMethod):
    def get(self, request: HttpRequest) -> HttpResponse:
        return super().get(request)


@FIVE
@never_cache
@TWO
def function(request: HttpRequest) -> HttpResponse:
    return fine(request)


@TWO
async def coroutine(request: HttpRequest) -> HttpResponse:
    return fine(request)


def careless(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without `functools.wraps`."""

    def wrapper(request: HttpRequest) -> Any:
        return view(request)

    return wrapper


@api_view(["GET"])
@TWO
def api_function(request: Any) -> Response:
    return Response("fine")


class TwoByUser(UserRateThrottle):
    rate = "2/h"
    scope = "two"


class Throttled(APIView):
    throttle_classes = (TwoByUser,)

    def get(self, request: Any) -> Response:
        return Response("fine")


class TwoScoped(ScopedRateThrottle):
    THROTTLE_RATES = {"slow": "2/h", "slower": "1/h"}  # noqa: RUF012 - as DRF has it


class Scoped(Throttled):
    throttle_classes = (TwoScoped,)
    throttle_scope = "slow"


class Orders(ViewSet):
    throttle_scope: str | None = None

    @method_decorator(TWO)
    def list(self, request: Any) -> Response:
        return Response("fine")

    @action(detail=False, throttle_classes=[TwoScoped], throttle_scope="slower")
    def export(self, request: Any) -> Response:
        return Response("fine")


class Ruled(Throttled):
    throttle_classes = (RuleThrottle,)


class ByName(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-Name")
        return None if name is None else (User.objects.get(username=name), None)


class Known(Throttled):
    authentication_classes = (ByName,)

    @method_decorator(ratelimit("known", "user", "2/h"))
    def get(self, request: Any) -> Response:
        return Response("fine")


router = SimpleRouter()
router.register("orders", Orders, "orders")
PARTS = {
    "form": "post:username",
    "json": "json:user.name",
    "header": "header:X-API-Key",
    "cookie": "cookie:c",
    "query": "get:q",
    "data": "data:name",
    "kwarg": "kwarg:name",
    "exact": "exact:post:username",
}


def host(group: str, request: HttpRequest) -> str:
    return request.get_host()


def failing(group: str, request: HttpRequest) -> str:
    return str(request.tenant)  # type: ignore[attr-defined]


by = {name: ratelimit(key=("ip", key), rate="2/h")(fine) for name, key in PARTS.items()}


class Case(NamedTuple):
    """A view, the number of its limits, and the description of a request."""

    view: Any
    count: int
    path: str = ""
    method: str = "get"
    sends: Mapping[str, Any] = MappingProxyType({})
    fields: tuple[tuple[str, str], ...] = ()


def posted(key: str, fields: tuple[tuple[str, str], ...], **data: Any) -> Case:
    """Return a view with a key, to which a form is posted."""
    return Case(by[key], 1, method="post", sends={"data": data}, fields=fields)


USER = {"user": {"name": "ada", "age": 7}}
VIEWS = {
    "class": Case(OnClass.as_view(), 1),
    "method": Case(OnMethod.as_view(), 2),
    "head": Case(OnMethod.as_view(), 2, method="head"),
    "both": Case(OnBoth.as_view(), 3),
    "calls-parent": Case(CallsParent.as_view(), 3),
    "around": Case(FIVE(OnClass.as_view()), 2),
    "careless": Case(careless(TWO(fine)), 1),
    "function": Case(function, 2),
    "coroutine": Case(coroutine, 1),
    "plain": Case(Plain.as_view(), 0),
    "api-function": Case(api_function, 1),
    "throttled": Case(Throttled.as_view(), 1),
    "scoped": Case(Scoped.as_view(), 1),
    "orders": Case(None, 1, "orders/"),
    "export": Case(None, 1, "orders/export/"),
    "known": Case(
        Known.as_view(), 2, sends={"headers": {"X-Name": "ada"}}, fields=(("header:X-Name", "ada"),)
    ),
    "form": posted("form", (("post:username", "ada"),), username="ada", q="1"),
    "exact": posted("exact", (("post:username", "ada"), ("post:q", "1")), username="ada", q="1"),
    "data": posted("data", (("post:name", "ada"),), name="ada"),
    "json": Case(
        *(by["json"], 1, "", "post", {"data": USER, "content_type": "application/json"}),
        fields=(("json:user.name", "ada"), ("json:user.age", "7")),
    ),
    "header": Case(
        *(by["header"], 1, "", "get", {"headers": {"X-API-Key": "k 1"}}),
        fields=(("header:X-API-Key", "k 1"),),
    ),
    "cookie": Case(
        *(by["cookie"], 1, "", "get", {"headers": {"Cookie": "a=1; c=2"}}),
        fields=(("cookie:a", "1"), ("cookie:c", "2")),
    ),
    "query": Case(by["query"], 1, sends={"query_params": {"q": "a b"}}, fields=(("get:q", "a b"),)),
    "kwarg": Case(by["kwarg"], 1, "kwarg/ada/"),
}
urlpatterns = [
    *(
        path(f"{name}/", case.view)
        for name, case in VIEWS.items()
        if case.view is not None and not case.path
    ),
    path("kwarg/<name>/", by["kwarg"]),
    path("ruled/", Ruled.as_view()),
    path("foreign/", Throttled.as_view(throttle_classes=[Foreign])),
    path("host/", ratelimit(key=host, rate="2/h")(fine)),
    path("failing/", ratelimit(key=failing, rate=lambda group, request: "2/h")(fine)),
    path("advice/", ratelimit(key="ip", rate="2/h", block=False)(fine)),
    path("posted/", ratelimit(key=("ip", "post:username"), rate="2/h", method="POST")(fine)),
    path("ok/", fine),
    path("hides/", Hides.as_view()),
    path("", include(router.urls)),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_ON_STORE_ERROR = "closed"


def visit(case: Case, name: str) -> int:
    client = Client(REMOTE_ADDR=ADDRESS)
    return int(
        getattr(client, case.method)(f"/{case.path or name + '/'}", **case.sends).status_code
    )


def visits(name: str, times: int, **meta: Any) -> list[int]:
    client = Client(REMOTE_ADDR=ADDRESS, **meta)
    return [client.get(f"/{name}/").status_code for _ in range(times)]


@pytest.mark.parametrize("name", VIEWS)
def test_explained_limits_are_the_counted_limits(name: str) -> None:
    """Each limit has its used units, and the refusal names the limit that refuses."""
    User.objects.create(username="ada")
    case = VIEWS[name]

    def explained() -> Any:
        asked = f"/{case.path or name + '/'}"
        return explain(build_request(asked, case.method.upper(), ADDRESS, fields=case.fields))

    assert explained().decision.allowed
    statuses = [visit(case, name) for _ in range(3)]
    explanation = explained()
    assert explanation.notes == []
    used = sorted(limit.state.used for limit in explanation.limits if limit.state is not None)
    assert len(used) == case.count
    if not case.count:
        found = (statuses, explanation.decision.allowed, reset_counts(explanation))
        assert found == ([200] * 3, True, [])
        return
    rate = 1 if name == "export" else 2
    assert statuses == [200] * rate + [429] * (3 - rate)
    assert not explanation.decision.allowed
    assert min(used) >= rate
    assert {limit.charge.limit.rate.limit for limit in explanation.limits if limit.refuses} == {
        rate
    }
    assert sorted(reset_counts(explanation)) == sorted(limit.name for limit in explanation.limits)
    assert explained().decision.allowed
    assert reset_counts(explained()) == []
    assert visit(case, name) == 200


@pytest.mark.parametrize("has_middleware", [True, False])
def test_rules_are_explained_only_if_they_apply(has_middleware: bool, settings: Any) -> None:
    """They apply by the middleware or by a throttle. If neither applies them, a note says so."""
    settings.MIDDLEWARE = (
        ["django_ratelimit_lua.middleware.RateLimitMiddleware"] if has_middleware else []
    )
    RateLimitRule.objects.create(name="two", path="/", key="ip", rate="2/h")
    for place, is_limited in (("ok", has_middleware), ("ruled", True)):
        statuses = visits(place, 3)
        explanation = explain(build_request(f"/{place}/", address=ADDRESS))
        assert (429 in statuses) is is_limited is not explanation.decision.allowed, place
        assert [limit.name for limit in explanation.limits] == ["two"] * is_limited
        assert ("is not in MIDDLEWARE" in "".join(explanation.notes)) is not has_middleware
        assert reset_counts(explanation) == ["two"] * is_limited
        assert visits(place, 1) == [200]
        reset_counts(explain(build_request(f"/{place}/", address=ADDRESS)))


def test_a_user_authenticated_by_the_view_is_explained_correctly() -> None:
    """The user is that of the authentication headers, or the one that was entered."""
    ada = User.objects.create(username="ada")
    assert visits("known", 3, headers={"X-Name": "ada"}) == [200, 200, 429]
    fields = [("header:X-Name", "ada")]
    assert not explain(build_request("/known/", address=ADDRESS, fields=fields)).decision.allowed
    by_user = build_request("/known/", address="198.51.100.1", user=ada)
    assert not explain(by_user).decision.allowed
    assert explain(build_request("/known/", address=ADDRESS)).decision.allowed


def test_code_that_cannot_be_evaluated_is_named() -> None:
    """These are functions of the project that fail, and throttles that decide themselves."""
    assert visits("host", 3, headers={"host": "one.example"}) == [200, 200, 429]
    assert not explain(build_request("/host/", host="one.example")).decision.allowed
    assert explain(build_request("/host/", host="other.example")).decision.allowed
    explanation = explain(build_request("/failing/"))
    assert "AttributeError" in explanation.notes[0]
    (note,) = explain(build_request("/foreign/")).notes
    throttle = "rest_framework.throttling.AnonRateThrottle"
    assert note == f"Not checked: {throttle}, a throttle that decides by itself."


def test_a_limit_that_cannot_be_found_is_reported_as_unknown() -> None:
    """The function and the command report it as unknown instead of "no limit"."""
    explanation = explain(build_request("/hides/", address=ADDRESS))
    assert explanation.limits == []
    note = "Unknown: whether the view calls OnMethod.get, which has limits."
    assert explanation.notes == [note]
    out = io.StringIO()
    call_command("ratelimit", "rules", "explain", "--path", "/hides/", stdout=out)
    allowed = "The next request like this would be allowed, as far as known."
    assert out.getvalue().splitlines() == [note, allowed]


class Picky(AnonRateThrottle):
    rate = "1/h"

    def allow_request(self, request: Any, view: Any) -> bool:
        return "X-Free" in request.headers or super().allow_request(request, view)

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return "everybody"


class Keyed(Picky):
    allow_request = AnonRateThrottle.allow_request


class Gated(LoginRequiredMixin, View):
    @method_decorator(TWO)
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


urlpatterns += [
    path("closed/", login_required(TWO(fine), login_url="/ok/")),
    path("gated/", Gated.as_view(login_url="/ok/")),
    path("picky/", Throttled.as_view(throttle_classes=[Picky])),
    path("keyed/", Throttled.as_view(throttle_classes=[Keyed])),
]


def test_a_request_that_the_site_refuses_is_explained() -> None:
    """Examples are an invalid host and a header that is too long."""
    assert Client(headers={"host": "a b"}).get("/host/").status_code == 400
    (problem,) = explain(build_request("/host/", host="a b")).notes
    assert problem.startswith("refused by the site: DisallowedHost: ")
    explanation = explain(build_request("/header/", fields=[("header:X-API-Key", "x" * 70_000)]))
    assert explanation.notes[0].startswith("refused by the site: RequestDataTooBig: ")


def test_custom_throttles_are_named() -> None:
    """A throttle with its own `allow_request` is not evaluated. One with its own key is."""
    explanation = explain(build_request("/picky/"))
    assert explanation.limits == []
    assert "Picky, a throttle that decides by itself" in explanation.notes[0]
    assert visits("keyed", 2) == [200, 429]
    explanation = explain(build_request("/keyed/"))
    assert [limit.refuses for limit in explanation.limits] == [True]


def test_an_advisory_limit_is_explained_as_not_refusing() -> None:
    """The limit is exceeded, but does not refuse."""
    assert visits("advice", 3) == [200] * 3
    explanation = explain(build_request("/advice/", address=ADDRESS))
    (limit,) = explanation.limits
    assert (limit.state.allowed, limit.is_advice, limit.refuses) == (False, True, False)
    assert explanation.decision.allowed


@pytest.mark.parametrize("name", ["closed", "gated"])
def test_limits_behind_a_login_are_explained_for_signed_in_users_only(
    name: str, settings: Any
) -> None:
    """Without a user, real requests lead to the login page, and the explanation says so."""
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
    ada, client = User.objects.create(username="ada"), Client(REMOTE_ADDR=ADDRESS)
    client.force_login(ada)
    assert [client.get(f"/{name}/").status_code for _ in range(3)] == [200, 200, 429]
    assert not explain(build_request(f"/{name}/", address=ADDRESS, user=ada)).decision.allowed
    assert visits(name, 1) == [302]
    explanation = explain(build_request(f"/{name}/", address=ADDRESS))
    assert (explanation.decision.allowed, explanation.limits) == (True, [])
    assert explanation.notes[0].endswith("Enter a user to see them.")
