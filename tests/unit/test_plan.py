"""What a request is charged, and what overrides make of that: planned without a server."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import Http404, HttpRequest
from django.test import RequestFactory

from django_ratelimit_lua.engine.decide import PlannedCharge
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.rules.callsite import call_site
from django_ratelimit_lua.rules.overrides import KnownOverrides, Override, SubjectRef
from django_ratelimit_lua.rules.rule import Rule, compile_rule
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.web.overrides import BLOCK, apply_overrides
from django_ratelimit_lua.web.plan import RequestPlanner

NO_RULES = Ruleset(())


class Groups:
    """A user's groups, which count how often they are asked for, blocking or not."""

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


def gathered(rules: list[Rule], kind: str, request: HttpRequest, **kwargs: Any) -> list[PlannedCharge]:
    planner = RequestPlanner(request, rules, "here", **kwargs)
    if kind == "sync":
        planner.gather(NO_RULES)
    else:
        asyncio.run(planner.agather(NO_RULES))
    return planner.charges


def numbers(charges: list[PlannedCharge]) -> list[tuple[str, int, bytes, int]]:
    return [
        (planned.charge.limit.name, planned.charge.limit.rate.limit, planned.charge.digest, planned.charge.cost)
        for planned in charges
    ]


async def three(group: str, request: HttpRequest) -> Any:
    return 3


async def nine_an_hour(group: str, request: HttpRequest) -> Any:
    return "9/h"


KEYS = ["ip", "user", "user_or_ip", "header:x-key", ("ip", "header:x-key"), lambda group, request: group, three]
RATES = ["5/h", ["5/h", "50/d"], None, lambda group, request: "7/h", nine_an_hour, lambda group, request: None]
COSTS = [1, 0, lambda group, request: 2, three]


@pytest.mark.parametrize(("key", "rate", "cost"), list(itertools.product(KEYS, RATES, COSTS)), ids=lambda value: None)
def test_both_ways_to_gather_come_to_the_same(key: Any, rate: Any, cost: Any) -> None:
    """Whatever a key, a rate and a cost are, functions and coroutines among them."""
    rules = [call_site(None, key, rate, None, cost, {}), call_site("other", key, "1/s", ["GET"], 1, {})]
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
def test_groups_are_asked_for_only_where_they_decide(
    kind: str, audience: list[str], who: Any, is_met: bool, asks: int
) -> None:
    """A rule is about the user or not, and the database is asked at most once, and only if it matters."""
    rule = compile_rule({"name": "x", "key": "ip", "rate": "5/h", "audience": audience})
    groups = getattr(who, "groups", Groups())
    before, request = groups.asked, asked_by(who)
    assert bool(gathered([rule], kind, request)) is is_met
    assert bool(gathered([rule], kind, request)) is is_met
    assert groups.asked - before == asks


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_rule_that_fails_is_left_out_and_what_it_replaced_stands_again(kind: str) -> None:
    """Unless it is the request that is refused, or a call site that is wrong."""

    def fail(group: str, request: HttpRequest) -> Any:
        raise ValueError("no")

    def refuse(group: str, request: HttpRequest) -> Any:
        raise Http404

    own = call_site("here", "ip", "5/h", None, 1, {})
    broken = call_site("here", fail, "5/h", None, 1, {})
    rule = Rule(name="here", template=broken.template, replaces=(own,))
    assert [planned.rule for planned in gathered([rule], kind, asked_by())] == [own]
    with pytest.raises(ValueError, match="no"):
        gathered([broken], kind, asked_by())
    errors: list[str] = []
    assert gathered([broken], kind, asked_by(), on_error=lambda name, error: errors.append(name)) == []
    assert errors == ["here"]
    with pytest.raises(Http404):
        gathered([Rule(name="here", template=call_site(None, refuse, "5/h", None, 1, {}).template)], kind, asked_by())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_rule_is_charged_whole_or_not_at_all(kind: str) -> None:
    """One of whose rates the second is nonsense charges nothing, and calls neither cost nor key first."""
    called: list[str] = []

    def cost(group: str, request: HttpRequest) -> int:
        called.append("cost")
        return 1

    own = call_site("here", "ip", "5/h", None, 1, {})
    rates = [lambda group, request: "5/m", lambda group, request: "garbage"]
    rule = Rule(name="here", template=call_site("here", "ip", rates, None, cost, {}).template, replaces=(own,))
    assert [planned.rule for planned in gathered([rule], kind, asked_by())] == [own]
    assert called == []


SUBJECT = SubjectRef("user", digest(("user", "7")))


def known(*overrides: Override) -> KnownOverrides:
    return KnownOverrides((SUBJECT,), ((b"tag", overrides),))


def planned(mode: Any = "enforce") -> list[PlannedCharge]:
    return [PlannedCharge(Charge(Limit("x", "5/h", mode=mode), digest("ada")), "x")]


def test_overrides_exempt_change_or_block() -> None:
    """A charge goes, or has another limit, or says who blocks in its place."""
    assert apply_overrides(planned(), known(Override(1, None, "exempt")), NO_RULES, True) == ([], None)
    (changed,), _ = apply_overrides(planned(), known(Override(1, None, "limit", Rate.parse("9/h"))), NO_RULES, True)
    assert (changed.charge.limit.rate.limit, changed.blocked) == (9, None)
    (blocked,), block = apply_overrides(planned(), known(Override(1, None, "block")), NO_RULES, True)
    assert (blocked.blocked.allowed, blocked.blocked.retry_after, blocked.blocked.name, block) == (
        False,
        None,
        "x",
        None,
    )


def test_a_block_for_all_rules_needs_none() -> None:
    """It refuses where no enforced charge is, but only those faces that stand for all rules."""
    overrides = known(Override(1, None, "block"))
    charges, block = apply_overrides([], overrides, NO_RULES, True)
    assert (charges, block.name, block.enforced) == ((), BLOCK, True)
    assert apply_overrides(planned("shadow"), overrides, NO_RULES, True)[1] is not None
    assert apply_overrides([], overrides, NO_RULES, False) == ([], None)
