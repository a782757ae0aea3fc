"""The one path of a decision: plan by the rules in force, call Redis, and plan again if the rules
were stale.

A face (`web`, or `RateLimiter`, which has no request) supplies the plan. The deny cache, the leases
and the fallback answer in place of Redis.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from functools import partial
from logging import DEBUG
from typing import Any, NamedTuple, Protocol

from asgiref.sync import sync_to_async

from ..conf import conf
from ..exceptions import StoreError
from ..extension import decision_hooks
from ..identity import Identity
from ..identity.request_state import RequestState
from ..limits.algorithms.concurrency import new_slot
from ..limits.call import Call, Charge, Operation, StaleRules, Subject
from ..limits.decision import Decision, LimitState
from ..limits.rate import duration, time_us
from ..rules import provider
from ..rules.freshness import freshness
from ..rules.overrides import override_cache
from ..rules.provider import current, load
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..store import FOREVER, Patience, get_store
from .bans import known_bans, telling
from .counters import counters
from .decision_log import log_decision
from .decision_log import logger as decision_logger
from .deny_cache import deny_cache
from .evidence import drop_evidence, evidence_notes
from .fallback import fallback_limiter
from .leases import decide_here, leases, may_have_more
from .listener import listener
from .run import Wait, Waiting, arun, run, settling
from .slots import HeldSlot, held_slots

FENCED_ATTEMPTS = 3
"""How often a call may find its rules stale before it uses those loaded last, which are newer than
its request anyway.
"""

RULES_SHARE = 4
"""The part of the timeout that a separate comparison of the rules may take. If the master with the
rules hangs, the others keep the time to decide.
"""

clock: Callable[[], int] | None = None
"""The clock that a test has put in place of Redis's: microseconds since 1970."""


class PlannedCharge(NamedTuple):
    """A charge, and the reason for it.

    - `name`: the name for its limit; `rule`: the rule or call site that makes it (None: a throttle
      or a `RateLimiter`); `owner`: the face that gets the answer;
    - `blocked`: the state that an override sets in place of the limit. Then nothing is counted;
      `subject`: the digest of the override's subject;
    - `identity`: the charged identity, for statistics; `banned`: the identity to ban, if it
      differs.
    """

    charge: Charge
    name: str
    rule: Rule | None = None
    owner: object = None
    blocked: LimitState | None = None
    subject: bytes = b""
    identity: Identity = None
    banned: Identity = None


class Plan(NamedTuple):
    """What to decide: the charges in the order of the decision's limits, and the call for those
    that are not blocked.

    `exempt`: charges that an override has removed.
    """

    call: Call
    charges: Sequence[PlannedCharge]
    exempt: Sequence[PlannedCharge] = ()


class DecidedCharge(NamedTuple):
    """The result of a planned charge: the state of its limit, and the token that gives its units
    back, which is the moment from which they count, in microseconds since 1970, or 0 for the
    latest.

    None: it took no units. `slot`: the slot that is held and by which it is released; empty: none.
    """

    planned: PlannedCharge
    state: LimitState
    token: int | None
    slot: bytes = b""

    @property
    def charge(self) -> Charge:
        return self.planned.charge


class Outcome(NamedTuple):
    """The result of a plan: the decision, the planned charges in the order of the decision's
    limits, and whether units were taken that can be given back; `slot`: the requested slot.
    """

    decision: Decision
    planned: Sequence[PlannedCharge] = ()
    took: bool = False
    slot: bytes = b""

    @property
    def charges(self) -> list[DecidedCharge]:
        """The result of each charge."""
        decision, decided = self.decision, []
        for planned, state in zip(self.planned, decision.limits, strict=False):
            charge, token = planned.charge, None
            if charge.limit.holds:
                # Also if this process gave it, without Redis.
                is_held = decision.allowed and bool(self.slot) and state.counted_at > 0
                held = (state.counted_at, self.slot) if is_held else (None, b"")
                decided.append(DecidedCharge(planned, state, *held))
                continue
            # A refusal takes no units, except from limits that count refused hits.
            is_counted = decision.allowed or (charge.limit.count_denied and state.counted_at)
            if self.took and state.allowed and charge.cost and is_counted:
                token = state.counted_at or decision.counted_at(charge.digest)
            decided.append(DecidedCharge(planned, state, token))
        return decided

    @property
    def held(self) -> list[DecidedCharge]:
        """The charges that hold slots. The caller has to release them, see `holding.Held`."""
        return [decided for decided in self.charges if decided.slot] if self.slot else []


