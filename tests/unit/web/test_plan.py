"""The charges of a request are gathered and planned, without a server."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest
from django.test import RequestFactory

from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.engine.run import arun, run
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge, Revision
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.rules import compile
from django_ratelimit_lua.rules.overrides import EVERY_RULE
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.rules.ruleset import Ruleset, compile_rules
from django_ratelimit_lua.rules.snapshot import Snapshot
from django_ratelimit_lua.signals import limit_exceeded
from django_ratelimit_lua.views.call_sites import compile_call_site
from django_ratelimit_lua.web.plan import Place
from django_ratelimit_lua.web.request_plan import RequestPlanner

NO_RULES = Ruleset(())


class Groups:
    """A user's groups, which count their sync and async queries."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = names, 0

    def values_list(self, *fields: str, flat: bool) -> Groups:
        self.asked += 1
        return self

    def __iter__(self) -> Any:
        return iter(self.names)

    async def __aiter__(self) -> Any:
        for name in self.names:
            yield name


def user(*groups: str, is_staff: bool = False) -> Any:
    return SimpleNamespace(pk=7, is_authenticated=True, is_staff=is_staff, groups=Groups(*groups))


STRANGER = SimpleNamespace(pk=None, is_authenticated=False, is_staff=False)


def asked_by(who: Any = STRANGER, method: str = "GET") -> HttpRequest:
    async def auser() -> Any:
        return who

    request = RequestFactory().generic(method, "/", REMOTE_ADDR="192.0.2.1", HTTP_X_KEY="k")
    request.user, request.auser = who, auser
    return request


def gathered(
    rules: list[Rule], kind: str, request: HttpRequest, **kwargs: Any
) -> list[DecidedCharge]:
    planner = RequestPlanner(request, rules, "here", **kwargs)
    gather(planner, NO_RULES, kind)
    return list(planner.gathered)


def gather(planner: RequestPlanner, ruleset: Ruleset, kind: str = "sync") -> None:
    """Gather with the sync or the async driver."""
    if kind == "sync":
        run(planner.gather(ruleset))
    else:
        asyncio.run(arun(planner.gather(ruleset)))


def numbers(charges: list[DecidedCharge]) -> list[tuple[str, int, bytes, int]]:
    each = (planned.charge for planned in charges)
    return [(one.limit.name, one.limit.rate.limit, one.digest, one.cost) for one in each]


async def three(group: str, request: HttpRequest) -> Any:
    return 3


async def nine_an_hour(group: str, request: HttpRequest) -> Any:
    return "9/h"


KEYS = [
    "ip",
    "user",
    "user_or_ip",
    "header:x-key",
    ("ip", "header:x-key"),
    lambda group, request: group,
    three,
    ("ip", three),
]
RATES = ["5/h", ["5/h", "50/d"], None, nine_an_hour]
RATES += [lambda group, request: "7/h", lambda group, request: None]
COSTS = [1, 0, lambda group, request: 2, three]


