"""Hold a call until its turn, and hold its slots until its work is done.

- Buckets reserve a turn before the wait. A caller that is cancelled or interrupted gives exactly
  that turn back, by the moment from which its units count. All other limits reserve nothing: a
  refused caller waits and tries again, and no order is promised.
- A caller with slots granted by its decision immediately makes a `Held` of them, and releases that
  when the work is done: for a request, when its response is closed. Until then the slots are
  renewed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..conf import conf
from ..extension import decision_hooks
from ..identity.names import printable
from ..limits.decision import Decision
from ..process import Clock
from ..process.forks import chance
from . import DecidedCharge
from .decide import Planner, adecide, decide, refunding, releasing
from .run import Wait, Waiting, arun, await_to_end, run, run_in_thread, settling
from .slots import HeldSlot, held_slots

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
    """`wait_turn`, without blocking the event loop."""
    await arun(waiting_turn(seconds, charges))


def waiting_turn(seconds: float, charges: Sequence[DecidedCharge]) -> Waiting[None]:
    """`wait_turn`, as a generator for one of the drivers in `engine.run`."""
    try:
        yield _sleep(seconds)
    except BaseException as error:
        yield from settling(error, refunding(charges))
        raise


class LastAttempt(NamedTuple):
    """The last decision of `trying`, and its charges."""

    decision: Decision
    charges: Sequence[DecidedCharge]


def trying(attempt: Callable[[float], Planner], timeout: float) -> Waiting[LastAttempt]:
    """Decide again and again, until the hit is allowed, or could not be allowed in time.

    Return the last attempt. All attempts count as one hit for
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
    return LastAttempt(decision, planner.charges)


def _seconds_until_next(
    decision: Decision, charges: Sequence[DecidedCharge], pause: float, left: float
) -> float | None:
    """Return the seconds until the next attempt.

    None: the hit is allowed, or could not be allowed in time.
    """
    if decision.allowed or left <= 0:
        return None
    seconds = MIN_PAUSE
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
            seconds = max(seconds, min(pause, MAX_PAUSE, left))
        else:  # Without a growing pause, all callers would wake up for each unit that becomes free.
            seconds = max(seconds, state.retry_after, min(pause, state.period, left))
    return seconds if seconds <= left else None


def _sleep(seconds: float) -> Wait:
    return Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))


RELEASE_SECONDS = 0.25
"""Seconds that a release takes at most, as a rule."""


class Held:
    """The slots of one decision, which this process renews until they are released.

    - `what`: the purpose, for the log and the signal: a path, or any text.

    If it is garbage-collected without a release, its slots are renewed no longer, and end. A child
    process does not hold its parent's slots.
    """

    def __init__(
        self, decision: Decision, charges: Sequence[DecidedCharge], what: str = ""
    ) -> None:
        self.decision = decision
        is_local = decision.source == "fallback"
        prefix = conf.CACHE_PREFIX
        purpose = printable(what)
        self._slots = [
            HeldSlot(prefix, decided.charge, decided.slot, purpose, is_local=is_local)
            for decided in charges
            if decided.slot
        ]
        if self._slots:
            held_slots.add(self._slots)

    @property
    def counters(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the counters of the unreleased slots: the identity and limit of each."""
        return ((slot.charge.digest, slot.charge.limit.key_part) for slot in self._slots)

    @property
    def is_lost(self) -> bool:
        """Return whether a renewal has found that any of the slots ended while it was held."""
        return any(slot.is_lost for slot in self._slots)

    def release(self) -> None:
        """Release the slots. Slots that have ended are ignored."""
        run(self.releasing())

    async def arelease(self) -> None:
        """`release` for coroutines. The release is completed even if the coroutine is cancelled."""
        if self._slots:
            await await_to_end(arun(self.releasing()))

    def release_as_garbage(self) -> None:
        """Release the slots of a generator or coroutine that is closed, perhaps as garbage.

        Garbage collection can run anywhere, so this thread may hold a lock that the release takes.
        Therefore another thread releases the slots, and this one waits only for a moment.
        """
        if self._slots:
            with suppress(TimeoutError):
                run_in_thread(self.release, seconds=RELEASE_SECONDS)

    def releasing(self) -> Waiting[None]:
        """Like `release`, but as a generator for one of the drivers in `engine.run`."""
        slots = held_slots.drop(self._slots)
        self._slots = []
        if slots:  # All have one id: that of the call.
            yield from releasing([held.charge for held in slots], slots[0].slot)
