"""Holding slots of concurrency limits, from the decision that grants them until their release.

A caller that receives an outcome with slots immediately makes a `Held` of it, and releases that
when the work is done: for a request, when its response is closed. Until then the slots are renewed.

A caller that waits for a slot is in a queue in Redis, in the order of arrival. It polls about ten
times a second, less often if it is far behind. If it is interrupted, it leaves the queue, and
releases a slot that was granted at the same moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from ..conf import conf
from ..extension import decision_hooks
from ..identity.names import printable, shown
from ..limits.algorithms.concurrency import new_slot
from ..process.clock import Clock
from ..process.forks import chance
from .decide import Outcome, Planner, adecide, decide, releasing
from .run import Wait, Waiting, arun, in_thread, run, settling, to_the_end
from .slots import HeldSlot, held_slots

FIRST_PAUSE = 0.02
PAUSE = 0.1
MAX_PAUSE = 0.5
"""Seconds until a waiting caller asks again: the first time, normally, and far behind in the queue.
All are well below the two seconds after which it loses its place.
"""

MOMENT = 0.25
"""Seconds that a release takes at most, as a rule."""


class Held:
    """The slots of one outcome, which this process renews until they are released.

    - `what`: the purpose, for operators: a path, or any text.

    If it is garbage-collected without a release, a background task releases the slots. A child
    process does not hold its parent's slots.
    """

    def __init__(self, outcome: Outcome, what: str = "") -> None:
        self.decision = outcome.decision
        self._slots = [
            HeldSlot(
                conf.CACHE_PREFIX,
                decided.charge,
                decided.slot,
                shown(decided.planned.identity),
                printable(what),
                is_local=outcome.decision.source == "fallback",
            )
            for decided in outcome.held
        ]
        if self._slots:
            held_slots.add(self._slots)

    @property
    def counters(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the counters of the unreleased slots: the identity and limit of each."""
        return ((slot.charge.digest, slot.charge.limit.key_part) for slot in self._slots)

    @property
    def is_lost(self) -> bool:
        """Return whether any of the slots has ended while it was held."""
        return any(slot.is_lost for slot in self._slots)

    def release(self) -> None:
        """Release the slots. Slots that have ended are ignored."""
        run(self.releasing())

    async def arelease(self) -> None:
        """`release` for coroutines. The release is completed even if the coroutine is cancelled."""
        if self._slots:
            await to_the_end(arun(self.releasing()))

    def release_as_garbage(self) -> None:
        """Release the slots of a generator or coroutine that is closed, perhaps as garbage.

        Garbage collection can run anywhere, so this thread may hold a lock that the release takes.
        Therefore another thread releases the slots, and this one waits only for a moment.
        """
        if self._slots:
            with suppress(TimeoutError):
                in_thread(self.release, seconds=MOMENT)

    def releasing(self) -> Waiting[None]:
        """Like `release`, but as a generator for one of the drivers in `engine.run`."""
        slots = self._slots
        self._slots = []
        held_slots.note_late(slots)  # The process may have been stopped until now.
        mine = held_slots.drop(slots)
        if mine:
            yield from releasing([held.charge for held in mine], mine[0].slot)

    def __del__(self) -> None:
        if getattr(self, "_slots", None):
            held_slots.abandon(self._slots)


class Seeking:
    """A caller that waits for a slot, for a maximum time (None: no maximum).

    `ask(slot, waits=...)` returns a planner that takes that slot. A planner that waits leaves it to
    this class to count the decision.
    """

    def __init__(self, ask: Callable[..., Planner], timeout: float | None) -> None:
        self._ask = ask
        self._slot = new_slot(conf.SLOT_SECONDS)
        self._waits = timeout is None or timeout > 0
        self._until = float("inf")
        if timeout is not None:
            self._until = Clock.monotonic() + timeout
        self._planner: Planner | None = None

    def take(self) -> Outcome:
        """Take a slot, waiting for it if needed, or return the refusal."""
        return run(self._steps())

    async def atake(self) -> Outcome:
        return await arun(self._steps())

    def _steps(self) -> Waiting[Outcome]:
        try:
            return (yield from self._asking())
        except BaseException as error:
            if self._waits:  # It may be in the queue.
                yield from settling(error, self._leaving())
            raise

    def _asking(self) -> Waiting[Outcome]:
        began = Clock.perf_counter()
        pause = FIRST_PAUSE
        while True:
            self._planner = planner = self._ask(self._slot, waits=self._waits)
            outcome: Outcome = yield Wait(partial(decide, planner), partial(adecide, planner))
            left = self._until - Clock.monotonic()
            if outcome.decision or not self._waits or left <= 0:
                break
            place = _place(outcome)
            if place is None:
                break
            longest = min(PAUSE * max(1.0, place / 10), MAX_PAUSE)
            pause = min(pause, longest)
            seconds = min(pause * chance.uniform(0.9, 1.1), left)
            yield Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            pause = min(pause * 2, longest)
        if self._waits:
            for on_decision in decision_hooks:
                on_decision(
                    outcome.planned, outcome.decision, Clock.perf_counter() - began, (), None
                )
            if not outcome.decision:
                yield from self._leaving()
        return outcome

    def _leaving(self) -> Waiting[None]:
        """Leave the queue, and release a slot that was granted at the moment of an interruption."""
        if self._planner is not None:
            charges = [each.charge for each in self._planner.charges]
            yield from releasing([each for each in charges if each.limit.holds], self._slot)


def _place(outcome: Outcome) -> int | None:
    """Return the place in the queue after a refusal: 1 is the next.

    None if there is nothing to wait for.
    """
    places = []
    for planned, state in zip(outcome.planned, outcome.decision.limits, strict=False):
        if state.refuses:
            # Without Redis there is no queue, but slots are released.
            if not planned.charge.limit.holds or (
                state.counted_at >= 0 and outcome.decision.source != "fallback"
            ):
                return None
            places.append(max(1, -state.counted_at))
    return max(places, default=None)
