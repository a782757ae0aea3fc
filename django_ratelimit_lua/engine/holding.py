"""Holding slots of concurrency limits, from the decision that grants them until their release.

A caller whose decision has granted slots immediately makes a `Held` of them, and releases that
when the work is done: for a request, when its response is closed. Until then the slots are renewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from ..conf import conf
from ..identity.names import printable
from ..limits.decision import Decision
from .decide import releasing
from .decided_charge import DecidedCharge
from .run import Waiting, arun, in_thread, run, to_the_end
from .slots import HeldSlot, held_slots

MOMENT = 0.25
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
        self._slots = [
            HeldSlot(
                conf.CACHE_PREFIX, decided.charge, decided.slot, printable(what), is_local=is_local
            )
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
        mine = held_slots.drop(slots)
        if mine:
            yield from releasing([held.charge for held in mine], mine[0].slot)
