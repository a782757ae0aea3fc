"""Units of one identity's limit that this process has taken from the shared count and not spent yet.

They are counted before they are spent, so nothing is over-admitted. They may be spent for a second, or until the window
ends that they were counted in, by a clock that begins before they were asked for.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from threading import Lock

from ...limits.call import Call, Charge
from ...limits.decision import Decision, LimitState
from ..heartbeat import heartbeat

HORIZON = 0.1
"""Seconds that a batch is meant to last."""
LOW = 0.2
"""Which part of a batch is left when the next one is asked for."""
IDLE = 0.25
"""Seconds without a hit after which units go back."""
DRY = 0.05
"""Seconds for which no batch is asked for where there was none."""
_SHORTEST = 0.0005
"""Seconds over which speed is measured at least."""


@dataclass(slots=True, eq=False)
class Batch:
    """So many units: may be spent until then (monotonic), count since `moment` (microseconds since 1970, Redis's)."""

    units: int
    until: float
    moment: int


class Pool:
    """The batches that this process holds of one identity's limit, and how fast it spends them."""

    def __init__(self, call: Call, charge: Charge) -> None:
        self.call = call
        self.limit = charge.limit
        self.digest = charge.digest
        self._lock = Lock()
        self._batches: deque[Batch] = deque()
        self._lapsed: list[Batch] = []
        self._units = self._low = 0
        self._asking = self._closed = False
        self._told: LimitState | None = None
        self._told_at = self._hit_at = self._since = time.monotonic()
        self._speed, self._spent = 0.0, 0
        self._dry_until = 0.0

    def spend(self, cost: int) -> tuple[LimitState, int] | None:
        """The limit's state, and since when the units count that were spent; None where there are not so many."""
        now = time.monotonic()
        with self._lock:
            if self._batches and self._batches[0].until <= now:
                self._lapse(now)
            batch = self._with(cost)
            if batch is None:
                return None
            self._hit_at = now
            batch.units -= cost
            if not batch.units:
                self._batches.remove(batch)
            self._units -= cost
            self._spent += cost
            return self._state(now), batch.moment

    def look(self, cost: int) -> tuple[LimitState, int] | None:
        """What `spend` would say, without spending."""
        now = time.monotonic()
        with self._lock:
            self._lapse(now)
            batch = self._with(cost)
            if batch is None:
                return None
            return self._state(now), batch.moment

    def _with(self, cost: int) -> Batch | None:
        """The batch that a hit is spent from: one that has all its units, which then count since one moment, by which
        they can be given back."""
        return next((batch for batch in self._batches if batch.units >= cost), None)

    def _state(self, now: float) -> LimitState:
        told = self._told
        assert told is not None
        return told.with_leased(self._units, now - self._told_at)

    def put_back(self, units: int, moment: int) -> None:
        """Units that were just spent, and count since that moment, were not needed."""
        with self._lock:
            if self._closed:
                return
            batch = next((batch for batch in self._batches if batch.moment == moment), None)
            if batch is None:  # It has lapsed, or these were its last ones.
                self._lapsed.append(Batch(units, 0.0, moment))
            else:
                batch.units += units
                self._units += units

    def wanted(self, cost: int) -> int:
        """How many units to ask for now: 0 unless a batch would pay. Whoever is told a number has to ask, and say what
        came of it by `receive` or `failed`."""
        now = time.monotonic()
        with self._lock:
            if self._asking or self._closed or now < self._dry_until or self._units > self._low:
                return 0
            elapsed = now - self._since
            if elapsed >= _SHORTEST:
                speed = self._spent / elapsed
                self._speed = speed if elapsed > IDLE else (self._speed + speed) / 2
                self._since, self._spent = now, 0
            # One part more than there are processes, for hits that are on their way to Redis by themselves.
            fair = self._told.remaining // (heartbeat.count + 1) if self._told is not None else 0
            size = min(self.limit.lease or 0, int(self._speed * HORIZON), fair)
            self._asking = size > cost
            return size if self._asking else 0

    def receive(self, decision: Decision, asked_at: float) -> None:
        """What came of asking for a batch."""
        now = time.monotonic()
        with self._lock:
            self._asking = False
            self._told, self._told_at = decision.limits[0], now
            if not decision.allowed or not decision.granted:
                self._dry_until = now + DRY
                return
            limit, until = self.limit, asked_at + self.limit.lapse
            if limit.algorithm == "fixed_window":
                until = min(until, asked_at + self._told.reset_after)
            moment = self._told.counted_at or decision.counted_at(self.digest)
            batch = Batch(decision.granted, until, moment)
            self._batches.append(batch)
            self._units += batch.units
            self._low = int(batch.units * LOW)

    def failed(self) -> None:
        """Asking for a batch has failed."""
        with self._lock:
            self._asking = False
            self._dry_until = time.monotonic() + DRY

    def hear(self, state: LimitState, cost: int) -> None:
        """What Redis said of the limit when it was asked for a single hit."""
        with self._lock:
            self._told, self._told_at = state, time.monotonic()
            if state.allowed:
                self._spent += cost

    def returned(self, fewer_than: int | None = None) -> list[tuple[int, int]]:
        """Units that are not to be spent here any more and go back, each with the moment since when they count; and all
        of them, if that is fewer than so many."""
        now = time.monotonic()
        with self._lock:
            if now - self._hit_at > IDLE or (fewer_than is not None and not self._has(fewer_than)):
                self._lapsed += self._batches
                self._batches.clear()
                self._units = 0
            else:
                self._lapse(now)
            lapsed, self._lapsed = self._lapsed, []
        return [(batch.units, batch.moment) for batch in lapsed if batch.units]

    def has(self, cost: int) -> bool:
        """Whether so many units can be spent, as far as can be told without looking at the time."""
        with self._lock:
            return cost > 0 and self._has(cost)

    def _has(self, cost: int) -> bool:
        return any(batch.units >= cost for batch in self._batches)

    @property
    def may_have_more(self) -> bool:
        """Whether there are units, or some are on their way."""
        return self._asking or self._units > 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to spend or to give back."""
        return not self._batches and not self._lapsed

    def close(self) -> None:
        """Spend nothing more, and give nothing back: it is not counted any more."""
        with self._lock:
            self._closed, self._units = True, 0
            self._batches.clear()
            self._lapsed.clear()

    def abandon(self) -> None:
        """Spend nothing more, in a child process, where whoever held the lock is gone."""
        self._lock = Lock()
        self._closed, self._units = True, 0

    def _lapse(self, now: float) -> None:
        while self._batches and self._batches[0].until <= now:
            batch = self._batches.popleft()
            self._units -= batch.units
            self._lapsed.append(batch)
