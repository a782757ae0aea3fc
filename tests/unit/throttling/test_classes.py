"""DRF's throttle classes, used without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle

from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.limits.rate import LimitError
from django_ratelimit_lua.rules.ruleset import Ruleset, compile_rules
from django_ratelimit_lua.throttling import (
    AnonRateThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from django_ratelimit_lua.throttling.batch import BatchDecision
from django_ratelimit_lua.web.plan import RequestPlanner

RATES = {
    "anon": "30/h",
    "user": "50/h",
    "burst": "20/h",
    "sustained": "500/h",
    "uploads": "10/15m",
    "none": None,
}


class Anon(AnonRateThrottle):
    THROTTLE_RATES = RATES


class User(UserRateThrottle):
    THROTTLE_RATES = RATES


class Scoped(ScopedRateThrottle):
    THROTTLE_RATES = RATES


@pytest.mark.parametrize("rate", ["5/month", "ten/m", "5", "5/fortnight"])
def test_an_invalid_rate_names_its_scope(rate: str) -> None:
    """Creating a throttle with an invalid rate raises an error that names the scope, and no rate is
    guessed.
    """
    with pytest.raises(
        ImproperlyConfigured, match=f"scope 'anon': (Rate {rate!r}|5 is a number of slots)"
    ):
        type("Bad", (AnonRateThrottle,), {"THROTTLE_RATES": {"anon": rate}})()


def test_a_throttle_without_scope_or_rate_is_an_error() -> None:
    """A throttle without a scope or rate raises `ImproperlyConfigured`, and one without a cache key
    `NotImplementedError`, as in DRF.
    """
    with pytest.raises(ImproperlyConfigured, match="scope"):
        SimpleRateThrottle()
    throttle = type("Half", (SimpleRateThrottle,), {"rate": "5/m"})()
    with pytest.raises(NotImplementedError):
        throttle.get_cache_key(None, None)


@pytest.mark.parametrize("proxies", [None, 0, 1, 2])
@pytest.mark.parametrize("throttle", [Anon, User, Scoped])
@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"),
        ("[2001:db8:1:2::1]:4711", "[2001:DB8:1:2::2]", "[2001:db8:1:3::1]:4711"),
        ("198.51.100.9:4711", "198.51.100.9:4712", "198.51.100.8:4711"),
        ("::ffff:198.51.100.9", " 198.51.100.9", "::ffff:198.51.100.8"),
        ("fe80::1%eth0", "fe80::2", "fe80:0:0:1::1%eth0"),
        ("unknown", "made up", "198.51.100.8"),
    ],
)
def test_one_client_is_one_identity_for_throttles(
    one: str, same: str, other: str, throttle: Any, proxies: int | None, settings: Any
) -> None:
    """All addresses of a /64 network are one identity, and ports, brackets and zones are ignored.
    That applies to each setting of proxies.
    """
    settings.RATELIMIT_TRUSTED_PROXIES = 1
    settings.REST_FRAMEWORK = {"NUM_PROXIES": proxies}
    view = SimpleNamespace(throttle_scope="uploads")

    def key(address: str) -> str | None:
        header = {0: None, 2: f"203.0.113.1, {address}, 10.0.0.1"}.get(
            proxies, f"203.0.113.1, {address}"
        )
        peer = address if proxies == 0 else "10.0.0.1"
        request = APIRequestFactory().get(
            "/", REMOTE_ADDR=peer, **({"HTTP_X_FORWARDED_FOR": header} if header else {})
        )
        request.user = None
        asked = throttle()
        asked.scope = "uploads"
        found: str | None = asked.get_cache_key(request, view)
        return found

    assert key(one) == key(same) != key(other)


def test_the_mask_is_that_of_the_settings(settings: Any) -> None:
    """RATELIMIT_IPV6_MASK also applies if DRF's NUM_PROXIES determines the address."""
    settings.REST_FRAMEWORK = {"NUM_PROXIES": 0}
    request = APIRequestFactory().get("/", REMOTE_ADDR="2001:db8:1:2::1")
    for mask, network in ((64, "2001:db8:1:2::"), (48, "2001:db8:1::"), (128, "2001:db8:1:2::1")):
        settings.RATELIMIT_IPV6_MASK = mask
        assert Anon().get_ident(request) == network


def throttle(kind: Any = Anon, **attributes: Any) -> Any:
    return type("Throttle", (kind,), attributes)()


