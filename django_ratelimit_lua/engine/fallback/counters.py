"""The algorithms once more, in memory and in floats: what one process counts of its share."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from copy import copy
from math import ceil
from typing import Protocol

from ...limits.limit import Limit
from ...limits.rate import SECOND
from .shares import Share

FULL_SECONDS = 1.0
"""After which somebody may try again for whom there is no room to count."""
MOST_RUNS = 16
"""Runs of hits that a token bucket tells apart."""
SAME_SECONDS = 1e-5
"""Moments that differ by less are the same one, computed twice."""


class Counter(Protocol):
    """What one process counts of one identity's limit, or of several identities'. Times are seconds by one clock, and
    never run backwards."""

    size: int

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """Go by another share, or the same limit with other numbers, from now on; what is counted stays counted."""

    def used(self, now: float) -> float:
        """Units that count now."""

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""

    def wait(self, now: float) -> float:
        """Seconds that a hit is held which is admitted now."""

    def take(self, now: float, cost: int) -> None:
        """Admit units."""

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        """Count at least `said` units, of that earlier moment, and `more` that count now; no more than the share."""

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give units back: those of a hit that count since that moment; without one, the latest first."""

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""

    def copy(self) -> Counter:
        """Another that has counted the same."""

    def drop(self) -> None:
        """It is not needed any more."""


class Bucket:
    """A token bucket or a leaky bucket: what is owed, at a moment in seconds.

    A token bucket keeps the hits since it was last empty in runs: since when, from when on they are worked off, and how
    many units. So it can tell what would be owed without one of them. Of more than sixteen runs, two neighbours become
    one, as if all had come with the later: then what is given back is owed for longer, never for less long.
    """

    def __init__(self, limit: Limit, share: Share) -> None:
        self._owed, self._at, self._speed = 0.0, 0.0, 0.0
        self._runs: list[tuple[float, float, float]] = []
        self._paces = limit.algorithm == "leaky_bucket"
        self._limit = limit
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """See `Counter`."""
        self.used(now)
        rate = limit.rate
        most = 1 + _queue(limit) if self._paces else rate.limit
        burst = 0 if rate.limit == 0 else most if limit.burst is None else limit.burst
        self.size, self._most = share.units(burst), burst if share.is_generous else 0
        self._speed = share.speed(rate.limit) / rate.period
        if limit != self._limit:  # Nobody waits longer than the new limit alone could have anybody wait.
            self._owed = min(self._owed, burst)
        self._limit = limit
        if self._runs:  # What is owed is owed at another speed from now on.
            self._runs = [(self._runs[0][0], now, self._owed)]

    def used(self, now: float) -> float:
        """Units that are owed now."""
        self._owed = max(0.0, self._owed - (now - self._at) * self._speed)
        self._at = now
        if not self._owed:
            self._runs.clear()
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
        if self._paces or not cost:
            return
        runs = self._runs
        if runs and runs[-1][1] == now:
            first, start, units = runs.pop()
            runs.append((first, start, units + cost))
            return
        runs.append((now, now, cost))
        if len(runs) > MOST_RUNS:
            place = min(range(len(runs) - 1), key=lambda place: runs[place + 1][1] - runs[place][1])
            (first, _, units), (_, start, more) = runs[place : place + 2]
            runs[place : place + 2] = [(first, start, units + more)]

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        """See `Counter`."""
        left = max(0.0, said - (now - since) * self._speed)
        self.take(now, max(0, ceil(min(self.size, left + more) - self.used(now))))

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give units back. Of a leaky bucket only the last turn that was told: else, whoever comes next would get one
        of those that others have been told."""
        used = self.used(now)
        if not used:
            return
        if self._paces:
            if since is None or abs(now + (used - cost) / self._speed - since) < SAME_SECONDS:
                self._owed = max(0.0, used - cost)
            return
        runs, left, total, owed = [], float(cost), 0.0, 0.0
        for first, start, units in reversed(self._runs):
            if left and (since is None or first <= since):
                back = min(units, left)
                units, left = units - back, left - back if since is None else 0.0
            if units:
                runs.append((first, start, units))
                total += units
                owed = max(owed, total - (now - start) * self._speed)
        self._runs = runs[::-1]
        self._owed = min(used, max(0.0, round(owed, 9)))

    def reset_after(self, now: float) -> float:
        """Seconds until nothing is owed."""
        return self.used(now) / self._speed if self._speed else 0.0

    def copy(self) -> Bucket:
        """See `Counter`."""
        twin = copy(self)
        twin._runs = self._runs[:]
        return twin

    def drop(self) -> None:
        """See `Counter`."""


class Moments:
    """How many moments several windows remember together, and may at most."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most