@pytest.mark.parametrize(
    ("key", "rate", "cost"), list(itertools.product(KEYS, RATES, COSTS)), ids=lambda value: None
)
def test_sync_and_async_gathering_give_the_same_result(key: Any, rate: Any, cost: Any) -> None:
    """Keys, rates and costs may be functions and coroutines."""
    rules = [
        compile_call_site(None, key, rate, None, cost, {}),
        compile_call_site("other", key, "1/s", ["GET"], 1, {}),
    ]
    sync, coroutine = (gathered(rules, kind, asked_by(user())) for kind in ("sync", "async"))
    assert numbers(sync) == numbers(coroutine)
    assert sync[-1].charge.limit.name.startswith("other:")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("audience", "who", "is_met", "asks"),
    [
        (["everyone"], STRANGER, True, 0),
        (["anonymous"], STRANGER, True, 0),
        (["anonymous"], user("a"), False, 0),
        (["authenticated"], STRANGER, False, 0),
        (["authenticated"], user("a"), True, 0),
        (["staff"], user("a"), False, 0),
        (["staff", "group:a"], user("a", is_staff=True), True, 0),
        (["staff", "group:a"], user("a"), True, 1),
        (["group:a"], user("b"), False, 1),
        (["group:a"], STRANGER, False, 0),
    ],
)
def test_groups_are_loaded_only_if_a_rule_needs_them(
    kind: str, audience: list[str], who: Any, is_met: bool, asks: int
) -> None:
    """They are loaded at most once per request. A rule applies to its audience."""
    rule = compile({"name": "x", "key": "ip", "rate": "5/h", "audience": audience})
    groups = getattr(who, "groups", Groups())
    before, request = groups.asked, asked_by(who)
    assert bool(gathered([rule], kind, request)) is is_met
    assert bool(gathered([rule], kind, request)) is is_met
    assert groups.asked - before == asks


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gathered_values_are_reused_if_newer_rules_keep_the_call_sites(kind: str) -> None:
    """Functions of the project are called once for both sets of rules."""
    calls: list[str] = []

    def rate(group: str, request: HttpRequest) -> str:
        calls.append(group)
        return "7/h"

    planner = RequestPlanner(
        asked_by(), [compile_call_site("here", "ip", rate, None, 1, {})], "here"
    )
    other = {"name": "elsewhere", "path": "/x", "key": "ip", "rate": "1/s"}
    elsewhere = Ruleset(compile_rules([other]))
    instead = Ruleset(compile_rules([{"name": "here", "key": "ip", "rate": "9/h"}]))
    steps = ((NO_RULES, 7, 1), (elsewhere, 7, 1), (instead, 9, 1), (NO_RULES, 7, 2))
    for rules, limit, count in steps:
        gather(planner, rules, kind)
        assert [charged[1] for charged in numbers(planner.gathered)] == [limit]
        assert [charge.limit.rate.limit for charge in planner.plan(rules).charges] == [limit]
        assert len(calls) == count
        assert planner.ruleset is rules


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_rule_that_fails_is_replaced_by_its_call_sites(kind: str) -> None:
    """Errors of the call site, and those that refuse the request, are raised."""

    def fail(group: str, request: HttpRequest) -> Any:
        raise ValueError("no")

    def refuse(group: str, request: HttpRequest) -> Any:
        raise Http404

    own = compile_call_site("here", "ip", "5/h", None, 1, {})
    broken = compile_call_site("here", fail, "5/h", None, 1, {})
    rule = Rule(name="here", template=broken.template, replaces=(own,))
    assert [planned.rule for planned in gathered([rule], kind, asked_by())] == [own]
    with pytest.raises(ValueError, match="no"):
        gathered([broken], kind, asked_by())
    errors: list[str] = []
    options = {"on_error": lambda name, error: errors.append(name)}
    assert gathered([broken], kind, asked_by(), **options) == []
    assert errors == ["here"]
    refusing = Rule(
        name="here", template=compile_call_site(None, refuse, "5/h", None, 1, {}).template
    )
    with pytest.raises(Http404):
        gathered([refusing], kind, asked_by())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_rule_is_charged_completely_or_not_at_all(kind: str) -> None:
    """If one of its rates is invalid, neither its cost nor its key is called."""
    called: list[str] = []

    def cost(group: str, request: HttpRequest) -> int:
        called.append("cost")
        return 1

    own = compile_call_site("here", "ip", "5/h", None, 1, {})
    rates = [lambda group, request: "5/m", lambda group, request: "garbage"]
    template = compile_call_site("here", "ip", rates, None, cost, {}).template
    rule = Rule(name="here", template=template, replaces=(own,))
    assert [planned.rule for planned in gathered([rule], kind, asked_by())] == [own]
    assert called == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_missing_user_or_an_invalid_identity_is_explained(kind: str) -> None:
    """The exception says which middleware is missing, or which identities are valid."""
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        gathered(
            [compile_call_site(None, "user", "5/h", None, 1, {})], kind, RequestFactory().get("/")
        )
    invalid = compile_call_site(None, lambda group, request: object(), "5/h", None, 1, {})
    with pytest.raises(TypeError, match="primary key"):
        gathered([invalid], kind, asked_by())


