"""The processes that decide limits together: how many there are, and which part of a split limit is this one's."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from ..conf import conf
from ..conf.changes import on_change
from ..limits import program
from ..limits.limit import Limit
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import Patience, get_store, last_patience

SCRIPT = program.source("engine/heartbeat").encode()
KEYS = (b"{rules}:processes", b"{rules}:process-weights", b"{rules}:processes-since")
BEAT_SECONDS = 2.0
LIFETIME = 10
"""Seconds after which a process that is not heard of is no more."""


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """Which part of a whole is this process's: from `before` to `before + own`, of `of`.

    >>> [ProcessShare(n, 1, 3).units(100) for n in range(3)]
    [33, 33, 34]
    """

    before: float | Fraction
    own: float | Fraction
    of: float | Fraction
    is_generous: ClassVar[bool] = False

    @property
    def fraction(self) -> float:
        """The part as a number from 0 to 1."""
        return float(self.own / self.of)

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

    Where the register of processes has begun anew, as Redis was emptied or away, the others are listed one after the
    other. Fewer than before are not believed until each has had a lifetime to say that it is alive.
    """

    count: int
    equal: ProcessShare | None
    weighted: ProcessShare | None
    _register: bytes | None
    """When the register began that its numbers are of."""

    def __init__(self) -> None:
        self.forget()
        self._begin()
        meanwhile = "this process's parts of limits are those that were known last"
        self.task = Task("heartbeat", self._step, meanwhile=meanwhile, at_exit=self.goodbye)
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # A child is an instance of its own; until it has heard of the others, there are as many as its parent knew of.
        self.equal = self.weighted = None
        self._id = uuid.uuid4().hex
        self._is_listed = False

    def start(self) -> None:
        """Start saying so, unless that has begun."""
        self.task.start()

    def part_of(self, limit: Limit) -> ProcessShare | None:
        """This process's part of a limit that is split; None: it is not split, or the part is not known yet."""
        if limit.split is None:
            return None
        return self.weighted if limit.split == "weighted" else self.equal

    def beat(self) -> int:
        """Say so once; returns how many there are. Raises `StoreError`."""
        self._is_listed = True
        own = conf.INSTANCE_WEIGHT
        register, is_settled, rank, *weights = self._say(own)
        # Exact numbers, so that there is nothing between the parts of two processes.
        by_weight = {Fraction(float(weight)): count for weight, count in zip(weights[::2], weights[1::2], strict=True)}
        lighter = {weight: count for weight, count in by_weight.items() if weight < own}
        before = sum(weight * count for weight, count in lighter.items())
        before += (rank - sum(lighter.values())) * Fraction(own)
        count = max(1, sum(by_weight.values()))
        # The floor stays until the register is settled: who is new may stand for one that is missing.
        if self._register in (None, register) or is_settled:
            self._register = register
        elif count < self.count:
            return self.count
        self.count = count
        self.equal = ProcessShare(rank, 1, self.count)
        whole = sum(weight * count for weight, count in by_weight.items())
        self.weighted = ProcessShare(before, Fraction(own), whole)
        return self.count

    def goodbye(self) -> None:
        """Say that this process is no more, so that the others take over its part."""
        if self._is_listed:  # A child that never said a word ends without one.
            with suppress(Exception):
                self._say(0, last_patience(), is_goodbye=True)

    def _say(self, weight: float, patience: Patience | None = None, *, is_goodbye: bool = False) -> list[Any]:
        keys = [conf.CACHE_PREFIX + key for key in KEYS]
        values = (self._id.encode(), f"{weight:.17g}".encode(), b"%d" % LIFETIME, b"%d" % is_goodbye)
        question = (b"EVAL", SCRIPT, b"%d" % len(keys), *keys, *values)
        reply: list[Any] = get_store(background=True).execute(*question, patience=patience)
        return reply

    def forget(self) -> None:
        """Know nothing of the others: who shares another prefix is another site."""
        self.count, self.equal, self.weighted = 1, None, None
        self._register = None

    def _step(self) -> float:
        self.beat()
        return BEAT_SECONDS


heartbeat = Heartbeat()
on_change(("RATELIMIT_CACHE_PREFIX",), heartbeat.forget)
