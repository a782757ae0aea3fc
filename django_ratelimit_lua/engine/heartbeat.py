"""The number of processes of the site, and the parts of split limits that this process has."""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ..conf import conf
from ..conf.changes import on_change
from ..exceptions import StoreError
from ..limits.limit import Limit
from ..limits.program import Program, source
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import Patience, Reply, get_store, last_patience

_PROGRAM = Program.of(source("engine/heartbeat"))
ALL = b"{rules}:process"
"""How the keys of the register of all processes begin, after `RATELIMIT_CACHE_PREFIX`."""
SPLIT = b"{rules}:split:"
"""How the keys of a split limit's register begin. The name of its count follows."""
DESCRIPTIONS = b"{rules}:process-descriptions"
BEAT_SECONDS = 2.0
LIFETIME = 10
"""Seconds without a heartbeat after which a process is removed from the registers."""
USED_SECONDS = 5.0
"""Seconds since its last hit of a split limit for which a process has a part of it."""
MAX_SPLITS = 100
"""Split limits that a process uses at once. Of further ones it has an equal share of all processes.
"""


class ProcessShare(NamedTuple):
    """This process's part of a whole in `of` equal parts: the one after `before` others.

    >>> [ProcessShare(n, 3).units(100) for n in range(3)]
    [33, 33, 34]
    """

    before: int
    of: int

    def units(self, whole: int) -> int:
        """Return this part of a number of units. All parts add up to the number."""
        return whole * (self.before + 1) // self.of - whole * self.before // self.of


class Register:
    """The processes of one register, which Redis keeps under `prefix`.

    - `count`: the number of processes;
    - `share`: the part of this process (None: not known yet);
    - `limit`: the split limit of the register (None: the register lists all processes);
    - `used_at`: the moment of this process's last hit of that limit.
    """

    def __init__(self, prefix: bytes, limit: Limit | None = None) -> None:
        self.prefix = prefix
        self.limit = limit
        self.count = 1
        self.share: ProcessShare | None = None
        self.used_at = Clock.monotonic()

    @property
    def keys(self) -> list[bytes]:
        """Return the keys that the script of the heartbeat reads and writes."""
        prefix = conf.CACHE_PREFIX + self.prefix
        return [prefix + b"es", prefix + b"-names"]

    @property
    def is_used(self) -> bool:
        """Return whether this process stays in the register."""
        return self.limit is None or Clock.monotonic() - self.used_at <= USED_SECONDS

    def read(self, reply: Reply) -> None:
        """Apply the reply of Redis to a heartbeat."""
        self.count, before = reply
        self.share = ProcessShare(before, self.count)


_Beat = Sequence[tuple[Register, bool]]
"""The registers that a heartbeat is for, and whether this process stays in each."""


class SplitPart(NamedTuple):
    """A process's part of a split limit: `units` of `limit`."""

    name: str
    units: int
    limit: int


class Process(NamedTuple):
    """A process, as its last heartbeat described it.

    - `since`: the start of the process, in seconds since 1970.
    """

    host: str
    pid: int
    since: float
    parts: tuple[SplitPart, ...] = ()