class Window:
    """A fixed or sliding window, or a log: units, and until when in seconds they count.

    Moments are in the order in which they end, each with the sum of all units up to it, so that nothing is ever summed
    up: a decision costs the same whatever is counted. Where all windows together remember too many moments, units are
    put to the latest one and count as long as that: longer, never shorter.
    """

    def __init__(self, limit: Limit, share: Share, moments: Moments) -> None:
        self._moments = moments
        self._ends: list[float] = []
        self._sums: list[int] = []
        self._opened = 0.0  # When the fixed window began that counts.
        self._first = self._lapsed = 0  # Where the first moment is that counts, and the sum up to it.
        self._limit = limit
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """See `Counter`."""
        whole, is_other = limit.rate.limit, limit != self._limit
        self._limit = limit
        self._period = limit.rate.period
        self._segment = self._period / (limit.segments or 10) if limit.algorithm == "sliding_window" else 0.0
        self._together = limit.algorithm == "fixed_window"
        self.size, self._most = share.units(whole), whole if share.is_generous else 0
        if is_other:  # Nobody waits longer than the new limit alone could have anybody wait.
            latest = now + (self._left() if self._together else self._period + self._segment)
            too_late = bisect_right(self._ends, latest, self._first)
            self._ends[too_late:] = [latest] * (len(self._ends) - too_late)

    def used(self, now: float) -> int:
        """Units that count now."""
        if not self._sums:
            return 0
        first = bisect_right(self._ends, now, self._first)
        if first > self._first:
            self._lapsed = self._sums[first - 1]
            self._first = first
            if first * 2 > len(self._sums):  # As many are moved as have lapsed since the last time.
                self._forget(0, first)
                self._first = 0
        return self._sums[-1] - self._lapsed if self._sums else 0

    def _forget(self, first: int, last: int) -> None:
        del self._ends[first:last], self._sums[first:last]
        self._moments.count -= last - first

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        if self.size == 0:
            return None
        over = self.used(now) + cost - self.room(cost)
        if over <= 0:
            return 0.0
        place = bisect_left(self._sums, self._lapsed + over, self._first)
        return None if place == len(self._sums) else self._ends[place] - now

    def room(self, cost: int) -> int:
        """Units that fit where nothing is counted."""
        return max(self.size, cost) if cost <= self._most else self.size

    def wait(self, now: float) -> float:
        """Nobody is held."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""
        if not cost:
            return
        used = self.used(now)
        if self._together:
            end = self._ends[self._first] if used else now + self._left()
            self._opened = self._opened if used else now
        else:
            end = self._end(now)
        if not self._sums:
            self._lapsed = 0
        elif used and (self._ends[-1] >= end or self._moments.count >= self._moments.most):
            self._ends[-1] = max(self._ends[-1], end)
            self._sums[-1] += cost
            return
        self._ends.append(end)
        self._sums.append(self._lapsed + used + cost)
        self._moments.count += 1

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        """See `Counter`."""
        end = since + self._period
        if self._together and self._limit.align is not None:
            ago, left = self._bounds()
            end = now + left if since > now - ago else since
        elif self._segment:
            end = (since // self._segment + 1) * self._segment + self._period
        used = self.used(now)
        missing = min(self.size, (said if end > now else 0) + more) - used
        if missing <= 0:
            return
        end = max(end, now)
        has_room = self._moments.count < self._moments.most
        if not used or (has_room and self._ends[-1] < end and not self._together):
            if not self._sums:
                self._lapsed = 0
            self._ends.append(end)
            self._sums.append(self._lapsed + used + missing)
            self._moments.count += 1
        else:  # With the latest, as long as either counts: longer, never shorter.
            self._ends[-1] = max(self._ends[-1], end)
            self._sums[-1] += missing

    def _left(self) -> float:
        """Seconds that a window has which begins now."""
        return self._bounds()[1]

    def _bounds(self) -> tuple[float, float]:
        """Seconds since a window began that is aligned, and seconds that it has left; one that is not begins now."""
        clock = time.time_ns() // 1000
        _, period, align, _, begin, end, _, _ = self._limit.numbers(clock)
        if align == 0:
            return 0.0, self._period
        if align == 1:
            begin, end = clock - clock % period, clock - clock % period + period
        return (clock - begin) / SECOND, (end - clock) / SECOND

    def _end(self, now: float) -> float:
        """Until when units of a sliding window or a log count."""
        if self._segment:
            return (now // self._segment + 1) * self._segment + self._period
        return now + self._period

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give units back."""
        used = self.used(now)
        if since is not None:
            self._give_of(now, cost, since)
            return
        left = max(0, used - cost)
        if left == used:
            return
        place = bisect_left(self._sums, self._lapsed + left, self._first) if left else self._first - 1
        if left:
            self._sums[place] = self._lapsed + left
        self._forget(place + 1, len(self._sums))

    def _give_of(self, now: float, cost: int, since: float) -> None:
        """Give back units of the moment that has those which count since then; where it is over, there are none."""
        end = (self._ends[-1] if self._ends and since >= self._opened else now) if self._together else self._end(since)
        place = bisect_left(self._ends, end, self._first) if end > now else len(self._ends)
        if place == len(self._ends):
            return
        before = self._sums[place - 1] if place > self._first else self._lapsed
        back = min(cost, self._sums[place] - before)
        # Those after it: as many as have come since.
        self._sums[place:] = [units - back for units in self._sums[place:]]
        if self._sums[place] == before:
            self._forget(place, place + 1)

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""
        return self._ends[-1] - now if self.used(now) else 0.0

    def copy(self) -> Window:
        """See `Counter`."""
        twin = copy(self)
        twin._ends, twin._sums = self._ends[:], self._sums[:]
        self._moments.count += len(self._sums)
        return twin

    def drop(self) -> None:
        """See `Counter`."""
        self._forget(0, len(self._sums))
        self._first = self._lapsed = 0


class Full:
    """In place of a counter that there is no room for: it refuses for a moment, and counts nothing."""

    size = 0

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """See `Counter`."""

    def used(self, now: float) -> float:
        """See `Counter`."""
        return 0.0

    def retry_after(self, now: float, cost: int) -> float | None:
        """See `Counter`."""
        return FULL_SECONDS

    def wait(self, now: float) -> float:
        """See `Counter`."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """See `Counter`."""

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        """See `Counter`."""

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """See `Counter`."""

    def reset_after(self, now: float) -> float:
        """See `Counter`."""
        return FULL_SECONDS

    def copy(self) -> Full:
        """See `Counter`."""
        return self

    def drop(self) -> None:
        """See `Counter`."""


def _queue(limit: Limit) -> int:
    return max(0, limit.rate.limit - 1) if limit.queue is None else limit.queue