def request(method: str = "GET", who: Any = None) -> Any:
    asked = APIRequestFactory().generic(method, "/", REMOTE_ADDR="192.0.2.1")
    asked.user = who
    return asked


def charged(asked: Any, *rules: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and rates that a throttle charges under these rules."""
    ruleset = Ruleset(compile_rules(rules))
    planner = RequestPlanner(request(), lambda ruleset: [asked.place(request(), None, ruleset)])
    run(planner.gather(ruleset))
    return [(planned.name, str(planned.charge.limit.rate)) for planned in planner.charges]


def test_a_throttle_charges_by_its_scope() -> None:
    """The throttle charges the identity that `get_cache_key` returns. If that or the scope's rate
    is None, it charges nothing.
    """
    ada = SimpleNamespace(pk=7, is_authenticated=True)
    charge = throttle().prepare(request(), None)
    assert (charge.limit.name, str(charge.limit.rate), charge.limit.algorithm) == (
        "anon",
        "30/h",
        "sliding_log",
    )
    assert throttle().prepare(request(who=ada), None) is None
    assert (
        throttle(User).prepare(request(who=ada), None).digest
        != throttle(User).prepare(request(), None).digest
    )
    assert throttle(User, scope="none").prepare(request(), None) is None


def test_a_rate_can_depend_on_the_method() -> None:
    """HEAD uses the rate of GET, each count is named by its method, and a rate of None is
    no limit.
    """
    asked = throttle(rate={"get": "2/h", "POST": None, "*": "9/h"})
    charges = {
        method: asked.prepare(request(method), None) for method in ("GET", "HEAD", "POST", "PUT")
    }
    assert {
        method: charge and (charge.limit.name, str(charge.limit.rate))
        for method, charge in charges.items()
    } == {
        "GET": ("anon:GET", "2/h"),
        "HEAD": ("anon:GET", "2/h"),
        "POST": None,
        "PUT": ("anon:*", "9/h"),
    }


def test_a_view_sets_the_cost_of_its_requests() -> None:
    """`throttle_cost` is a number, or a number for each action. An action that is not listed costs
    1.
    """
    costs = {"list": 10}
    for view, cost in (
        (None, 1),
        (SimpleNamespace(throttle_cost=3), 3),
        (SimpleNamespace(throttle_cost=costs, action="list"), 10),
        (SimpleNamespace(throttle_cost=costs, action="retrieve"), 1),
    ):
        assert throttle().get_cost(request(), view) == cost
    with pytest.raises(LimitError, match="throttle_cost of SimpleNamespace is -1"):
        throttle().get_cost(request(), SimpleNamespace(throttle_cost=-1))


def test_a_rule_named_by_a_scope_replaces_its_rate() -> None:
    """A rule whose group is the scope is added to the throttle's rate. A rule that is off
    lifts it.
    """
    rule, beside = (
        {"name": name, "group": "anon", "key": "ip", "rate": "7/h"} for name in ("anon", "beside")
    )
    assert charged(throttle()) == [("anon", "30/h")]
    assert charged(throttle(), rule) == [("anon", "7/h")]
    assert charged(throttle(), beside) == [("anon", "30/h"), ("beside", "7/h")]
    assert charged(throttle(), {**rule, "mode": "off"}) == []
    assert charged(
        throttle(User, scope="none"), {"name": "none", "group": "none", "rate": "7/h"}
    ) == [("none", "7/h")]


def test_a_throttle_with_a_million_requests_uses_a_sliding_window() -> None:
    """A throttle without an algorithm uses a sliding window instead of a log if its rate is very
    high.
    """
    assert throttle(rate="1000000/d").prepare(request(), None).limit.algorithm == "sliding_window"
    assert (
        throttle(rate="5/d", algorithm="gcra", options={"burst": 2})
        .prepare(request(), None)
        .limit.burst
        == 2
    )


def test_throttles_of_a_view_are_decided_together() -> None:
    """A view's throttles of this package are decided in one call. One that overrides the decision,
    or has no view, is decided alone.
    """

    class Own(Anon):
        def allow_request(self, request: Any, view: Any) -> bool:
            return True

    first, second, own = Anon(), User(), Own()
    view = SimpleNamespace(get_throttles=lambda: [Anon(), BaseThrottle(), User(), Own()])
    together = BatchDecision._together
    asked = together(view, second)
    assert [type(one) for one in asked] == [Anon, User]
    assert asked[1] is second
    assert together(view, first)[0] is first
    assert together(view, own) == [own]
    assert together(None, first) == [first]
