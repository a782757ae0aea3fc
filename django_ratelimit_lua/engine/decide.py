"""Where limits, identities and the store meet: one call, one decision; and what it is when Redis cannot be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from asgiref.sync import sync_to_async

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import Call, Charge, Operation, StaleRules, Subject
from ..limits.decision import Decision
from ..rules.provider import current, load
from ..rules.ruleset import Ruleset
from ..store import Patience, get_store
from .counters import counters
from .deny_cache import deny_cache
from .fallback import Steps, fallback_limiter
from .leases import decide_here, has_local_limits, leases, may_have_more

FENCED_ATTEMPTS = 3
"""How often a call may find that it went by stale rules before it goes by what was loaded last, which is newer than its
request anyway."""

clock: Callable[[], int] | None = None
"""The clock that a test has put in place of Redis's: microseconds since 1970."""


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
) -> Call:
    """The call that decides these charges, with what the settings say about keys and the clock.

    `max_wait_us`, `longest_hold_us`: see `Call`; `now`: microseconds since 1970, for a clock of the caller's own;
    `ruleset`: the rules it goes by, where it has to go by the current ones; `subjects`: whose overrides it goes by.
    """
    partial = partial and any(charge.cost for charge in charges)
    if now is None and (clock is not None or conf.CLOCK == "client"):
        now = now_us()
    if ruleset is None or ruleset.fence is None:
        return Call(charges, operation, conf.CACHE_PREFIX, now, max_wait_us, partial, longest_hold_us=longest_hold_us)
    return Call(
        charges, operation, conf.CACHE_PREFIX, now, max_wait_us, partial,
        revision=ruleset.revision, fence=ruleset.fence, subjects=subjects, longest_hold_us=longest_hold_us,
    )  # fmt: skip


def now_us() -> int:
    """Microseconds since 1970 by this process's clock, by which overrides begin and end."""
    return time.time_ns() // 1000 if clock is None else clock()


def decide(call: Call, patience: Patience | None = None) -> Decision:
    """Decide a call: in Redis, or by the failure policy where Redis cannot be asked. Never raises for the latter.

    `patience`: how long Redis may take, where that is not `RATELIMIT_TIMEOUT`. Raises `StaleRules` where the call goes
    by rules that are not the current ones.
    """
    steps = _deciding(call)
    try:
        step = next(steps)
        patience = patience or Patience(conf.TIMEOUT)
        while True:
            try:
                decision = get_store().decide(step, patience)
            except (StoreError, StaleRules) as error:
                step = steps.throw(error)
            else:
                step = steps.send(decision)
    except StopIteration as finished:
        return cast(Decision, finished.value)


async def adecide(call: Call, patience: Patience | None = None) -> Decision:
    """`check`, without blocking the event loop."""
    steps = _deciding(call)
    try:
        step = next(steps)
        patience = patience or Patience(conf.TIMEOUT)
        while True:
            try:
                decision = await get_store().adecide(step, patience)
            except (StoreError, StaleRules) as error:
                step = steps.throw(error)
            else:
                step = steps.send(decision)
    except StopIteration as finished:
        return cast(Decision, finished.value)


def _deciding(call: Call) -> Steps:
    """The calls that have to be made for a decision; usually it is the one, or none."""
    if not conf.ENABLE or not (call.charges or call.revision is not None):
        return Decision(True, granted=call.units)
    known = _known(call)
    if known is not None:
        return known
    begun = deny_cache.begin()
    steps = decide_here(call) if has_local_limits(call) else _ask(call)
    if fallback_limiter.is_recovering:
        steps = fallback_limiter.decide_by_both(call, steps)
    try:
        decision = yield from steps
    except StoreError:
        return fallback_limiter.decide(call)
    return _noted(call, decision, begun)


def _ask(call: Call) -> Steps:
    return (yield call)


def _known(call: Call) -> Decision | None:
    """The refusal that the deny cache has of a hit."""
    if call.operation != "hit" or call.now is not None or not deny_cache:
        return None
    denial = deny_cache.find(call)
    return None if denial is None else denial.answer()


def _noted(call: Call, decision: Decision, begun: tuple[float, int]) -> Decision:
    """What came of a call, for the deny cache to remember, or to forget what it is about."""
    if call.operation == "refund":
        deny_cache.forget([charge.digest for charge in call.charges])
    elif not decision.allowed and not may_have_more(call):
        deny_cache.note(call, decision, begun)
    if decision.source == "redis":
        fallback_limiter.remember(call, decision)
    return decision


def decide_by_current_rules(describe_by: Callable[[Ruleset | None], Call]) -> Decision:
    """Decide the call that the current rules make of something."""
    patience = Patience(conf.TIMEOUT)
    ruleset = rules(None, patience)
    for _ in range(FENCED_ATTEMPTS):
        try:
            return decide(describe_by(ruleset), patience)
        except StaleRules as stale:
            known, ruleset = ruleset, load(stale, patience)
            if (ruleset.fence, ruleset.revision) == (known.fence, known.revision):
                break  # Nobody knows newer ones.
    decision = decide(replace(describe_by(ruleset), revision=None), patience)
    return replace(decision, revision=ruleset.revision.number)


async def adecide_by_current_rules(describe_by: Callable[[Ruleset | None], Call]) -> Decision:
    """`check_current`, without blocking the event loop."""
    patience = Patience(conf.TIMEOUT)
    ruleset = await arules(None, patience)
    for _ in range(FENCED_ATTEMPTS):
        try:
            return await adecide(describe_by(ruleset), patience)
        except StaleRules as stale:
            known, ruleset = ruleset, await arules(stale, patience)
            if (ruleset.fence, ruleset.revision) == (known.fence, known.revision):
                break  # Nobody knows newer ones.
    return replace(
        await adecide(replace(describe_by(ruleset), revision=None), patience), revision=ruleset.revision.number
    )


def rules(stale: StaleRules | None = None, patience: Patience | None = None) -> Ruleset:
    """The rules to go by; loaded where there are none yet, or they are stale. Raises `ImproperlyConfigured`."""
    ruleset = current()
    return load(stale, patience) if ruleset is None or stale is not None else ruleset


async def arules(stale: StaleRules | None = None, patience: Patience | None = None) -> Ruleset:
    """`rules`, without blocking the event loop. Waiting for a thread does not count."""
    ruleset = current()
    return await sync_to_async(load)(stale, patience) if ruleset is None or stale is not None else ruleset


def forget(call: Call, *, strict: bool = False) -> None:
    """Delete what the limits of a call have counted; where Redis cannot be asked, it stays until it is forgotten.

    Raises `StoreError` then if `strict`.
    """
    try:
        get_store().delete(call)
    except StoreError:
        if strict:
            raise
    finally:
        _forget_here(call)


async def aforget(call: Call, *, strict: bool = False) -> None:
    """`forget`, without blocking the event loop."""
    try:
        await get_store().adelete(call)
    except StoreError:
        if strict:
            raise
    finally:
        _forget_here(call)


def _forget_here(call: Call) -> None:
    digests = {charge.digest for charge in call.charges}
    leases.drop(digests)
    counters.forget(call)
    deny_cache.forget(digests)