class Heartbeat:
    """Sends a heartbeat to Redis every few seconds, in its own thread, and stores the reply.

    - `count`: the number of processes.

    A process is in the register of a split limit while it uses the limit. Its first hit joins the
    register, which takes one more round trip.
    """

    count: int

    def __init__(self) -> None:
        self._begin()
        self.forget()
        meanwhile = "this process keeps its last known shares of limits"
        self.task = Task("heartbeat", self._step, meanwhile=meanwhile, at_exit=self.goodbye)
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # A child is an instance of its own; until its first heartbeat, its parent's number of
        # processes is used.
        self._splits: dict[bytes, Register] = {}
        self._lock = threading.Lock()
        self._id = uuid.uuid4().hex
        self._since = Clock.time()
        self._is_listed = False

    def start(self) -> None:
        """Start sending heartbeats, unless they are being sent already."""
        self.task.start()

    def part_of(self, limit: Limit) -> ProcessShare | None:
        """Return this process's part of a split limit.

        None if the limit is not split, or if the part is not known yet.
        """
        if limit.split is None:
            return None
        register = self._splits.get(limit.key_part)
        return None if register is None else register.share

    def use(self, limit: Limit) -> Register | None:
        """Record a hit of a split limit.

        Return its register if this process has yet to `join` it.
        """
        register = self._splits.get(limit.key_part)
        if register is None:
            if len(self._splits) >= MAX_SPLITS:
                return None
            register = self._splits.setdefault(
                limit.key_part, Register(SPLIT + limit.key_part + b":process", limit)
            )
        register.limit = limit
        register.used_at = Clock.monotonic()
        if register.share is None:
            return register
        return None

    def join(self, register: Register, patience: Patience) -> None:
        """Add this process to the register of a split limit, and read its part.

        Raises `StoreError`.
        """
        beat = self._with_use(register)
        self._read(beat, get_store().run(_PROGRAM, *self._question(beat), patience))

    def beat(self) -> int:
        """Send a heartbeat, and return the number of processes. Raises `StoreError`."""
        with self._lock:
            beat = self._with_use(*self._splits.values())
            self._read(beat, get_store(background=True).run(_PROGRAM, *self._question(beat)))
            return self.count

    def goodbye(self) -> None:
        """Leave all registers, so that the other processes take over this one's parts."""
        if self._is_listed:  # A child that never sent a heartbeat ends without one.
            beat = [(register, False) for register in (self._all, *self._splits.values())]
            with suppress(Exception):
                get_store(background=True).run(_PROGRAM, *self._question(beat), last_patience())

    def _with_use(self, *registers: Register) -> _Beat:
        return [(register, register.is_used) for register in (self._all, *registers)]

    def _question(self, beat: _Beat) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and arguments of the script."""
        self._is_listed = True
        keys = [key for register, _ in beat for key in register.keys]
        values = [self._id.encode(), self._description().encode(), b"%d" % LIFETIME]
        values += [b"%d" % is_used for _, is_used in beat]
        return [*keys, conf.CACHE_PREFIX + DESCRIPTIONS], values

    def _read(self, beat: _Beat, replies: Sequence[Reply]) -> None:
        try:
            for (register, is_used), reply in zip(beat, replies, strict=True):
                if is_used:
                    register.read(reply)
                elif register.limit is not None:
                    self._splits.pop(register.limit.key_part, None)
        except (TypeError, ValueError) as error:
            raise StoreError(f"unexpected reply to a heartbeat: {replies!r:.80}") from error
        self.count = self._all.count

    def _description(self) -> str:
        parts = [
            (limit.name, share.units(limit.rate.limit), limit.rate.limit)
            for register in self._splits.values()
            if (limit := register.limit) is not None and (share := register.share) is not None
        ]
        return json.dumps((socket.gethostname(), os.getpid(), self._since, sorted(parts)))

    def forget(self) -> None:
        """Drop the other processes, because a new prefix belongs to another site."""
        self._all = Register(ALL)
        self._splits = {}
        self.count = self._all.count

    def _step(self) -> float:
        self.beat()
        return BEAT_SECONDS


def processes() -> list[Process]:
    """Return the processes that decide limits, as of their last heartbeats. Raises `StoreError`."""
    found: list[Process] = []
    command = (b"HGETALL", conf.CACHE_PREFIX + DESCRIPTIONS)
    for text in get_store(background=True).execute(*command)[1::2]:
        with suppress(ValueError, TypeError):  # A newer version may describe itself in another way.
            host, pid, since, parts = json.loads(text)
            found.append(Process(host, pid, since, tuple([SplitPart(*part) for part in parts])))
    return sorted(found, key=lambda process: (process.host, process.pid))


heartbeat = Heartbeat()
on_change(("RATELIMIT_CACHE_PREFIX",), heartbeat.forget)
