"""DRF throttles and the rules of the admin and the settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_ratelimit_lua.engine.slots import held_slots
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.throttling import (
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    UserRateThrottle,
)
from tests.acceptance.rules.test_rules import stale_process
from tests.engine.test_cost import calls

pytestmark = pytest.mark.django_db(transaction=True)
RATES = {"anon": None, "user": "50/h", "burst": "20/h", "uploads": "10/15m"}


class HeaderAuthentication(BaseAuthentication):
    """An authentication that trusts a header."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        user = SimpleNamespace(pk=name, is_authenticated=True, is_staff=False)
        return (user, None) if name else None


class Burst(UserRateThrottle):
    scope = "burst"
    THROTTLE_RATES = RATES


class Anon(AnonRateThrottle):
    THROTTLE_RATES = RATES


class Scoped(ScopedRateThrottle):
    THROTTLE_RATES = RATES


def view(*throttles: Any, **attributes: Any) -> Any:
    def get(self: Any, request: Any) -> Response:
        limits = request._request.ratelimit.limits if hasattr(request._request, "ratelimit") else ()
        return Response([f"{state.name}={state.limit}" for state in limits])

    own = {"authentication_classes": (HeaderAuthentication,), "throttle_classes": throttles}
    return type("View", (APIView,), {"get": get, **own, **attributes}).as_view()


def ask(view: Any, address: str = "/x", user: str | None = None, ip: str = "203.0.113.9") -> Any:
    headers = {} if user is None else {"HTTP_X_USER": user}
    response = view(APIRequestFactory().get(address, REMOTE_ADDR=ip, **headers))
    return response.data if response.status_code == 200 else response.status_code


def rule(name: str, **fields: Any) -> RateLimitRule:
    return RateLimitRule.objects.create(name=name, **{"rate": "2/h", **fields})


@pytest.mark.usefixtures("quiet")  # It has not received the change.
def test_a_rule_with_the_name_of_a_scope_replaces_its_rate() -> None:
    """It applies at once, with another key, methods or mode as well. Counts continue."""
    limited = view(Burst)
    assert ask(limited, user="ada") == ["burst=20"]
    stale_process(lambda: rule("burst"))
    assert [ask(limited, user="ada") for _ in range(2)] == [["burst=2"], 429]
    assert ask(limited, user="bob") == ["burst=2"]
    RateLimitRule.objects.update(key="ip", rate="1/h")
    assert [ask(limited, user="eve"), ask(limited, user="joe")] == [["burst=1"], 429]
    RateLimitRule.objects.update(method="POST")
    assert ask(limited, user="ada") == []
    RateLimitRule.objects.update(method="", mode="off")
    assert ask(limited, user="ada") == []
    RateLimitRule.objects.update(mode="shadow", rate="0/h")
    assert ask(limited, user="ada") == ["burst=0"]
    RateLimitRule.objects.all().delete()
    assert ask(limited, user="ada") == ["burst=20"]


@pytest.mark.parametrize(
    "rate", ["20/h", {"GET": "20/h", "*": "9/h"}], ids=["one rate", "by method"]
)
def test_a_throttle_and_the_rule_that_replaces_it_share_a_count(rate: Any) -> None:
    """The count continues when the rule is created and when it is deleted."""
    throttle = type("Kept", (UserRateThrottle,), {"scope": "burst", "rate": rate})
    limited = view(throttle, throttle_cost=6)
    name = "burst" if rate == "20/h" else "burst:GET"
    assert [ask(limited) for _ in range(2)] == [[f"{name}=20"]] * 2
    one = rule("burst", rate="10/h")
    assert ask(limited) == 429
    RateLimitRule.objects.update(rate="18/h")
    assert [ask(limited), ask(limited)] == [["burst=18"], 429]
    one.delete()
    assert ask(limited) == 429


def test_a_rule_with_only_a_rate_keeps_the_options_of_the_throttle(direct: redis.Redis) -> None:
    """Options of the rule replace those of the throttle."""
    options = {"burst": 2, "ban_after": 1, "ban_for": "1d"}
    words = {"scope": "burst", "rate": "9/h", "algorithm": "token_bucket", "options": options}
    limited = view(type("Bucket", (UserRateThrottle,), words))
    rule("burst", rate="50/h")
    ip = "8.8.8.8"
    assert [ask(limited, ip=ip) for _ in range(3)] == [["burst=50"], ["burst=50"], 429]
    assert list(direct.scan_iter("*:ban"))
    RateLimitRule.objects.update(options={"algorithm": "token_bucket", "burst": 3})
    assert [ask(limited, ip="8.8.4.4") for _ in range(4)] == [["burst=50"]] * 3 + [429]