class Planner(Protocol):
    """What a face supplies for one decision.

    - `units`: the units granted while rate limiting is switched off; `is_hit`: whether it is a hit,
      which `Extension.on_decision` counts; `charges`: the charges gathered so far;
    - `request`: the request; `state`: the state stored on it (None: the hit counts as a request of
      its own).
    """

    units: int
    is_hit: bool
    charges: Sequence[PlannedCharge]

    @property
    def state(self) -> RequestState | None: ...
    @property
    def request(self) -> Any: ...

    def gather(self, ruleset: Ruleset) -> Iterable[Call | Wait]:
        """Find out all that planning needs by these rules.

        May raise what users' functions raise.
        """

    def plan(self, ruleset: Ruleset) -> Plan:
        """The plan, made from what was gathered."""

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Record the outcome. The returned waits are performed one after the other."""


def decide(planner: Planner) -> Outcome:
    """Decide what a planner plans. Raises only what the planner raises."""
    patience = Patience(conf.TIMEOUT)
    return run(deciding(planner, patience), patience)


async def adecide(planner: Planner) -> Outcome:
    """`decide`, without blocking the event loop."""
    patience = Patience(conf.TIMEOUT)
    return await arun(deciding(planner, patience), patience)


def deciding(planner: Planner, patience: Patience) -> Waiting[Outcome]:
    """The one loop of "the rules were stale: load them and plan again".

    If it is stopped, by an interruption or an error, the slot that was asked for is released: the
    caller does not hold it yet.
    """
    if not conf.ENABLE:
        return Outcome(Decision(True, granted=planner.units))
    began = time.perf_counter() if decision_hooks else 0.0
    if not listener.task.is_running:
        listener.start()
    stale: StaleRules | None = None
    before: Ruleset | None = None
    call: Call | None = None
    try:
        for attempt in range(FENCED_ATTEMPTS + 1):
            ruleset = current() if stale is None else None
            if ruleset is None:
                # Waiting for a thread does not count as waiting for the store.
                ruleset = yield Wait(
                    partial(load, stale, patience), partial(sync_to_async(load), stale, patience)
                )
                if provider.is_answered:
                    patience.was_answered()
            # Or no newer rules exist than those that were stale.
            is_last = attempt == FENCED_ATTEMPTS or (
                stale is not None
                and not stale.records
                and before is not None
                and (ruleset.fence, ruleset.published) == (before.fence, before.published)
            )
            before = ruleset
            yield from planner.gather(ruleset)
            for _ in range(2):
                plan = planner.plan(ruleset)
                call = plan.call._replace(revision=None, subjects=()) if is_last else plan.call
                try:
                    decision = yield from answered(call, patience)
                except StaleRules as error:
                    stale = error
                    if not error.records:
                        break
                    # The rules are the current ones, and only overrides were not known: plan again
                    # by both.
                    override_cache.put_many(
                        [subject.digest for subject in call.subjects], error.records
                    )
                else:
                    if is_last or ruleset.published is not ruleset.revision:
                        decision = decision._replace(revision=ruleset.revision.number)
                    outcome = _outcome(plan, call, decision)
                    if decision_hooks and planner.is_hit:
                        seconds = time.perf_counter() - began
                        for on_decision in decision_hooks:
                            on_decision(
                                plan.charges, outcome.decision, seconds, plan.exempt, planner.state
                            )
                    if decision_logger.isEnabledFor(DEBUG):
                        log_decision(call.operation, outcome.planned, outcome.decision)
                    waits = planner.finish(outcome)
                    for state in outcome.decision.limits:
                        if state.ban is not None:
                            waits = (*waits, *_bans_of(planner, call, outcome))
                            break
                    for wait in waits:  # noqa: UP028 - a tuple cannot be sent what came of it
                        yield wait
                    return outcome
    except BaseException as error:
        if call is not None and call.slot and call.operation == "hit":
            yield from settling(error, _releasing_asked(call))
        raise
    raise AssertionError("the last attempt is not fenced")  # pragma: no cover


def _releasing_asked(call: Call) -> Waiting[None]:
    """Release the slot that a call asked for, without an answer."""
    charges = [charge for charge in call.charges if charge.limit.holds]
    yield from releasing(charges, call.slot)
    # And once more: on another connection, Redis may read the release before the call.
    _release_later(call, charges)


def _outcome(plan: Plan, call: Call, decision: Decision) -> Outcome:
    """The decision about what was charged, with what is blocked."""
    charges, states = plan.charges, decision.limits
    if len(states) < len(charges):
        decided = iter(states)
        states = tuple([planned.blocked or next(decided) for planned in charges])
        allowed = decision.allowed and not any(
            planned.blocked is not None and planned.blocked.enforced for planned in charges
        )
        decision = decision._replace(
            allowed=allowed, limits=states, granted=decision.granted if allowed else 0
        )
    if not decision.allowed:
        decision = decision._replace(identity=_refused_identity(charges, states))
    return Outcome(
        decision, charges, call.operation == "hit" and decision.source != "fallback", call.slot
    )


def note_offences(
    call: Call, planned: Sequence[PlannedCharge], decision: Decision, request: Any
) -> None:
    """Leave what counts towards bans as evidence."""
    for each, state in zip(planned, decision.limits, strict=False):
        ban = state.ban
        if ban is not None and ban.is_offence and decision.source == "redis":
            evidence_notes.note(call, each.charge, ban, decision.moment, request)


def _bans_of(planner: Planner, call: Call, outcome: Outcome) -> Sequence[Wait]:
    """Record the offences of a call. Return the waits that report the bans it has triggered."""
    note_offences(call, outcome.planned, outcome.decision, planner.request)
    return telling(outcome.planned, outcome.decision, planner.request)


def _refused_identity(charges: Sequence[PlannedCharge], states: Sequence[LimitState]) -> bytes:
    for planned, state in zip(charges, states, strict=True):
        if state.refuses:
            return planned.subject or planned.charge.digest
    return b""


def answered(call: Call, patience: Patience | None = None) -> Waiting[Decision]:
    """Decide a call, by Redis or in place of it.

    Raises `StaleRules` if the call uses rules that are not current. Raises nothing if Redis is
    unavailable.
    """
    if not conf.ENABLE or not (call.charges or call.revision is not None):
        return Decision(True, granted=call.units)
    denial = deny_cache.find(call)
    if denial is not None and not listener.has_news():
        return denial
    asked_at, generation = time.monotonic(), deny_cache.generation
    is_hot = bans = False
    for limit, _, _, _, _ in call.charges:
        is_hot = is_hot or limit.is_hot
        bans = bans or limit.ban is not None
    try:
        if is_hot or not call.charges or not get_store().compares_rules:
            is_apart = _is_compared_apart(call)
            if (is_apart and freshness.is_due(call)) or (
                call.revision is not None and listener.has_news()
            ):
                yield from _compare(call, patience or Patience(conf.TIMEOUT))
            if is_apart and not call.charges:
                return Decision(True, revision=call.revision_number)
        if is_hot or fallback_limiter.is_recovering:
            decision = yield from _by_process(
                call, patience or Patience(conf.TIMEOUT), is_hot=is_hot
            )
            if (
                bans and decision.source == "fallback"
            ):  # This process's share was used up, and Redis not asked.
                decision = known_bans.hold(call, decision)
        else:
            decision = yield call
    except StoreError:
        is_held = bans and call.operation == "hit" and known_bans.refuses(call)
        here = call._replace(operation="peek") if is_held else call
        decision = (
            fallback_limiter.decide(here) if call.charges else Decision(True, source="fallback")
        )
        if bans and call.operation in ("hit", "peek"):
            decision = known_bans.hold(call, decision)
        if call.slot and call.operation == "hit":
            # It is unknown whether Redis has counted them. This process has not.
            states = zip(call.charges, decision.limits, strict=True)
            _release_later(
                call,
                [charge for charge, state in states if charge.limit.holds and not state.counted_at],
            )
        return decision
    if call.operation == "refund":
        if (
            not call.slot
        ):  # Refusals for want of a slot are not remembered, and others' have not ended.
            deny_cache.forget([charge.digest for charge in call.charges])
    elif not decision.allowed and not (is_hot and may_have_more(call)):
        deny_cache.note(call, decision, asked_at, generation)
    if decision.source == "redis":
        counters.remember(call, decision.limits)
        if bans and call.banning:
            known_bans.note(call, decision)
    return decision


def _is_compared_apart(call: Call) -> bool:
    """Whether no call for its charges also compares the rules and overrides.

    On one server such a call is made for requests with overrides even if nothing is counted, as for
    blocked and exempt clients.
    """
    if not get_store().compares_rules:
        return True
    if call.charges:
        return all(charge.limit.split for charge in call.charges)
    return not any(subject.tag for subject in call.subjects)


def _compare(call: Call, patience: Patience) -> Waiting[None]:
    """Check that a call uses the current rules and overrides.

    Raises `StaleRules`. If that cannot be checked and something is to be counted, the known rules
    are used.
    """
    question = call._replace(charges=(), operation="peek", partial=False, hit_at=None)
    asked_at, share, store = (
        time.monotonic(),
        patience.share(RULES_SHARE if call.charges else 1),
        get_store(),
    )
    try:
        yield Wait(partial(store.decide, question, share), partial(store.adecide, question, share))
    except StoreError:
        if not call.charges:
            raise
    else:
        freshness.confirm_call(call, asked_at)
    finally:
        patience.take_back(share)


def _by_process(call: Call, patience: Patience, *, is_hot: bool) -> Waiting[Decision]:
    """Decide with units taken ahead, or with this process's part of a split limit."""
    asking = decide_here(call, patience) if is_hot else _asking(call)
    return (
        yield from fallback_limiter.decide_by_both(call, asking)
        if fallback_limiter.is_recovering
        else asking
    )


