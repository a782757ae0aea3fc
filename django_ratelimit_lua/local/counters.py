"""The algorithms once more, in memory and in floats: what one process counts of its share."""

from __future__ import annotations

import time
from collections import deque

from ..limits.limit import Limit
from ..limits.rate import SECOND
from .shares import Share


class Bucket:
    """A token bucket or a leaky bucket: what is owed, at a moment in seconds."""

    def __init__(self, limit: Limit, share: Share) -> None:
        self._owed, self._at, self._speed = 0.0, 0.0, 0.0
        self._limit = limit
        self._paces = limit.algorithm == "leaky_bucket"
        self.resize(share, 0.0)

    def resize(self, share: Share, now: float) -> None:
        """Go by another share from now on."""
        self.used(now)
        rate, limit = self._limit.rate, self._limit
        most = 1 + _queue(limit) if self._paces else rate.limit
        burst = 0 if rate.limit == 0 else most if limit.burst is None else limit.burst
        self.size, self._most = share.units(burst), burst if share.is_generous else 0
        self._speed = share.speed(rate.limit) / rate.period

    def used(self, now: float) -> float:
        """Units that are owed now."""
        self._owed = max(0.0, self._owed - (now - self._at) * self._speed)
        self._at = now
        return self._owed

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        if self.size == 0:
            return None
        over = self.used(now) + cost - self.room(cost)
        return None if over > self.used(now) else max(0.0, over) / self._speed

    def room(self, cost: int) -> int:
        """Units that fit where nothing is owed."""
        return max(self.size, cost) if cost <= self._most else self.size

    def wait(self, now: float) -> float:
        """Seconds that a hit is held which is admitted now."""
        return self.used(now) / self._speed if self._paces and self._speed else 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""
        self._owed = self.used(now) + cost

    def give(self, now: float, cost: int) -> None:
        """Give units back."""
        self._owed = max(0.0, self.used(now) - cost)

    def reset_after(self, now: float) -> float:
        """Seconds until nothing is owed."""
        return self.used(now) / self._speed if self._speed else 0.0


class Window:
    """A fixed or sliding window, or a log: units, and until when in seconds they count."""

    def __init__(self, limit: Limit, share: Share) -> None:
        self._limit = limit
        self._period = limit.rate.period
        self.resize(share, 0.0)
        self._segment = self._period / (limit.segments or 10) if limit.algorithm == "sliding_window" else 0.0
        self._together = limit.algorithm == "fixed_window"
        self._admitted: deque[tuple[float, int]] = deque()

    def resize(self, share: Share, now: float) -> None:
        """Go by another share from now on."""
        whole = self._limit.rate.limit
        self.size, self._most = share.units(whole), whole if share.is_generous else 0

    def used(self, now: float) -> float:
        """Units that count now."""
        while self._admitted and self._admitted[0][0] <= now:
            self._admitted.popleft()
        return sum(count for _, count in self._admitted)

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        if self.size == 0:
            return None
        over = self.used(now) + cost - self.room(cost)
        if over <= 0:
            return 0.0
        for until, count in self._admitted:
            over -= count
            if over <= 0:
                return until - now
        return None

    def room(self, cost: int) -> int:
        """Units that fit where nothing is counted."""
        return max(self.size, cost) if cost <= self._most else self.size

    def wait(self, now: float) -> float:
        """Nobody is held."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""
        self.used(now)
        until = now + self._period
        if self._together:
            until = self._admitted[0][0] if self._admitted else now + self._left()
        elif self._segment:
            until = (now // self._segment + 1) * self._segment + self._period
        if self._admitted and self._admitted[-1][0] == until:
            cost += self._admitted.pop()[1]
        self._admitted.append((until, cost))

    def _left(self) -> float:
        """Seconds that a window has which begins now."""
        clock = time.time_ns() // 1000
        _, period, align, _, _, end, _, _ = self._limit.numbers(clock)
        if align == 0:
            return self._period
        return ((period - clock % period) if align == 1 else (end - clock)) / SECOND

    def give(self, now: float, cost: int) -> None:
        """Give units back, the latest first."""
        self.used(now)
        while cost > 0 and self._admitted:
            until, count = self._admitted.pop()
            if count > cost:
                self._admitted.append((until, count - cost))
            cost -= count

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""
        return self._admitted[-1][0] - now if self.used(now) else 0.0


def _queue(limit: Limit) -> int:
    return max(0, limit.rate.limit - 1) if limit.queue is None else limit.queue
