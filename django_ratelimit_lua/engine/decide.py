"""The path of a decision: plan by the rules, call Redis, and plan again if the rules were stale.

The caller (`web`, or `RateLimiter`, which has no request) supplies the plan. The deny cache, the
leases or the fallback may decide instead of Redis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import partial
from logging import DEBUG
from typing import Any, Protocol

from asgiref.sync import sync_to_async

from ..conf import conf
from ..exceptions import StoreError
from ..extension import decision_hooks
from ..identity.request_state import RequestState
from ..limits.algorithms.concurrency import new_slot
from ..limits.call import Call, Charge, Operation, Revision, StaleRules
from ..limits.decision import Decision
from ..limits.rate import duration, time_us
from ..process import Clock
from ..rules import provider
from ..rules.provider import get_ruleset, load_ruleset
from ..rules.ruleset import Ruleset
from ..rules.status import freshness
from ..store import Deadline, flusher, get_store
from . import DecidedCharge
from .bans import ban_list, report_bans
from .deny_cache import deny_cache
from .heartbeat import heartbeat
from .leases import leases
from .listener import listener
from .local import LocalPart, local_counts
from .logs import log_decision
from .logs import logger as decision_logger
from .run import Wait, Waiting, arun, run, settling
from .slots import held_slots

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


class Planner(Protocol):
    """The interface through which a caller (see the module) supplies one decision's plan.

    - `units`: the units that are granted if no limit applies;
    - `is_hit`: whether the operation is a hit, which `Extension.on_decision` counts;
    - `charges`: the planned charges, in the order of the decision's limits;
    - `exempt`: the charges that an override has removed, for `Extension.on_decision`;
    - `request`: the request;
    - `state`: the state stored on the request (None: the hit counts as a request of its own).
    """

    units: int
    is_hit: bool
    charges: Sequence[DecidedCharge]
    exempt: Sequence[DecidedCharge]

    @property
    def state(self) -> RequestState | None: ...
    @property
    def request(self) -> object: ...

    def gather(self, ruleset: Ruleset) -> Iterable[Call | Wait]:
        """Yield the calls and waits that planning by these rules needs.

        May raise the exceptions of users' functions.
        """

    def plan(self, ruleset: Ruleset) -> Call:
        """Set the `charges`, from what `gather` has collected.

        Return the call for those that no override blocks.
        """

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record the decision. The driver performs the returned waits in order."""


def decide(planner: Planner) -> Decision:
    """Decide the charges of a planner, and complete them.

    Raises only the exceptions of the planner.
    """
    deadline = Deadline(conf.TIMEOUT)
    return run(deciding(planner, deadline), deadline)


def adecide(planner: Planner) -> Coroutine[Any, Any, Decision]:
    """`decide`, without blocking the event loop."""
    deadline = Deadline(conf.TIMEOUT)
    return arun(deciding(planner, deadline), deadline)


def deciding(planner: Planner, deadline: Deadline) -> Waiting[Decision]:
    """Plan by the rules, decide the call, and report the decision.

    If the rules were stale, newer ones are loaded, and all is repeated. If an interruption or an
    error stops it, the requested slot is released: the caller does not hold it yet.
    """
    if not conf.ENABLE:
        return Decision(True, granted=planner.units)
    began = Clock.perf_counter()
    if not listener.task.is_running:
        listener.task.start()
    call: Call | None = None
    stale: StaleRules | None = None
    try:
        for attempt in range(FENCED_ATTEMPTS + 1):
            ruleset = get_ruleset() if stale is None else None
            if ruleset is None:
                ruleset = yield from _loading_rules(stale, deadline)
            # If there are no newer rules than those that were stale, they decide.
            has_no_newer = call is not None and call.revision == ruleset.published
            is_last = has_no_newer or attempt == FENCED_ATTEMPTS
            yield from planner.gather(ruleset)
            call = planner.plan(ruleset)
            if is_last:
                call = call._replace(revision=None)
            try:
                decision = yield from deciding_call(call, deadline)
            except StaleRules as error:
                stale = error
                continue
            if is_last or ruleset.published is not ruleset.revision:
                decision = decision._replace(revision=ruleset.revision.number)
            return (yield from _finishing(planner, call, decision, began))
    except BaseException as error:
        if call is not None and call.slot and call.operation == "hit":
            # If Redis reads the release first, on another connection, the slot ends by itself.
            held = [charge for charge in call.charges if charge.limit.holds]
            yield from settling(error, releasing(held, call.slot))
        raise
    raise AssertionError("the last attempt does not check the revision")  # pragma: no cover


