"""The processes that decide limits together: how many there are, and which part of a split limit is this one's."""

from __future__ import annotations

import atexit
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..conf import conf
from ..limits import program
from ..limits.limit import Limit
from ..process.forks import renew_after_fork, start_thread
from ..store import Patience, get_store, last_patience

SCRIPT = program.source("engine/heartbeat").encode()
BEAT_SECONDS = 2.0
LIFETIME = 10
"""Seconds after which a process that is not heard of is no more."""


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """Which part of a whole is this process's: from `before` to `before + own`, of `of`.

    >>> [ProcessShare(n, 1, 3).units(100) for n in range(3)]
    [33, 33, 34]
    """

    before: float
    own: float
    of: float
    is_generous: ClassVar[bool] = False

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1."""
        return self.own / self.of

    def units(self, whole: int) -> int:
        """This part of so many units. All parts together are the whole."""
        of = Fraction(self.of)
        # The sum as the next one's `before` was made, so that nothing is between them.
        return int(whole * Fraction(self.before + self.own) / of) - int(whole * Fraction(self.before) / of)

    def speed(self, limit: int) -> float:
        """This part of so many units per period."""
        return limit * self.fraction


class Heartbeat:
    """Says every few seconds that this process is alive, in a thread of its own, and keeps how many are.

    `count`: how many; `equal`, `weighted`: this one's part (None: not known yet).
    """

    def __init__(self) -> None:
        self.count = 1
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # A child is an instance of its own; until it has heard of the others, there are as many as its parent knew of.
        self.equal: ProcessShare | None = None
        self.weighted: ProcessShare | None = None
        self._id = uuid.uuid4().hex
        self._started = self._is_listed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start saying so, unless that has begun."""
        if self._started:
            return
        with self._lock:
            if not self._started:
                self._started = True
                if start_thread(self._beat, "ratelimit-instances") is None:
                    self._started = False
                    return
                atexit.register(self.goodbye)

    def part_of(self, limit: Limit) -> ProcessShare | None:
        """This process's part of a limit that is split; None: it is not split, or the part is not known yet."""
        if limit.split is None:
            return None
        return self.weighted if limit.split == "weighted" else self.equal

    def beat(self) -> int:
        """Say so once; returns how many there are. Raises `StoreError`."""
        self._is_listed = True
        count, rank, before, own, of = self._say(b"0")
        self.count = max(1, int(count))
        self.equal = ProcessShare(int(rank), 1, self.count)
        self.weighted = ProcessShare(float(before), float(own), float(of))
        return self.count

    def goodbye(self) -> None:
        """Say that this process is no more, so that the others take over its part."""
        self._started = False
        if self._is_listed:  # A child that never said a word ends without one.
            with suppress(Exception):
                self._say(b"1", last_patience())

    def _say(self, is_goodbye: bytes, patience: Patience | None = None) -> list[bytes]:
        key = conf.CACHE_PREFIX + b"{rules}:instances"
        name = f"{conf.INSTANCE_WEIGHT:.17g}:{self._id}".encode()
        arguments = (b"EVAL", SCRIPT, b"1", key, name, b"%d" % LIFETIME, is_goodbye)
        reply: list[bytes] = get_store(background=True).execute(*arguments, patience=patience)
        return reply

    def _beat(self) -> None:
        while self._started:
            with suppress(Exception):  # It is as many as were last known.
                self.beat()
            time.sleep(BEAT_SECONDS)


heartbeat = Heartbeat()