def _asking(call: Call) -> Generator[Call, Decision, Decision]:
    return (yield call)


def refunding(charges: Sequence[DecidedCharge]) -> Waiting[None]:
    """Give back what these charges took: exactly those units, by their tokens, and release the
    slots they hold.
    """
    by_token: dict[int, list[Charge]] = {}
    by_slot: dict[bytes, list[Charge]] = {}
    for decided in charges:
        if decided.slot:
            by_slot.setdefault(decided.slot, []).append(decided.charge)
        elif decided.token is not None:
            by_token.setdefault(decided.token, []).append(decided.charge)
    for slot, releases in by_slot.items():
        yield from releasing(releases, slot)
    for token, refunds in by_token.items():
        yield from answered(build_call(refunds, "refund")._replace(hit_at=token))


def releasing(charges: Sequence[Charge], slot: bytes) -> Waiting[None]:
    """Release a slot of these limits, and leave their queues.

    If Redis is unavailable, that is done later.
    """
    if not charges:
        return
    call = build_call(charges, "refund")._replace(slot=slot)
    keys = [(call.prefix, charge.digest, charge.limit.key_part) for charge in charges]
    held_slots.drop([held for key in keys if (held := held_slots.of(key).get(slot)) is not None])
    try:
        decision = yield from answered(call)
    except (
        GeneratorExit,
        CancelledError,
    ):  # The event loop ends. Garbage takes no lock, and the slot ends by itself.
        raise
    except BaseException:
        _release_later(call, charges)
        raise
    if decision.source == "fallback":
        _release_later(call, charges)