def test_a_scope_without_a_rate_is_limited_by_a_rule() -> None:
    """`None` in the settings means no limit, until a rule of the admin has the name."""
    limited = view(Anon)
    assert ask(limited) == []
    rule("anon", rate="1/h")
    assert [ask(limited), ask(limited), ask(limited, user="ada")] == [["anon=1"], 429, []]


def test_rules_for_scopes_keep_the_throttle_options_of_a_view() -> None:
    """The options are `throttle_scope` and `throttle_cost`."""
    rule("uploads", rate="5/h")
    limited = view(Scoped, throttle_scope="uploads", throttle_cost=2)
    assert [ask(limited) for _ in range(3)] == [["uploads=5"], ["uploads=5"], 429]
    assert ask(view(Scoped)) == []


def test_a_rule_applies_in_addition_to_a_scope() -> None:
    """Both limits are decided in one call, under separate names."""
    rule("burst daily", group="burst", key="ip", rate="1/d")
    limited = view(Burst)
    found = [ask(limited, user="ada"), ask(limited, user="bob")]
    assert found == [["burst=20", "burst daily=1"], 429]


@pytest.mark.usefixtures("quiet")  # It counts calls of Redis, and has not received the change.
def test_rule_throttle_applies_the_rules(direct: redis.Redis, settings: Any) -> None:
    """It uses DRF's user, and decides together with other throttles in one call."""
    settings.RATELIMIT_RULES = [{"name": "public", "path": "/public/", "exempt": True}]
    limited = view(Burst, RuleThrottle)
    assert ask(limited, user="ada") == ["burst=20"]
    stale_process(lambda: rule("site", path="/", key="user_or_ip"))
    assert [ask(limited, user="ada") for _ in range(3)] == [["burst=20", "site=2"]] * 2 + [429]
    assert ask(limited, user="bob") == ["burst=20", "site=2"]
    assert ask(limited, "/public/x", user="ada") == ["burst=20"]
    alone = view(RuleThrottle)
    ask(alone, user="eve")
    direct.config_resetstat()
    assert ask(limited, user="eve") == ["burst=20", "site=2"]
    assert calls(direct) == {"evalsha": 1}
    RateLimitRule.objects.all().delete()
    assert ask(alone, user="ada") == []


def test_rule_throttle_holds_slots() -> None:
    """A slot is held until the response is closed or the view raises."""
    rule("site", path="/", key="ip", rate="1", options={"algorithm": "concurrency"})
    fails: list[Exception] = []

    def get(self: Any, request: Any) -> Response:
        if fails:
            raise fails.pop()
        return Response("done")

    limited = view(RuleThrottle, get=get)

    def begin(ip: str = "203.0.113.9") -> tuple[Any, Any]:
        request = APIRequestFactory().get("/x", REMOTE_ADDR=ip)
        return limited(request), request

    def held() -> int:
        return len(held_slots.all())

    first, first_request = begin()
    assert (first.status_code, held()) == (200, 1)
    (refused, refused_request), (other, other_request) = begin(), begin(ip="198.51.100.7")
    assert (refused.status_code, other.status_code, held()) == (429, 200, 2)
    assert "at the same time" in refused.data["detail"]
    for request in (refused_request, first_request, other_request):
        request.close()  # As Django's handler has a response do that is closed.
    assert held() == 0
    fails.append(ValueError("in the view"))
    with pytest.raises(ValueError, match="in the view"):
        begin()
    assert held() == 0
    last, last_request = begin()
    assert last.status_code == 200
    last_request.close()
    assert held() == 0


def test_overrides_apply_to_throttles() -> None:
    """With `RuleThrottle`, a block for all rules needs no rule."""
    limited, alone = view(Burst), view(RuleThrottle)
    RateLimitOverride.objects.create(network="203.0.113.10", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.11", effect="block")
    RateLimitOverride.objects.create(network="203.0.113.12", rule="burst", rate="1/h")
    assert ask(limited, ip="203.0.113.10") == []
    assert ask(limited, ip="203.0.113.11") == 429
    assert [ask(limited, ip="203.0.113.12") for _ in range(2)] == [["burst=1"], 429]
    assert ask(alone, ip="203.0.113.11") == 429
    assert ask(alone, ip="203.0.113.9") == []
