"""The slots of concurrency limits that this process holds.

A slot lasts for `RATELIMIT_SLOT_SECONDS` after it is taken or renewed. One background task renews
all slots of the process, four times in that period. The slots of a process that is killed, stopped
or disconnected for longer end by themselves, as do slots with a garbage-collected holder.

A release names the slot: releasing it twice, or after it has ended, frees nothing. If a renewal
finds that a held slot has ended, the log and the signal `slot_lost` report it once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from weakref import WeakSet

from ..conf import conf
from ..limits.call import Charge
from ..limits.program import Program, source
from ..process import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import JobRunner, Task
from ..signals import slot_lost
from ..store import Deadline, exit_deadline, get_store

logger = logging.getLogger("django_ratelimit_lua")

RENEWALS = 4
"""How often a slot is renewed while it lasts."""
MIN_RENEWAL_SECONDS = 0.25
"""Seconds that a renewal may take at least."""
_UNITS = Struct(">I")
_PROGRAM = Program.of(source("engine/renew"))
CountKey = tuple[bytes, bytes, bytes]
"""Prefix, identity and limit."""

_signals = JobRunner()


class HeldSlot:
    """The slot of one call under one limit.

    - `slot`: its id;
    - `what`: the purpose, for the log and the signal;
    - `is_local`: this process granted the slot while Redis was unavailable, so Redis has no record
      of it;
    - `is_lost`: a renewal has found that the slot ended while it was held.
    """

    def __init__(
        self, prefix: bytes, charge: Charge, slot: bytes, what: str, *, is_local: bool
    ) -> None:
        self.prefix = prefix
        self.charge = charge
        self.slot = slot
        self.what = what
        self.is_local = is_local
        self.is_lost = False
        self.held_at = Clock.monotonic()

    @property
    def key(self) -> CountKey:
        """Return the count that the slot belongs to."""
        return self.prefix, self.charge.digest, self.charge.limit.key_part

    @property
    def redis_key(self) -> bytes:
        """Return the Redis key that contains the slot."""
        return b"%b{%b}:%b" % self.key


class HeldSlots:
    """All slots that this process holds, as long as their holders exist."""

    time_of_calls: Callable[[], int | None] = staticmethod(lambda: None)
    """The time by which calls are decided, in microseconds since 1970; None: by the server's clock.
    """

    def __init__(self) -> None:
        self._begin()
        self.task = Task(
            "slots",
            self._step,
            delay=lambda: self.interval,
            at_exit=self._release_all,
            meanwhile="held slots are not renewed, and expire",
        )
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        """Hold no slots: a child neither renews nor releases those of its parent."""
        self._lock = threading.Lock()
        self._held: WeakSet[HeldSlot] = WeakSet()
        self._reserved: dict[tuple[CountKey, bytes], HeldSlot] = {}

    @property
    def interval(self) -> float:
        """Return the seconds between two renewals."""
        return conf.SLOT_SECONDS / RENEWALS

    def all(self) -> list[HeldSlot]:
        """Return the slots that are held at the moment."""
        with self._lock:
            return list(self._held)

    def units_of(self, key: CountKey) -> int:
        """Return the units of all slots of one identity under one limit, held or reserved."""
        with self._lock:
            self._drop_expired()
            # A slot may be both for a moment.
            slots = [*self._reserved.values(), *self._held]
            units = {slot.slot: slot.charge.cost for slot in slots if slot.key == key}
        return sum(units.values())

    def _drop_expired(self) -> None:
        """Drop reserved slots that have ended. The caller holds the lock."""
        oldest = Clock.monotonic() - conf.SLOT_SECONDS
        for place, slot in list(self._reserved.items()):
            if slot.held_at < oldest:
                del self._reserved[place]

    def reserve(self, slot: HeldSlot) -> None:
        """Count a slot that this process has just granted, until its caller holds or releases it.

        If the caller is interrupted before it does either, the slot ends after its lifetime.
        """
        with self._lock:
            self._reserved[slot.key, slot.slot] = slot

    def cancel(self, name: bytes) -> None:
        """Cancel what is reserved for a slot."""
        with self._lock:
            for place in [place for place in self._reserved if place[1] == name]:
                del self._reserved[place]

    def add(self, slots: Iterable[HeldSlot]) -> None:
        """Hold these slots from now on: they are renewed until they are dropped."""
        with self._lock:
            for slot in slots:
                self._held.add(slot)
                self._reserved.pop((slot.key, slot.slot), None)
        self.task.start()

    def drop(self, slots: Iterable[HeldSlot]) -> list[HeldSlot]:
        """Stop holding these slots.

        Return those that were held until now: the caller has to release them.
        """
        with self._lock:
            dropped = [held for held in slots if held in self._held]
            self._held.difference_update(dropped)
        return dropped

    def _step(self) -> float | None:
        """Renew all slots, and return the seconds until the next time, or None without slots."""
        in_redis = [slot for slot in self.all() if not slot.is_local]
        if not in_redis:
            return None
        _report_lost(self.renew(in_redis))
        return self.interval

    def renew(self, slots: Sequence[HeldSlot]) -> list[HeldSlot]:
        """Renew these slots once. Return those that have ended, and are lost."""
        now = self.time_of_calls()  # Some servers forbid TIME in scripts.
        moment = b"" if now is None else b"%d" % now
        by_record: dict[tuple[bytes, ...], HeldSlot] = {
            (slot.redis_key, slot.slot + _UNITS.pack(slot.charge.cost)): slot for slot in slots
        }
        deadline = Deadline(max(self.interval / 2, MIN_RENEWAL_SECONDS))
        store = get_store(background=True)
        is_held = store.run_each(_PROGRAM, (moment,), list(by_record), deadline)
        ended = [by_record[record] for record, answer in is_held.items() if not answer]
        lost = self.drop(ended)  # Not those that were released meanwhile.
        for slot in lost:
            slot.is_lost = True
        return lost

    def _release_all(self) -> None:
        """Release all slots at the end of the process."""
        commands = []
        for slot in self.drop(self.all()):
            # The members of a slot of several units, see `concurrency.lua`.
            further = [slot.slot + _UNITS.pack(unit) for unit in range(2, slot.charge.cost + 1)]
            commands.append((b"ZREM", slot.redis_key, slot.slot, *further))
        if commands:
            get_store(background=True).execute_all(commands, exit_deadline())


def _report_lost(slots: Sequence[HeldSlot]) -> None:
    """Log that slots have ended while they were held, and send the signal for each."""
    losses = [_log_lost(slot) for slot in slots]
    if not losses or not slot_lost.receivers:
        return

    def send_signals() -> None:
        for loss in losses:
            slot_lost.send_robust(HeldSlots, **loss)

    # Receivers may take long. Slots that are still held are renewed during that time.
    future = _signals.submit(send_signals)
    if future is None:  # No thread can be started.
        send_signals()


def _log_lost(slot: HeldSlot) -> dict[str, object]:
    """Log that a slot has ended while it was held, and return the arguments of the signal."""
    loss = {
        "limit": slot.charge.limit.name,
        "identity": slot.charge.digest.decode(),
        "what": slot.what,
        "seconds": Clock.monotonic() - slot.held_at,
    }
    logger.warning(
        "A slot of %r ended after %.1f s while it was held%s: another client may take it",
        loss["limit"],
        loss["seconds"],
        f" for {slot.what}" if slot.what else "",
    )
    return loss


held_slots = HeldSlots()
