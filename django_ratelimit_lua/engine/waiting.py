"""Waiting: until a reserved turn, or for the next attempt after a refusal.

Buckets reserve a turn before the wait. A caller that is cancelled or interrupted gives exactly that
turn back, by the moment from which its units count. All other limits reserve nothing: a refused
caller waits and tries again, and no order is promised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..extension import decision_hooks
from ..limits.decision import Decision
from ..process.clock import Clock
from ..process.forks import chance
from .decide import Planner, adecide, decide, refunding
from .decided_charge import DecidedCharge
from .run import Wait, Waiting, arun, run, settling

FIRST_PAUSE = 0.02
"""Minimum seconds until the second attempt. Each further pause is twice as long as the one before,
up to `MAX_PAUSE` for a slot and up to the period of a rate.
"""
MAX_PAUSE = 0.25
MIN_PAUSE = 0.001
JITTER = 0.1


def wait_turn(seconds: float, charges: Sequence[DecidedCharge]) -> None:
    """Sleep until the turn comes. If the caller is interrupted, give the turn back."""
    run(waiting_turn(seconds, charges))


async def await_turn(seconds: float, charges: Sequence[DecidedCharge]) -> None:
    """`hold`, without blocking the event loop."""
    await arun(waiting_turn(seconds, charges))


def waiting_turn(seconds: float, charges: Sequence[DecidedCharge]) -> Waiting[None]:
    """Like `hold`, but as a generator for one of the drivers in `engine.run`."""
    try:
        yield _sleep(seconds)
    except BaseException as error:
        yield from settling(error, refunding(charges))
        raise


def trying(
    attempt: Callable[[float], Planner], timeout: float
) -> Waiting[tuple[Decision, Sequence[DecidedCharge]]]:
    """Decide again and again, until the decision is not a refusal or no time is left.

    Return the last decision and its charges. All attempts count as one hit for
    `Extension.on_decision`.

    Args:
        attempt: Returns the planner of the next attempt, given the seconds that are left.
        timeout: The maximum number of seconds to wait in total; it may be infinite.
    """
    end = Clock.monotonic() + timeout
    left = timeout
    pause = FIRST_PAUSE
    while True:
        planner = attempt(left)
        planner.is_hit = False
        began = Clock.perf_counter()
        decision: Decision = yield Wait(partial(decide, planner), partial(adecide, planner))
        took = Clock.perf_counter() - began
        left = end - Clock.monotonic()
        seconds = _seconds_until_next(decision, planner.charges, pause, left)
        if seconds is None:
            break
        yield _sleep(min(seconds * chance.uniform(1.0, 1.0 + JITTER), left))
        left = max(end - Clock.monotonic(), 0.0)
        pause = 2 * seconds
    for on_decision in decision_hooks:
        on_decision(planner.charges, decision, took, (), planner.state)
    return decision, planner.charges


def _seconds_until_next(
    decision: Decision, charges: Sequence[DecidedCharge], pause: float, left: float
) -> float | None:
    """Return the seconds until the next attempt, or None if it could not succeed in time."""
    if decision or left <= 0:
        return None
    longest = MIN_PAUSE
    for decided in charges:
        limit = decided.charge.limit
        state = decided.state
        if not state.refuses:
            continue
        if state.is_block or state.retry_after is None:
            return None
        # A bucket has reserved no turn because none is in time, or because its queue is full.
        if limit.kind.is_bucket and state.wait > left:
            return None
        if limit.holds:  # A slot may be released at any moment.
            longest = max(longest, min(pause, MAX_PAUSE, left))
        else:  # Without a growing pause, all callers would wake up for each unit that becomes free.
            longest = max(longest, state.retry_after, min(pause, state.period, left))
    return longest if longest <= left else None


def _sleep(seconds: float) -> Wait:
    return Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
