"""Where limits, identities and the store meet: one call, one decision; and what it is when Redis cannot be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from .conf import conf
from .exceptions import StoreError
from .limits.call import Call, Charge, Operation
from .limits.decision import Decision, LimitState
from .store import get_store

RETRY_WHEN_CLOSED = 1.0
"""Seconds a client is told to wait when Redis cannot be asked and `RATELIMIT_ON_STORE_ERROR` is "closed"."""


clock: Callable[[], int] | None = None
"""The clock that a test has put in place of Redis's: microseconds since 1970."""


def describe(
    charges: Sequence[Charge],
    operation: Operation = "hit",
    *,
    partial: bool = False,
    max_wait_us: int | None = None,
    now: int | None = None,
) -> Call:
    """The call that decides these charges, with what the settings say about keys and the clock.

    `now`: microseconds since 1970, for a clock of the caller's own.
    """
    partial = partial and any(charge.cost for charge in charges)
    if now is None and (clock is not None or conf.CLOCK == "client"):
        now = time.time_ns() // 1000 if clock is None else clock()
    return Call(charges, operation, conf.CACHE_PREFIX, now, max_wait_us, partial)


def check(call: Call) -> Decision:
    """Decide a call: in Redis, or by the failure policy where Redis cannot be asked. Never raises for the latter."""
    if not conf.ENABLE or not call.charges:
        return _unlimited(call)
    try:
        return get_store().run(call)
    except StoreError:
        return _fallback(call)


async def acheck(call: Call) -> Decision:
    """`check`, without blocking the event loop."""
    if not conf.ENABLE or not call.charges:
        return _unlimited(call)
    try:
        return await get_store().arun(call)
    except StoreError:
        return _fallback(call)


def forget(call: Call) -> None:
    """Delete what the limits of a call have counted; where Redis cannot be asked, it stays until it is forgotten."""
    with suppress(StoreError):
        get_store().forget(call)


async def aforget(call: Call) -> None:
    """`forget`, without blocking the event loop."""
    with suppress(StoreError):
        await get_store().aforget(call)


def _wanted(call: Call) -> int:
    """The units that are granted if the call is allowed: a hit's."""
    return max((charge.cost for charge in call.charges), default=0) if call.operation == "hit" else 0


def _unlimited(call: Call) -> Decision:
    return Decision(True, granted=_wanted(call))


def _fallback(call: Call) -> Decision:
    is_open = conf.ON_STORE_ERROR == "open"
    states = tuple(
        LimitState(
            name=charge.limit.name,
            allowed=is_open or charge.limit.mode == "shadow",
            limit=charge.limit.rate.limit,
            used=0,
            remaining=charge.limit.rate.limit if is_open else 0,
            retry_after=0.0 if is_open else RETRY_WHEN_CLOSED,
            reset_after=0.0,
            wait=0.0,
            mode=charge.limit.mode,
            period=charge.limit.rate.period,
        )
        for charge in call.charges
    )
    allowed = all(state.allowed for state in states if state.enforced)
    return Decision(allowed, states, _wanted(call) if allowed else 0, source="fallback")
