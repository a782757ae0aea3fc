"""How what applies to a request becomes one call.

The steps of a decision are written once, as a generator that yields whatever has to be waited for; a synchronous and an
asynchronous driver wait for it, each in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from ..conf import conf
from ..engine.decide import FENCED_ATTEMPTS, build_call
from ..limits.call import Call, Operation, Revision, StaleRules
from ..limits.decision import Decision
from ..limits.rate import SECOND
from ..rules.overrides import SubjectRef, override_cache
from ..rules.provider import is_due, verified
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..signals import limit_exceeded
from ..stats.refusals import refusal_counter
from .charges import PlannedCharge, counted, plan_charges
from .overrides import apply_overrides, restore_blocked, subjects_of


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


Steps = Generator[Any, Any, Decision]
Choose = Callable[[Ruleset], Sequence[Rule] | None]
Build = Callable[[Ruleset], Generator[Any, Any, list[PlannedCharge] | None]]


def steps(
    request: HttpRequest,
    choose: Choose | Sequence[Rule],
    group: str,
    operation: Operation = "hit",
    kept: list[PlannedCharge] | None = None,
    everywhere: bool = False,
) -> Steps:
    """Decide what applies to a request in one call.

    `choose` is what call sites say, to which rules may have more to say; or it says itself which rules apply of those
    in force (None: the request is exempt). Yields an awaitable, or `WANTS_USER`, or another step, or the `Call`;
    is sent what came of it; returns the decision. A name that was already counted for this request is not counted
    again. What was decided about, in the order of the decision's limits, is left in `kept`. With `everywhere`, those
    who are blocked whatever rule there is are refused even where no rule applies.
    """

    def build(ruleset: Ruleset) -> Generator[Any, Any, list[PlannedCharge] | None]:
        rules = choose(ruleset) if callable(choose) else ruleset.for_call_sites(choose, group, request)
        if rules is None:
            return None
        return (yield from plan_charges(request, rules, group))

    return decided(request, build, operation, kept=kept, everywhere=everywhere)


def decided(
    request: HttpRequest,
    build: Build,
    operation: Operation = "hit",
    *,
    may_change: Callable[[], bool] = lambda: True,
    now: int | None = None,
    kept: list[PlannedCharge] | None = None,
    everywhere: bool = False,
) -> Steps:
    """Decide what `build` wants counted by the rules in force, with whatever overrides say; see `steps`.

    Where nothing is to be counted, it is asked all the same whether these are still the rules: others could say more of
    any call site, for other methods or for whom this one does not count. Unless no rule `may_change` anything.
    """
    if not conf.ENABLE:
        return Decision(True)
    stale: StaleRules | None = None
    went_by: tuple[bytes | None, Revision] | None = None
    for attempt in range(FENCED_ATTEMPTS + 1):
        ruleset: Ruleset = yield WantsRules(stale)
        # Or nobody knows newer ones than those that were stale.
        is_last = attempt == FENCED_ATTEMPTS or (
            (ruleset.fence, ruleset.revision) == went_by and stale is not None and not stale.records
        )
        went_by = (ruleset.fence, ruleset.revision)
        applicable = yield from build(ruleset)
        wanted = applicable or []
        blocks = everywhere and applicable is not None
        asked: list[SubjectRef] = []
        if ruleset.kinds:
            asked = yield from subjects_of(request, ruleset, wanted, blocks)
        if not wanted and not asked and not (may_change() and is_due(ruleset)):
            return Decision(True)
        for _ in range(2):
            known = override_cache.get_many(asked)
            sorted_out = apply_overrides(wanted, known, ruleset, blocks)
            charges = [one.charge for one in sorted_out.counted]
            call = build_call(
                charges, "peek" if sorted_out.refused and operation == "hit" else operation,
                longest_hold_us=round(conf.MAX_WAIT * SECOND), now=now, ruleset=ruleset, subjects=known.subjects(),
            )  # fmt: skip
            if is_last:
                call = replace(call, revision=None, subjects=())
            try:
                decision: Decision = yield call
            except StaleRules as error:
                stale = error
                if not error.records:
                    break
                override_cache.put_many([one.digest for one in asked], error.records)
            else:
                if is_last:
                    decision = replace(decision, revision=ruleset.revision.number)
                elif decision.source == "redis":
                    verified()
                return (
                    yield from _finished(
                        request, restore_blocked(decision, sorted_out), sorted_out.all, operation, kept
                    )
                )
    raise AssertionError("the last attempt is not fenced")  # pragma: no cover


def _finished(
    request: HttpRequest,
    decision: Decision,
    wanted: Sequence[PlannedCharge],
    operation: Operation,
    kept: list[PlannedCharge] | None,
) -> Steps:
    if kept is not None:
        kept += wanted
    if operation != "hit":
        return decision
    rules = [one.rule_name for one in wanted if one.rule_name is not None]
    if rules:
        counted(request).update(rules)
    if decision.source != "fallback" and not all(state.allowed for state in decision.limits):
        for one, state in zip(wanted, decision.limits, strict=False):
            if state.allowed:
                continue
            if one.rule_name is not None:
                refusal_counter.add(one.rule_name, state.mode)
            if limit_exceeded.receivers:
                yield Exceeded(
                    {
                        "limit": state.name,
                        "rule": one.rule_name,
                        "identity": one.charge.digest.decode(),
                        "mode": state.mode,
                        "decision": decision,
                        "request": request,
                    }
                )
    return decision