def _finishing(planner: Planner, call: Call, decision: Decision, began: float) -> Waiting[Decision]:
    """Complete a decision and its charges, and report them. Return the whole decision."""
    if not planner.charges:
        decision = decision._replace(granted=planner.units)
    decision = complete(planner.charges, call, decision)
    if decision_hooks or decision_logger.isEnabledFor(DEBUG):
        _report(planner, call, decision, Clock.perf_counter() - began)
    for wait in planner.finish(decision):  # noqa: UP028 - it takes no results
        yield wait
    if [state for state in decision.limits if state.ban is not None and state.ban.is_new]:
        yield from report_bans(planner.charges, decision, planner.request)
    return decision


def _loading_rules(
    stale: StaleRules | None = None, deadline: Deadline | None = None
) -> Waiting[Ruleset]:
    """Load the rules: for the first time, or because others were stale."""
    ruleset: Ruleset = yield Wait(
        partial(load_ruleset, stale, deadline),
        partial(sync_to_async(load_ruleset), stale, deadline),
    )
    # Waiting for a thread does not count as waiting for the store.
    if deadline is not None and provider.is_answered:
        deadline.extend()
    return ruleset


def _report(planner: Planner, call: Call, decision: Decision, seconds: float) -> None:
    """Report a decision to optional apps and to the log."""
    if decision_logger.isEnabledFor(DEBUG):
        log_decision(call.operation, planner.charges, decision)
    if planner.is_hit:
        for on_decision in decision_hooks:
            on_decision(planner.charges, decision, seconds, planner.exempt, planner.state)


def complete(charges: Sequence[DecidedCharge], call: Call, decision: Decision) -> Decision:
    """Add the results of a call to its charges.

    Return the decision about all charges, with the states of those that an override blocks.
    """
    if len(decision.limits) < len(charges):
        decision = _add_blocked(charges, decision)
    is_refundable = call.operation == "hit" and decision.source != "fallback"
    for decided, state in zip(charges, decision.limits, strict=True):
        decided.state = state
        limit, digest, cost = decided.charge
        if not decision.allowed and state.refuses and not decision.identity:
            decision = decision._replace(identity=decided.blocked_by or digest)
        if limit.holds:
            # Also if this process granted it, without Redis.
            if decision.allowed and call.slot and state.counted_at:
                decided.token = state.counted_at
                decided.slot = call.slot
            continue
        # A refusal takes no units, except from limits that count refused hits.
        is_taken = state.allowed and (decision.allowed or limit.count_denied)
        if is_refundable and is_taken and cost:
            decided.token = state.counted_at or None
    return decision


def _add_blocked(charges: Sequence[DecidedCharge], decision: Decision) -> Decision:
    """Return a decision with the states of the charges that overrides block, which the plan set."""
    states = iter(decision.limits)
    limits = [decided.state if decided.blocked_by else next(states) for decided in charges]
    if any(decided.blocked_by and decided.state.refuses for decided in charges):
        decision = decision._replace(allowed=False, granted=0)
    return decision._replace(limits=tuple(limits))