def confirming(charges: Sequence[Charge], slot: bytes) -> Waiting[bool]:
    """Confirm a slot of these limits, which was taken with `Call.confirm_ms`.

    False: it has ended. True also if Redis is unavailable: the decision that gave the slot stands.
    """
    try:
        decision: Decision = yield build_call(charges, "charge", slot=slot)
    except StoreError:
        return True
    return all(state.counted_at > 0 for state in decision.limits)


def _release_later(call: Call, charges: Sequence[Charge]) -> None:
    if charges:
        held_slots.release_later([HeldSlot(call.prefix, charge, call.slot) for charge in charges])


def offending(
    charges: Sequence[PlannedCharge], units: int = 1, request: Any = None
) -> Waiting[Decision]:
    """Report offences of the identities of these charges.

    The answer shows whether they have triggered a ban.
    """
    call = build_call([planned.charge._replace(cost=units) for planned in charges], "offend")
    decision = yield from answered(call)
    note_offences(call, charges, decision, request)
    for wait in telling(charges, decision, request):  # noqa: UP028 - as above
        yield wait
    return decision


def banning(
    charges: Sequence[PlannedCharge], length: str | timedelta | None, why: str
) -> Waiting[Decision]:
    """Ban the identities of these charges.

    Raises `StoreError`, and `LimitError` for an invalid duration.
    """
    units = 0 if length is None else time_us(duration(length))
    call = build_call([planned.charge._replace(cost=units) for planned in charges], "ban")._replace(
        why=why
    )
    decision: Decision = yield call
    known_bans.note(call, decision)
    for wait in telling(charges, decision):  # noqa: UP028 - as above
        yield wait
    return decision


