"""How what applies to a request becomes one call.

The steps of a decision are written once, as a generator that yields whatever has to be waited for; a synchronous and an
asynchronous driver wait for it, each in its own way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from .callsite import Site
from .check import FENCED_ATTEMPTS, acheck, aforget, arules, check, describe, forget, rules
from .conf import conf
from .exceeded import tally
from .identity import digest
from .identity.keys import user_missing
from .limits.call import Call, Charge, Operation, StaleRules
from .limits.decision import Decision
from .limits.limit import Limit
from .limits.rate import Rate
from .overridden import Wanted, answer, asked_of, sort
from .rules.current import is_due, verified
from .rules.overrides import Asked, memory
from .rules.ruleset import Ruleset
from .signals import limit_exceeded


class WantsUser:
    """A step that asks for the request's user."""


@dataclass(frozen=True, slots=True)
class WantsGroups:
    """A step that asks for the names of the Django groups a user is in."""

    user: Any


@dataclass(frozen=True, slots=True)
class WantsRules:
    """A step that asks for the rules to go by; newer ones than those that were stale."""

    stale: StaleRules | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """A step that deletes what the limits of a call have counted."""

    call: Call


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A step that tells receivers of `limit_exceeded`."""

    arguments: dict[str, Any]


WANTS_USER = WantsUser()
Steps = Generator[Any, Any, Decision]
Choose = Callable[[Ruleset], Sequence[Site] | None]
Build = Callable[[Ruleset], Generator[Any, Any, list[Wanted] | None]]


def steps(
    request: HttpRequest,
    choose: Choose | Sequence[Site],
    group: str,
    operation: Operation = "hit",
    kept: list[Wanted] | None = None,
    everywhere: bool = False,
) -> Steps:
    """Decide what applies to a request in one call.

    `choose` is what call sites say, to which rules may have more to say; or it says itself which sites apply by the
    rules in force (None: the request is exempt). Yields an awaitable, or
    `WANTS_USER`, or another step of this module, or the `Call`; is sent what came of it; returns the decision. A
    name that was already counted for this request is not counted again. What was decided about, in the order of the
    decision's limits, is left in `kept`. With `everywhere`, those who are blocked whatever rule there is are refused
    even where no rule applies.
    """

    def build(ruleset: Ruleset) -> Generator[Any, Any, list[Wanted] | None]:
        sites = choose(ruleset) if callable(choose) else ruleset.for_sites(choose, group, request)
        if sites is None:
            return None
        return (yield from wanted_by(request, sites, group))

    def may_change(ruleset: Ruleset) -> bool:
        """Where nothing is to be counted: whether rules could say otherwise."""
        if callable(choose):
            return everywhere
        names = [(site.group or group, site) for site in choose]
        return any(
            ruleset.knows(name) or (site.applies_to(request) and name not in counted(request)) for name, site in names
        )

    return decided(request, build, operation, may_change=may_change, kept=kept, everywhere=everywhere)


def decided(
    request: HttpRequest,
    build: Build,
    operation: Operation = "hit",
    *,
    may_change: Callable[[Ruleset], bool],
    now: int | None = None,
    kept: list[Wanted] | None = None,
    everywhere: bool = False,
) -> Steps:
    """Decide what `build` wants counted by the rules in force, with whatever overrides say; see `steps`.

    `may_change`: where nothing is to be counted, whether rules could say otherwise, so that it has to be asked whether
    these are still the ones.
    """
    if not conf.ENABLE:
        return Decision(True)
    stale: StaleRules | None = None
    for attempt in range(FENCED_ATTEMPTS + 1):
        ruleset: Ruleset = yield WantsRules(stale)
        applicable = yield from build(ruleset)
        wanted = applicable or []
        blocks = everywhere and applicable is not None
        asked: list[Asked] = []
        if ruleset.kinds:
            asked = yield from asked_of(request, ruleset, wanted, blocks, WANTS_USER)
        if not wanted and not asked and not (may_change(ruleset) and is_due(ruleset)):
            return Decision(True)
        for _ in range(2):
            known = memory.look(asked)
            sorted_out = sort(wanted, known, ruleset, blocks)
            charges = [one.charge for one in sorted_out.counted]
            call = describe(
                charges, "peek" if sorted_out.refused and operation == "hit" else operation,
                now=now, ruleset=ruleset, subjects=known.subjects(),
            )  # fmt: skip
            if attempt == FENCED_ATTEMPTS:
                call = replace(call, revision=None, subjects=())
            try:
                decision: Decision = yield call
            except StaleRules as error:
                stale = error
                if not error.records:
                    break
                memory.learn([one.digest for one in asked], error.records)
            else:
                verified()
                return (yield from _finished(request, answer(decision, sorted_out), sorted_out.all, operation, kept))
    raise AssertionError("the last attempt is not fenced")  # pragma: no cover


def _finished(
    request: HttpRequest,
    decision: Decision,
    wanted: Sequence[Wanted],
    operation: Operation,
    kept: list[Wanted] | None,
) -> Steps:
    if kept is not None:
        kept += wanted
    if operation != "hit":
        return decision
    rules = [one.name for one in wanted if one.rule is not None]
    if rules:
        counted(request).update(rules)
    if decision.source != "fallback" and not all(state.allowed for state in decision.limits):
        for one, state in zip(wanted, decision.limits, strict=False):
            if state.allowed:
                continue
            if one.rule is not None:
                tally.add(one.rule, state.mode)
            if limit_exceeded.receivers:
                yield Exceeded(
                    {
                        "limit": state.name,
                        "rule": one.rule,
                        "identity": one.charge.digest.decode(),
                        "mode": state.mode,
                        "decision": decision,
                        "request": request,
                    }
                )
    return decision


def wanted_by(request: HttpRequest, sites: Sequence[Site], group: str) -> Generator[Any, Any, list[Wanted]]:
    """What sites want counted for a request."""
    wanted: list[Wanted] = []
    taken: set[tuple[bytes, bytes]] = set()
    mixed = len({site.block for site in sites}) > 1
    for site in sites:
        name = site.group or group
        if not site.applies_to(request) or name in counted(request):
            continue
        if not (yield from _is_about(site, request)):
            continue
        numbers = yield from _tier(site, request)
        rates = [rate for rate in (yield from _rates(numbers, name, request)) if rate is not None]
        if not rates:
            continue
        cost = (yield from called(site.cost, name, request)) if callable(site.cost) else site.cost
        user = (yield WANTS_USER) if site.key.needs_user else None
        who = digest((yield from called(site.key.read, name, request, user)))
        for rate in rates:
            charge = Charge(_limit(numbers, name, rate, who, taken), who, cost)
            if mixed and not site.block:
                charge = replace(charge, limit=charge.limit.advising())
            wanted.append(Wanted(charge, name, site, name if site.rule else None))
    return wanted


def called(function: Callable[..., Any], *arguments: Any) -> Generator[Any, Any, Any]:
    """Call a function of the user's, and have it waited for if it is a coroutine's."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = yield value
    return value