def deciding_call(call: Call, deadline: Deadline | None = None) -> Waiting[Decision]:
    """Decide a call, in the first of these steps that can.

    1. The deny cache repeats a refusal.
    2. The rules are compared, unless the deciding call compares them.
    3. This process decides by its leases and splits.
    4. Redis decides the rest.
    5. If Redis is unavailable, the fallback decides.

    Raises `StaleRules` if the call uses rules that are not current. Raises nothing if Redis is
    unavailable.
    """
    if not conf.ENABLE or not (call.charges or call.revision is not None):
        return Decision(True, granted=call.units)
    if deny_cache.entries:
        denial = deny_cache.find(call)
        if denial is not None and not listener.check_for_news():
            return denial
    asked_at = Clock.monotonic()
    generation = deny_cache.generation
    deadline = deadline or Deadline(conf.TIMEOUT)
    if not (heartbeat.is_started and flusher.is_running):
        _start_heartbeats(call)
    compares_rules = get_store().compares_rules
    hot = [charge for charge in call.charges if charge.limit.is_hot]
    is_for_redis = len(hot) < len(call.charges)
    if not call.charges:  # For example because the client of a request is blocked or exempt.
        is_for_redis = compares_rules and call.has_overrides
    try:
        if not (is_for_redis and compares_rules):
            yield from _comparing(call, deadline)
        if hot:
            decision = yield from _deciding_here(call, deadline)
        elif is_for_redis:
            decision = yield call
        else:
            decision = Decision(True, revision=call.revision_number)
    except StoreError:
        return local_counts.decide(call, in_outage=True)
    if call.operation == "refund" and not call.slot:  # Refusals for want of a slot are not cached.
        deny_cache.forget([charge.digest for charge in call.charges])
    elif not decision.allowed:
        deny_cache.add(call, decision, asked_at, generation)
    return decision


def _start_heartbeats(call: Call) -> None:
    """Start heartbeats if the number of processes may decide the call, now or in an outage."""
    for limit, _digest, _cost in call.charges:
        if limit.split or (limit.on_store_error or conf.ON_STORE_ERROR) == "local":
            heartbeat.start()
            return


def _deciding_here(call: Call, deadline: Deadline) -> Waiting[Decision]:
    """Decide a call by leases and splits, and the rest of it in Redis. Raises `StoreError`."""
    part = LocalPart(call)
    decision_on_rest: Decision | None = None
    try:
        yield from part.taking(deadline)
        if part.rest:
            decision_on_rest = yield part.call_for_rest()
    except BaseException:
        part.give_back()
        raise
    return part.complete(decision_on_rest)


def _comparing(call: Call, deadline: Deadline) -> Waiting[None]:
    """Check that a call uses the current rules, unless that was done a moment ago.

    Raises `StaleRules` if not. If Redis is unavailable and the call has charges, the known rules
    are used.
    """
    if call.revision is None or not (freshness.claim_comparison(call) or listener.check_for_news()):
        return
    comparison = call._replace(charges=(), operation="peek", partial=False, hit_at=None)
    share = deadline.share(RULES_SHARE if call.charges else 1)
    store = get_store()
    asked_at = Clock.monotonic()
    try:
        yield Wait(
            partial(store.decide, comparison, share), partial(store.adecide, comparison, share)
        )
    except StoreError:
        if not call.charges:
            raise
    else:
        freshness.confirm(call.fence, call.revision, asked_at)
    finally:
        deadline.spend_share(share)


def refunding(charges: Sequence[DecidedCharge]) -> Waiting[None]:
    """Refund the units that these charges took, by their tokens, and release their slots."""
    by_token: dict[int, list[Charge]] = {}
    by_slot: dict[bytes, list[Charge]] = {}
    for decided in charges:
        if decided.slot:
            by_slot.setdefault(decided.slot, []).append(decided.charge)
        elif decided.token is not None:
            by_token.setdefault(decided.token, []).append(decided.charge)
    for slot, releases in by_slot.items():
        held_slots.drop([held for held in held_slots.all() if held.slot == slot])
        yield from releasing(releases, slot)
    for token, refunds in by_token.items():
        yield from deciding_call(build_call(refunds, "refund")._replace(hit_at=token))


def peeking(charges: Sequence[DecidedCharge]) -> Waiting[Decision]:
    """Read the states of these charges, and complete them.

    Raises `StoreError` if Redis is unavailable.
    """
    call = build_call([planned.charge for planned in charges], "peek")
    decision = yield from deciding_call(call)
    if decision.source == "fallback":
        raise StoreError("Redis is unavailable")
    return complete(charges, call, decision)


