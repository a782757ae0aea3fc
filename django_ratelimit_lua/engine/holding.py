"""Holding slots of concurrency limits: from the decision that gives them until they are released.

Whoever got an outcome with slots makes a `Held` of it at once, and releases that when the work is done: for a request,
when its response is closed. Meanwhile they are renewed.

Who waits for a slot stands in a queue in Redis, in the order of arrival, and asks again some ten times a second, less
often far behind. Whoever is interrupted meanwhile leaves the queue, and whatever was given in the same moment, by the
slot that was asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

from ..conf import conf
from ..extension import decision_hooks
from ..identity.names import shown
from ..limits.algorithms.concurrency import new_slot
from ..process.forks import chance
from .decide import DecidedCharge, Outcome, Planner, adecide, decide, refunding, releasing
from .evidence import printable
from .run import Wait, Waiting, arun, in_thread, run, settling, to_the_end
from .slots import HeldSlot, held_slots

FIRST_PAUSE, PAUSE, LONGEST_PAUSE = 0.02, 0.1, 0.5
"""Seconds until who waits asks again: the first time, as a rule, and far behind in the queue; well below the two
seconds after which a place in the queue is lost."""

MOMENT = 0.25
"""Seconds that a release takes at most, as a rule."""


class Held:
    """The slots of one outcome, which this process renews until they are released.

    `what`: what they are held for, for operators: a path, or any text. One that is forgotten without being released is
    released by the background; a child process has none of its parent's.
    """

    def __init__(self, outcome: Outcome, what: str = "") -> None:
        self.decision = outcome.decision
        self._charges = outcome.held
        self._slots = [
            HeldSlot(
                conf.CACHE_PREFIX, decided.charge, decided.slot, shown(decided.planned.identity), printable(what),
                outcome.decision.source == "fallback", _rule_of(decided),
            )
            for decided in self._charges
        ]  # fmt: skip
        if self._slots:
            held_slots.add(self._slots)

    @property
    def counters(self) -> Iterator[tuple[bytes, bytes]]:
        """What counts those that are not released: identity and limit of each."""
        return ((slot.charge.digest, slot.charge.limit.key_part) for slot in self._slots)

    @property
    def is_lost(self) -> bool:
        """Whether any of them has ended while it was held: others may have got it."""
        return any(slot.is_lost for slot in self._slots)

    def release(self) -> None:
        """Release them; does nothing where they are not held any more."""
        run(self.releasing())

    async def arelease(self) -> None:
        """`release`, for coroutines: also for one that is cancelled meanwhile, or closed."""
        if self._slots:
            await to_the_end(arun(self.releasing()))

    def release_in_thread(self) -> None:
        """`release`, where nothing can be awaited any more: a coroutine is closed."""
        if self._slots:
            in_thread(self.release)

    def release_as_garbage(self) -> None:
        """`release`, where a generator is closed, perhaps as garbage. That is collected anywhere: this thread may have
        any lock, also one that a release takes. So another one does it, and is waited for a moment only."""
        with suppress(TimeoutError):
            in_thread(self.release, seconds=MOMENT)

    def releasing(self) -> Waiting[None]:
        """`release`, for whoever drives it with other things."""
        slots, self._slots = self._slots, []
        held_slots.note_late(slots)  # The process may have been stopped until now.
        mine = {(slot.key, slot.slot) for slot in held_slots.drop(slots)}
        yield from refunding(
            [one for one, slot in zip(self._charges, slots, strict=False) if (slot.key, slot.slot) in mine]
        )

    def __del__(self) -> None:
        if getattr(self, "_slots", None):
            held_slots.abandon(self._slots)


def _rule_of(decided: DecidedCharge) -> str:
    """The rule that says how many slots there are; empty: the code does, a tier, or an override."""
    rule = decided.planned.rule
    if rule is None or rule.template is None or decided.charge.limit not in rule.template.limits(rule.name):
        return ""
    return rule.name


class Asks(Protocol):
    """Plans to take a slot: that one, and whether it is waited for. A planner that waits leaves it to us to count."""

    def __call__(self, slot: bytes, *, waits: bool) -> Planner: ...


class Seeking:
    """One who wants a slot, and waits for it for so many seconds at most (None: for as long as it takes)."""

    def __init__(self, ask: Asks, timeout: float | None) -> None:
        self._ask = ask
        self._slot = new_slot(conf.SLOT_SECONDS)
        self._waits = timeout is None or timeout > 0
        self._until = float("inf") if timeout is None else time.monotonic() + timeout
        self._planner: Planner | None = None

    def take(self) -> Outcome:
        """Take it, or be refused."""
        return run(self._steps())

    async def atake(self) -> Outcome:
        return await arun(self._steps())

    def _steps(self) -> Waiting[Outcome]:
        try:
            outcome = yield from self._asking()
        except BaseException as error:
            if self._waits:  # It may be in the queue.
                yield from settling(error, self._leaving())
            raise
        return outcome

    def _asking(self) -> Waiting[Outcome]:
        began, pause = time.perf_counter(), FIRST_PAUSE
        while True:
            self._planner = planner = self._ask(self._slot, waits=self._waits)
            outcome: Outcome = yield Wait(partial(decide, planner), partial(adecide, planner))
            place = _place(outcome) if self._waits and not outcome.decision else None
            left = self._until - time.monotonic()
            if place is None or left <= 0:
                break
            longest = min(PAUSE * max(1.0, place / 10), LONGEST_PAUSE)
            pause = min(pause, longest)
            seconds = min(pause * chance.uniform(0.9, 1.1), left)
            yield Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            pause = min(pause * 2, longest)
        if self._waits:
            for on_decision in decision_hooks:
                on_decision(outcome.planned, outcome.decision, time.perf_counter() - began, (), None)
            if not outcome.decision:
                yield from self._leaving()
        return outcome

    def _leaving(self) -> Waiting[None]:
        """Leave the queue, and what was given in the moment of an interruption."""
        planned = () if self._planner is None else self._planner.charges
        charges = [one.charge for one in planned if one.charge.limit.holds]
        yield from releasing(charges, self._slot)


def _place(outcome: Outcome) -> int | None:
    """The place in the queue of one who is refused, as far as is known: 1 is the next; None: nothing to wait for."""
    places = []
    for planned, state in zip(outcome.planned, outcome.decision.limits, strict=False):
        if state.refuses:
            # Where Redis cannot be asked there is no queue, but slots are released all the same.
            if not planned.charge.limit.holds or (state.counted_at >= 0 and outcome.decision.source != "fallback"):
                return None
            places.append(max(1, -state.counted_at))
    return max(places, default=None)