def _rates(site: Site, group: str, request: HttpRequest) -> Generator[Any, Any, list[Rate | None]]:
    rates: list[Rate | None] = []
    for rate in site.rates:
        if callable(rate):
            rate = yield from called(rate, group, request)
            rate = None if rate is None else Rate.parse(rate)
        rates.append(rate)
    return rates


def _is_about(site: Site, request: HttpRequest) -> Generator[Any, Any, bool]:
    """Whether the request's user is of the site's audience."""
    if "everyone" in site.audience:
        return True
    user = yield WANTS_USER
    if not user.is_authenticated:
        return "anonymous" in site.audience
    if "authenticated" in site.audience or ("staff" in site.audience and user.is_staff):
        return True
    wanted = {one.removeprefix("group:") for one in site.audience if one.startswith("group:")}
    return bool(wanted) and not wanted.isdisjoint((yield WantsGroups(user)))


def _tier(site: Site, request: HttpRequest) -> Generator[Any, Any, Site]:
    """The numbers for the user's most favourable tier, or the site's own."""
    if site.tiers:
        user = yield WANTS_USER
        if user.is_authenticated:
            groups = yield WantsGroups(user)
            return next((tier for name, tier in site.tiers if name in groups), site)
    return site


def _limit(site: Site, group: str, rate: Rate, who: bytes, taken: set[tuple[bytes, bytes]]) -> Limit:
    """The site's limit for a rate, under a name that no other of this call has for the same identity."""
    ordinal = 1
    limit = site.limit(group, rate)
    while (who, limit.key_part) in taken:
        ordinal += 1
        limit = site.limit(group, rate, ordinal)
    taken.add((who, limit.key_part))
    return limit


def counted(request: HttpRequest) -> set[str]:
    """The names of the rules that were counted for a request."""
    names: set[str] = vars(request).setdefault("_ratelimit_counted", set())
    return names


def _has_groups(user: Any) -> bool:
    return hasattr(user, "groups")


def run(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision, blocking where they have to be waited for."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
            while isinstance(step, Call):
                try:
                    value = check(step)
                except StaleRules as stale:
                    step = steps.throw(stale)
                else:
                    step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, WantsRules):
            value = rules(step.stale)
        elif isinstance(step, WantsUser):
            value = getattr(request, "user", None)
            if value is None:
                raise user_missing()
        elif isinstance(step, Forget):
            forget(step.call)
        elif isinstance(step, WantsGroups):
            kept = vars(step.user)
            if "_ratelimit_groups" not in kept:
                names = step.user.groups.values_list("name", flat=True) if _has_groups(step.user) else ()
                kept["_ratelimit_groups"] = frozenset(names)
            value = kept["_ratelimit_groups"]
        elif isinstance(step, Exceeded):
            limit_exceeded.send_robust(Decision, **step.arguments)
        else:
            value = async_to_sync(_awaited)(step)


async def arun(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision in a coroutine."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
            while isinstance(step, Call):
                try:
                    value = await acheck(step)
                except StaleRules as stale:
                    step = steps.throw(stale)
                else:
                    step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, WantsRules):
            value = await arules(step.stale)
        elif isinstance(step, WantsUser):
            if not hasattr(request, "auser"):
                raise user_missing()
            value = await request.auser()
        elif isinstance(step, Forget):
            await aforget(step.call)
        elif isinstance(step, WantsGroups):
            kept = vars(step.user)
            if "_ratelimit_groups" not in kept:
                names = step.user.groups.values_list("name", flat=True) if _has_groups(step.user) else None
                kept["_ratelimit_groups"] = frozenset([name async for name in names] if names is not None else ())
            value = kept["_ratelimit_groups"]
        elif isinstance(step, Exceeded):
            await limit_exceeded.asend_robust(Decision, **step.arguments)
        else:
            value = await step


async def _awaited(step: Any) -> Any:
    return await step