def scoped(rate: str, owner: str) -> Place:
    """Return the place of a throttle, which is charged under the name of its scope."""
    charge = Charge(Limit("scope", rate), digest("ada"))
    return Place((), "scope", [DecidedCharge(charge, "scope", owner=owner)], owner)


def test_charges_of_several_places_are_made_in_order() -> None:
    """Limits with the same name are distinguished by their rates."""
    owners = ("second", "third", "fourth")
    places = [scoped("5/m", "first"), *(scoped("50/h", owner) for owner in owners)]
    planner = RequestPlanner(asked_by(), lambda ruleset: places)
    gather(planner, NO_RULES)
    planner.plan(NO_RULES)
    assert [(charge.owner, charge.charge.limit.name) for charge in planner.charges] == [
        ("first", "scope"),
        ("second", "scope:50/h"),
        ("third", "scope:50/h*2"),
        ("fourth", "scope:50/h*3"),
    ]


def test_an_exempt_request_is_neither_charged_nor_blocked() -> None:
    """If there are no places, nothing is charged and no block is looked up."""
    planner = RequestPlanner(asked_by(), lambda ruleset: None, blocks_uncharged=True)
    gather(planner, WITH_BLOCKS)
    assert (planner.gathered, planner.parties) == ([], ())


def test_signal_receivers_get_the_refused_client() -> None:
    """No signal is sent for a peek or a decision without Redis."""
    heard: list[Any] = []

    def receiver(limit: str, mode: str, **kwargs: Any) -> None:
        heard.append((limit, mode))

    def finished(operation: Any, source: Any) -> None:
        planner = RequestPlanner(
            asked_by(), [compile_call_site("here", "ip", "5/h", None, 1, {})], operation=operation
        )
        gather(planner, NO_RULES)
        planner.plan(NO_RULES)
        (planned,) = planner.charges
        numbers = {"used": 5, "remaining": 0, "retry_after": 9.0, "reset_after": 9.0}
        planned.state = LimitState.of(planned.charge.limit, allowed=False, **numbers)
        for wait in planner.finish(Decision(False, (planned.state,), source=source)):
            wait.blocking()

    limit_exceeded.connect(receiver)
    try:
        finished("peek", "redis")
        for source in ("redis", "fallback", "deny-cache"):
            finished("hit", source)
    finally:
        limit_exceeded.disconnect(receiver)
    assert heard == [("here:*:ip:5/h", "enforce")] * 2


BLOCKS = {
    "fields": {EVERY_RULE: ["network"]},
    "blocks": True,
    "networks": ["ip4/32"],
    "entries": {"ip4/32:c0000201": [[1, "", "block"]]},
}
WITH_BLOCKS = Ruleset(
    (), Snapshot(Revision.of(1, "01234567", "89abcdef"), overrides=[BLOCKS]), b"fence"
)


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_a_blocked_client_is_peeked_and_not_counted(mode: str) -> None:
    """Redis reports when the block has ended. In shadow mode the call stays a hit."""
    rule = compile({"name": "x", "key": "ip", "rate": "5/h", "mode": mode})
    planner = RequestPlanner(asked_by(), [rule], operation="hit")
    gather(planner, WITH_BLOCKS)
    call = planner.plan(WITH_BLOCKS)
    assert [bool(planned.blocked_by) for planned in planner.charges] == [True]
    assert list(call.charges) == []
    assert call.operation == ("peek" if mode == "enforce" else "hit")
    assert call.has_overrides