def releasing(charges: Sequence[Charge], slot: bytes) -> Waiting[None]:
    """Release a slot of these limits. If Redis is unavailable, the slot ends by itself."""
    held_slots.cancel(slot)
    if charges:
        yield from deciding_call(build_call(charges, "refund", slot=slot))


def rules_in_use() -> Waiting[Ruleset | None]:
    """Return the rules of this process, which are loaded first if they are not yet.

    Nothing is loaded if limits are not enabled; the result may be None then.
    """
    ruleset = get_ruleset()
    if conf.ENABLE:
        if not listener.task.is_running:
            listener.task.start()
        if ruleset is None:
            ruleset = yield from _loading_rules()
    return ruleset


def banning(
    charges: Sequence[DecidedCharge], length: str | timedelta | None, why: str
) -> Waiting[Decision]:
    """Ban the identities of these charges.

    Raises `StoreError`, and `LimitError` for an invalid duration.
    """
    units = 0 if length is None else time_us(duration(length))
    call = build_call([planned.charge._replace(cost=units) for planned in charges], "ban")
    decision = complete(charges, call, (yield call))
    yield from report_bans(charges, decision, why=why)
    return decision


def unbanning(charges: Sequence[DecidedCharge], *, forget: bool = False) -> Waiting[Decision]:
    """Lift the bans on the identities of these charges, in every process. Raises `StoreError`."""
    call = build_call([planned.charge._replace(cost=int(forget)) for planned in charges], "unban")
    try:
        decision: Decision = yield call
        yield from _resetting(call)
        return decision
    finally:
        deny_cache.forget({charge.digest for charge in call.charges})


def _resetting(call: Call) -> Waiting[None]:
    """Delete the counts of a call, and remove its bans from the list. Raises `StoreError`."""
    yield Wait(partial(get_store().reset, call), partial(get_store().areset, call))
    ban_keys = call.ban_keys()
    if ban_keys:
        remove = partial(ban_list.remove, ban_keys)
        yield Wait(remove, sync_to_async(remove))


def forgetting(call: Call, *, strict: bool = False) -> Waiting[None]:
    """Delete the counts of a call's limits.

    If Redis is unavailable, the counts stay until they expire. With `strict`, `StoreError` is
    raised in that case.
    """
    try:
        yield from _resetting(call)
    except StoreError:
        if strict:
            raise
    finally:
        digests = {charge.digest for charge in call.charges}
        leases.drop(digests)
        local_counts.forget(call)
        deny_cache.forget(digests)


def build_call(
    charges: Sequence[Charge],
    operation: Operation = "hit",
    *,
    partial: bool = False,
    now: int | None = None,
    ruleset: Ruleset | None = None,
    slot: bytes = b"",
    **options: Any,
) -> Call:
    """Return the call that decides these charges, with the settings for keys and the clock.

    Args:
        charges: What to decide.
        operation: What to do with the charges.
        partial: Whether to grant as many units as are available.
        now: Microseconds since 1970, for a caller with its own clock.
        ruleset: The rules that the caller uses, if they have to be the current ones.
        slot: A slot. A hit of concurrency limits gets a new one by default.
        options: Further fields of `Call`.
    """
    partial = partial and any(charge.cost for charge in charges)
    if now is None and clock is not None:
        now = clock()
    if operation == "hit" and not slot:
        for charge in charges:
            if charge.limit.holds:
                slot = new_slot(conf.SLOT_SECONDS)
                break
    revision: Revision | None = None
    fence = b""
    if ruleset is not None and ruleset.fence is not None:
        revision = ruleset.published
        fence = ruleset.fence
    return Call(
        charges,
        operation,
        conf.CACHE_PREFIX,
        now,
        partial,
        revision,
        fence,
        slot=slot,
        **options,
    )


def now_us() -> int:
    """Return this process's time in microseconds since 1970, by which overrides begin and end."""
    return time.time_ns() // 1000 if clock is None else clock()


held_slots.time_of_calls = lambda: build_call([], "peek").now