def unbanning(charges: Sequence[PlannedCharge], *, forget: bool = False) -> Waiting[Decision]:
    """Lift the bans on the identities of these charges, in every process. Raises `StoreError`."""
    call = build_call([planned.charge._replace(cost=int(forget)) for planned in charges], "unban")
    try:
        decision: Decision = yield call
        yield Wait(partial(get_store().reset, call), partial(get_store().areset, call))
        drop = partial(drop_evidence, call.ban_keys())
        yield Wait(drop, sync_to_async(drop))
        return decision
    finally:
        digests = {charge.ban_digest for charge in call.charges}
        known_bans.forget(digests)
        deny_cache.forget(digests)


def forgetting(call: Call, *, strict: bool = False) -> Waiting[None]:
    """Delete the counts of a call's limits.

    If Redis is unavailable, they stay until they expire.

    Raises `StoreError` in that case if `strict`.
    """
    moment = FOREVER
    try:
        moment = yield Wait(partial(get_store().reset, call), partial(get_store().areset, call))
    except StoreError:
        if strict:
            raise
    finally:
        digests = {
            digest for charge in call.charges for digest in (charge.digest, charge.ban_digest)
        }
        leases.drop(dict.fromkeys(digests, moment))
        counters.forget(call)
        known_bans.forget(digests)
        deny_cache.forget(digests)


def build_call(
    charges: Sequence[Charge],
    operation: Operation = "hit",
    *,
    partial: bool = False,
    max_wait_us: int | None = None,
    longest_hold_us: int | None = None,
    now: int | None = None,
    ruleset: Ruleset | None = None,
    subjects: Sequence[Subject] = (),
    slot: bytes = b"",
    waits: bool = False,
    debt: bool = False,
) -> Call:
    """The call that decides these charges, with the settings for keys and the clock.

    `slot`, `waits`: see `Call`; a hit of concurrency limits gets a new slot if none is given.

    `max_wait_us`, `longest_hold_us`, `debt`: see `Call`; `now`: microseconds since 1970, for a
    caller with its own clock; `ruleset`: the rules it uses, if they have to be the current ones;
    `subjects`: the subjects whose overrides it uses.
    """
    partial = partial and any(charge.cost for charge in charges)
    if now is None and (clock is not None or conf.CLOCK == "client"):
        now = now_us()
    if operation == "hit" and not slot:
        for charge in charges:
            if charge.limit.holds:
                slot = new_slot(conf.SLOT_SECONDS)
                break
    revision = None
    fence = b""
    if ruleset is None or ruleset.fence is None:
        subjects = ()
    else:
        revision = ruleset.published
        fence = ruleset.fence
        if revision is not ruleset.revision:
            subjects = ()  # No override exists, so the cached ones hold.
    return Call(
        charges,
        operation,
        conf.CACHE_PREFIX,
        now,
        max_wait_us,
        partial,
        revision,
        fence,
        subjects=subjects,
        longest_hold_us=longest_hold_us,
        slot=slot,
        waits=waits,
        debt=debt,
    )


def now_us() -> int:
    """Microseconds since 1970 by this process's clock, by which overrides begin and end."""
    return time.time_ns() // 1000 if clock is None else clock()


held_slots.time_of_calls = lambda: build_call([], "peek").now
