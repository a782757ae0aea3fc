"""The slots of concurrency limits that this process holds.

A slot lasts for `RATELIMIT_SLOT_SECONDS` after it is taken or renewed. One call renews all slots of
a process, four times in that period, so the slots of a process that is killed, stopped or cut off
expire by themselves. A release names the slot: releasing it twice, or after it has ended, frees
nothing.

If a renewal finds that a held slot has ended (Redis has lost it, an operator has ended it), or is
too late (the process was stopped or cut off), the signal `slot_lost` and the log report it once.
After a late renewal the slot is taken again if there is room, because running work should count,
but never beyond the limit.

With each renewal a process also reports, for operators, the slots that it has held since the last
one: `holders` lists them, and `end_slot` ends one, whichever process holds it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, NamedTuple

from ..conf import conf
from ..exceptions import StoreError
from ..identity.names import Part
from ..limits.algorithms.concurrency import lasts_us
from ..limits.call import Charge
from ..limits.program import Program, source
from ..limits.rate import SECOND
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import Errand, Task
from ..signals import slot_lost
from ..store import PATIENCE, Patience, get_store, last_patience

logger = logging.getLogger("django_ratelimit_lua")

RENEWALS = 4
"""How often a slot is renewed while it lasts."""
SOON_SECONDS = 0.25
"""Seconds between two attempts if Redis is unavailable."""
LINGER_SECONDS = 30.0
"""For how long the thread waits for the next slot when none is held any more: to start one is dear.
"""
MAX_SHOWN = 1000
"""Slots of one process that operators are shown: those that are held for longest."""
MAX_LATE = 10_000
"""Slots that are to be released when Redis can be asked again; others end by themselves."""
SHOWN_LETTERS = 200
MAX_NAMES = 200
"""Number of limits for which a process reports how many slots it holds: those with the most."""
_LIST = b"slots"
"""The key of the processes that hold slots, and the prefix of the keys of their reports."""
_NUMBERS = Struct("<2d")
_PROGRAM = Program.of(source("engine/renew"))
Key = tuple[bytes, bytes, bytes]
"""Prefix, identity and limit."""

_signals = Errand()


class HeldSlot:
    """The slots of one call under one limit.

    - `identity`: the parts of the identity that operators may see;
    - `what`: the purpose, a path or any text;
    - `since`: the beginning, in seconds since 1970;
    - `held_at`, `renewed_at`, `ends_at`: the beginning, the last renewal, and the end without
      another renewal (monotonic);
    - `is_local`: this process granted the slot while Redis was unavailable. Redis never has it;
    - `is_late`: the slot may have ended in Redis, which was unavailable, and that was reported;
    - `is_lost`: the slot has ended while it was held.
    """

    def __init__(
        self,
        prefix: bytes,
        charge: Charge,
        slot: bytes,
        identity: Sequence[Part] = (),
        what: str = "",
        *,
        is_local: bool = False,
    ) -> None:
        self.prefix = prefix
        self.charge = charge
        self.slot = slot
        self.identity = identity
        self.what = what
        self.is_local = is_local
        self.since = Clock.time()
        self.held_at = Clock.monotonic()
        self.renewed_at = self.held_at
        self.is_late = False
        self.is_lost = False

    @property
    def may_be_gone(self) -> bool:
        """Return whether Redis may not have the slot."""
        return self.is_late or self.renewed_at < held_slots.outage_at

    @property
    def ends_at(self) -> float:
        return self.renewed_at + lasts_us(self.slot) / SECOND

    @property
    def key(self) -> Key:
        return self.prefix, self.charge.digest, self.charge.limit.key_part

    @property
    def redis_key(self) -> bytes:
        """Return the Redis key that contains the slot."""
        return b"%b{%b}:%b" % self.key

    @property
    def id(self) -> str:
        """Return the id that operators use for the slot."""
        return hashlib.blake2b(self.slot + self.redis_key, digest_size=16).hexdigest()

    def record(self) -> bytes:
        """Return the argument of the script for this slot."""
        return _NUMBERS.pack(self.charge.limit.rate.limit, self.charge.cost) + self.slot

    def holder(self) -> Holder:
        """Return the description of this process as a holder, for operators."""
        return Holder(
            self.id,
            self.charge.limit.name,
            self.charge.cost,
            self.charge.limit.rate.limit,
            tuple(self.identity),
            self.charge.digest.decode(),
            self.since,
            socket.gethostname(),
            os.getpid(),
            self.what[:SHOWN_LETTERS],
        )


class Holder(NamedTuple):
    """The holder of a slot, for operators.

    - `id`: the argument of `end_slot`;
    - `limit`: the limit's name;
    - `units`: the number of slots held; `of`: the total number of slots;
    - `identity`: pairs of a kind and a value, as far as `RATELIMIT_SHOW_IDENTITIES` allows;
    - `digest`: the digest of the identity, as in the keys of Redis;
    - `since`: seconds since 1970, by the clock of `host`;
    - `host`, `pid`: the process;
    - `what`: the purpose.
    """

    id: str
    limit: str
    units: int
    of: int
    identity: tuple[tuple[str, str], ...]
    digest: str
    since: float
    host: str
    pid: int
    what: str


class HeldSlots:
    """All slots that this process holds, by counter and by slot."""

    time_of_calls: Callable[[], int | None] = staticmethod(lambda: None)
    """The time by which calls are decided, in microseconds since 1970; None: by the server's clock.
    """

    outage_at = float("-inf")
    """The last moment (monotonic) at which Redis was unavailable."""

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
        # A child neither renews nor releases the slots of its parent.
        self._lock = threading.Lock()
        self._held: dict[Key, dict[bytes, HeldSlot]] = {}
        self._late: deque[HeldSlot] = deque(maxlen=MAX_LATE)
        self._abandoned: deque[HeldSlot] = deque()
        self._process = uuid.uuid4().hex.encode()
        self._is_listed = False
        self._used_at = self._due_at = Clock.monotonic()

    @property
    def interval(self) -> float:
        return conf.SLOT_SECONDS / RENEWALS

    def _patience(self) -> Patience:
        """Return the time for one call, so short that the next renewal is not late."""
        return Patience(max(self.interval / 2, SOON_SECONDS))

    def all(self) -> list[HeldSlot]:
        with self._lock:
            return [held for slots in self._held.values() for held in slots.values()]

    def of(self, key: Key) -> Mapping[bytes, HeldSlot]:
        """Return the held slots of one identity under one limit, by slot."""
        return self._held.get(key, {})

    def add(self, slots: Iterable[HeldSlot]) -> None:
        """Hold these slots from now on: they are renewed until they are dropped."""
        with self._lock:
            if not self._held:
                self._due_at = Clock.monotonic() + self.interval
            for held in slots:
                self._held.setdefault(held.key, {})[held.slot] = held
        if not self.task.start():
            self._step_without_thread()

    def drop(self, slots: Iterable[HeldSlot]) -> list[HeldSlot]:
        """Stop holding these slots.

        Return those that were held until now: the caller has to release them.
        """
        dropped = []
        with self._lock:
            self._used_at = Clock.monotonic()
            for held in slots:
                of_key = self._held.get(held.key, {})
                if of_key.get(held.slot) is held:
                    dropped.append(of_key.pop(held.slot))
                    if not of_key:
                        del self._held[held.key]
        if not self.task.is_running:
            self._step_without_thread()
        return dropped

    def release_later(self, slots: Iterable[HeldSlot]) -> None:
        """Release these slots, which are held no more, as soon as Redis is available."""
        self._late.extend(slots)
        self.task.start()

    def abandon(self, slots: Iterable[HeldSlot]) -> None:
        """Leave slots that no caller can release any more to the background task.

        It takes no lock, because garbage collection can run anywhere.
        """
        self._abandoned.extend(slots)

    def _step_without_thread(self) -> None:
        """Renew slots without a thread, in a call that takes or releases one, if it is time."""
        if Clock.monotonic() >= self._due_at:
            self._due_at = Clock.monotonic() + self.interval
            with suppress(StoreError):
                self._step()

    def _step(self) -> float | None:
        while self._abandoned:
            self._late.extend(self.drop([self._abandoned.popleft()]))
        self._release_late()
        held = self.all()
        if held:
            self._used_at = Clock.monotonic()
            unasked = self.renew(held)
            if unasked or self._late:
                return min(SOON_SECONDS, self.interval)
        # In a cluster, another node may have the list. Slots are renewed nevertheless.
        with suppress(StoreError):
            self._report(self.all())  # Of those above, some have ended.
        if held or Clock.monotonic() - self._used_at < LINGER_SECONDS:
            return self.interval
        return None

    def renew(self, held: Sequence[HeldSlot]) -> list[HeldSlot]:
        """Renew these slots once. Return those for which Redis gave no reply.

        Slots that Redis may not know are taken there, if there is room: those held during an
        outage, and those that could not be renewed in time. Slots granted without Redis are not
        reported to it.
        """
        held = [slot for slot in held if not slot.is_local]
        self.note_late(held)
        unknown = [slot for slot in held if slot.may_be_gone]
        known = [slot for slot in held if not slot.may_be_gone]
        gone, unasked = self._perform(b"renew", known)
        refused, later = self._perform(b"retake", unknown)
        taken = set(unknown).difference(refused, later)
        ended = [slot for slot in taken if not self._is_held(slot)]
        if ended:  # They were released before the answer came.
            self.release_later(ended)
        gone += refused
        for slot in gone:
            slot.is_lost = bool(self.drop([slot]))
        _report_lost([slot for slot in gone if slot.is_lost and not slot.is_late])
        return [*unasked, *later]

    def _perform(
        self, what: bytes, slots: Sequence[HeldSlot], patience: Patience | None = None
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        """Run the script for one operation on slots.

        Return the slots that Redis does not hold, and those for which Redis gave no reply.
        """
        asked_at = Clock.monotonic()
        items = [(slot.redis_key, slot.record()) for slot in slots]
        answers = _run_program(what, items, patience or self._patience())
        gone: list[HeldSlot] = []
        unasked: list[HeldSlot] = []
        for slot, answer in zip(slots, answers, strict=True):
            if answer:
                slot.renewed_at = asked_at
                slot.is_late = False
            elif answer is None:
                self.outage_at = Clock.monotonic()
                unasked.append(slot)
            else:
                gone.append(slot)
        return gone, unasked

    def _is_held(self, slot: HeldSlot) -> bool:
        return self.of(slot.key).get(slot.slot) is slot

    def note_late(self, held: Sequence[HeldSlot]) -> None:
        """Report the slots that were not renewed in time: they may have ended in Redis."""
        late = []
        for slot in held:
            is_over = Clock.monotonic() >= slot.ends_at and not slot.is_local
            if is_over and not slot.is_late and self._is_held(slot):
                slot.is_late = True
                late.append(slot)
        _report_lost(late)

    def _release_late(self) -> None:
        late = []
        while self._late:
            slot = self._late.popleft()
            if Clock.monotonic() < slot.ends_at:  # Else it has ended by itself.
                late.append(slot)
        if late:
            self._late.extend(self._perform(b"release", late)[1])

    def _release_all(self) -> None:
        """Release all slots at the end of the process."""
        self._due_at = float("inf")
        # Garbage in this process may belong to its parent, which reports its own holders.
        held = [*self.drop([*self.all(), *self._abandoned]), *self._late]
        if held:
            self._perform(b"release", held, last_patience())
        if self._is_listed:
            self._leave_list(last_patience())

    def _report(self, held: Sequence[HeldSlot]) -> None:
        """Report, for operators, the slots that were held for longer than a renewal interval."""
        if not held:
            if self._is_listed:
                self._leave_list(self._patience())
            return
        before = Clock.monotonic() - self.interval
        in_flight = Counter[str]()
        for slot in held:
            in_flight[slot.charge.limit.name] += slot.charge.cost
        old = sorted(
            [slot for slot in held if slot.held_at <= before], key=lambda slot: slot.held_at
        )
        report = {
            "slots": [
                (slot.holder(), slot.redis_key.hex(), slot.slot.hex()) for slot in old[:MAX_SHOWN]
            ],
            "in_flight": dict(in_flight.most_common(MAX_NAMES)),
        }
        lasts = b"%d" % round(max(conf.SLOT_SECONDS, 1) * 1000)
        text = json.dumps(report).encode()
        get_store(background=True).execute_all(
            [
                (b"SET", _key(_LIST + b":" + self._process), text, b"PX", lasts),
                (b"ZADD", _key(_LIST), b"%d" % Clock.time(), self._process),
                (b"ZREMRANGEBYRANK", _key(_LIST), b"0", b"%d" % (-1 - MAX_LATE)),
                (b"EXPIRE", _key(_LIST), b"7200"),
            ],
            self._patience(),
        )
        self._is_listed = True

    def _leave_list(self, patience: Patience) -> None:
        commands = [
            (b"DEL", _key(_LIST + b":" + self._process)),
            (b"ZREM", _key(_LIST), self._process),
        ]
        get_store(background=True).execute_all(commands, patience)
        self._is_listed = False


def _run_program(
    what: bytes, items: Sequence[tuple[bytes, bytes]], patience: Patience
) -> list[int | None]:
    """Run the script for one operation on slots, given by their keys and records."""
    now = held_slots.time_of_calls()
    moment = b"" if now is None else b"%d" % now
    return get_store(background=True).run_each(_PROGRAM, (moment, what), items, patience)


def _report_lost(slots: Sequence[HeldSlot]) -> None:
    """Log that slots have ended while they were held, and send the signal for each."""
    losses = [_log_lost(slot) for slot in slots]

    def send() -> None:
        for loss in losses:
            slot_lost.send_robust(HeldSlots, **loss)

    # Receivers may take long. Slots that are still held are renewed during that time.
    if losses and slot_lost.receivers and _signals.give(send) is None:
        send()


def _log_lost(slot: HeldSlot) -> dict[str, object]:
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


def _key(name: bytes) -> bytes:
    return conf.CACHE_PREFIX + b"{rules}:" + name


def _reports() -> Iterator[Any]:
    """Yield the last report of each process."""
    store = get_store(background=True)
    processes = store.execute(b"ZRANGE", _key(_LIST), b"0", b"-1")
    answers = store.execute_all([(b"GET", _key(_LIST + b":" + process)) for process in processes])
    # Not by age: the clocks of hosts differ.
    for process, report in zip(processes, answers, strict=True):
        if report is None:
            with suppress(StoreError):
                store.execute(b"ZREM", _key(_LIST), process)
        else:
            with suppress(ValueError):
                yield json.loads(report)


def in_flight() -> dict[str, int]:
    """Return the number of held slots in all processes, by the name of the limit.

    The numbers are up to a quarter of `RATELIMIT_SLOT_SECONDS` old. A process reports at most 200
    limits. Raises `StoreError`.
    """
    found = Counter[str]()
    for entry in _reports():
        with suppress(KeyError, TypeError, AttributeError):  # Of another version.
            found.update({str(name): int(units) for name, units in entry["in_flight"].items()})
    return dict(found)


def _listed() -> list[tuple[Holder, bytes, bytes]]:
    """Return the holders of slots, each with the Redis key and the slot."""
    found: list[tuple[Holder, bytes, bytes]] = []
    for entry in _reports():
        with suppress(ValueError, KeyError, TypeError):  # Of another version.
            for fields, key, slot in entry["slots"]:
                holder = Holder(*fields)
                identity = tuple([(str(kind), str(value)) for kind, value in holder.identity])
                holder = holder._replace(identity=identity)
                found.append((holder, bytes.fromhex(key), bytes.fromhex(slot)))
    return sorted(found, key=lambda each: each[0].since)


def holders() -> list[Holder]:
    """Return the holders of slots of concurrency limits in all processes, the longest first.

    Only those are reported that have held one for longer than a quarter of
    `RATELIMIT_SLOT_SECONDS`. Slots that have ended since are left out. Raises `StoreError`.
    """
    listed = _listed()
    items = [(key, _record(holder, slot)) for holder, key, slot in listed]
    answers = _run_program(b"look", items, Patience(PATIENCE))
    return [holder for (holder, _, _), is_held in zip(listed, answers, strict=True) if is_held != 0]


def _record(holder: Holder, slot: bytes) -> bytes:
    return _NUMBERS.pack(holder.of, holder.units) + slot


def end_slot(holder_id: str) -> Holder | None:
    """End a slot, whichever process holds it.

    The slot is free at once. Its process sends `slot_lost` with the next renewal, and its work
    continues. Return the holder, or None if the slot has ended already. Raises `StoreError`.
    """
    for holder, key, slot in _listed():
        if holder.id == holder_id:
            items = [(key, _record(holder, slot))]
            (was_held,) = _run_program(b"release", items, Patience(PATIENCE))
            if was_held is None:
                raise StoreError("the slot could not be released")
            return holder if was_held else None
    return None


def forget_slots(key: bytes, digests: Collection[str]) -> int:
    """End all slots in a Redis key, and delete the reports that name one of these identities.

    Each process sends its report again with the next renewal. Return the number of ended slots.
    Raises `StoreError`.
    """
    store = get_store(background=True)
    slots: int = store.execute(b"ZCARD", key)
    store.execute(b"DEL", key)
    for process in store.execute(b"ZRANGE", _key(_LIST), b"0", b"-1"):
        report = store.execute(b"GET", _key(_LIST + b":" + process))
        if report is not None and any(digest.encode() in report for digest in digests):
            store.execute(b"DEL", _key(_LIST + b":" + process))
    return slots


held_slots = HeldSlots()
