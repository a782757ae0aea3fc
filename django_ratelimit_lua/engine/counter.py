"""What this process counts of one identity's limit, or of several identities together: the algorithms once more, in
memory and in floats.

Moments are seconds by one clock, and never run backwards.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Self

from ..conf import conf
from ..limits.algorithms.concurrency import lasts_us
from ..limits.limit import Limit
from ..limits.rate import SECOND
from .heartbeat import ProcessShare
from .slots import Key, held_slots

MOST_RUNS = 16
"""Runs of hits that a token bucket tells apart."""
FULL_SECONDS = 1.0
"""After which somebody may try again for whom there is no room to count."""
SAME_SECONDS = 1e-5
"""Moments that differ by less are the same one, computed twice."""


@dataclass(frozen=True, slots=True)
class OutageShare:
    """One of so many processes', rounded up, and at least the floor."""

    processes: int
    is_generous: ClassVar[bool] = True

    def units(self, whole: int) -> int:
        """Of so many units."""
        return min(whole, max(ceil(whole / self.processes), conf.LOCAL_FLOOR))

    def speed(self, limit: int) -> float:
        """Of so many units per period."""
        return max(limit / self.processes, min(conf.LOCAL_FLOOR, limit))


Share = OutageShare | ProcessShare
"""Which part of a limit is this process's. A generous one gives a large hit more, if it comes alone."""


class Counter:
    """What is counted of one identity's limit, or of a crowd's. `size`: the units of its share."""

    key: Key | None = None
    """Whom it counts apart; None: a crowd."""
    is_kept = is_being_told = False
    owed = 0
    """Units that were admitted and Redis is to be told of."""
    heard_at = float("-inf")
    """The moment of what Redis said that this counts."""

    def __init__(self, limit: Limit, share: Share) -> None:
        self.limit, self.share = limit, share
        self.size = self._most_alone = 0

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """Go by another share, or the same limit with other numbers; what is counted stays counted. Nobody waits for
        longer than the new limit alone could have anybody wait."""
        self.limit, self.share = limit, share

    def _set_size(self, whole: int) -> None:
        self.size, self._most_alone = self.share.units(whole), whole if self.share.is_generous else 0

    def used(self, now: float) -> float:
        """Units that count now."""
        return 0

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        used = self.used(now)
        if not self.size and self.limit.rate.limit:
            return FULL_SECONDS  # The part of this process is 0, but parts change and others have some.
        over = used + cost - (cost if self.size < cost <= self._most_alone else self.size)
        if not self.size or over > used:
            return None
        return self._free_after(now, over) if over > 0 else 0.0

    def _free_after(self, now: float, units: float) -> float:
        return FULL_SECONDS

    def wait(self, now: float) -> float:
        """Seconds that a hit is held which is admitted now."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""

    def catch_up(self, now: float, units: int, since: float, more: int) -> None:
        """Count at least so many `units`, of that earlier moment, and `more` that count now; no more than the share."""

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give units back: those of a hit that count since that moment; without one, the latest first."""

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""
        return FULL_SECONDS

    def copy(self) -> Self:
        """Another that has counted the same."""
        twin = copy(self)
        twin.is_kept = False
        return twin

    def drop(self) -> None:
        """It is not needed any more."""

    def hold(self, now: float, slot: bytes, cost: int) -> None:
        """Admit units that are held until they are released, by their slot."""

    def release(self, slot: bytes) -> None:
        """They are held no more."""

    def owes(self, now: float) -> int:
        """Units that Redis is to be told of and that count still."""
        return min(self.owed, ceil(self.used(now))) if self.owed else 0


class NoRoom(Counter):
    """For whom there is no room: refused for a moment, and nothing is counted."""

    def retry_after(self, now: float, cost: int) -> float | None:
        return FULL_SECONDS


class Bucket(Counter):
    """A token bucket or a leaky bucket: how full it is, at a moment.

    A token bucket keeps the hits since it was last empty in runs: since when, from when on they are worked off, and how
    many units. So it can tell how full it would be without one of them. Of more than sixteen runs, two neighbours
    become one, as if all had come with the later: then what is given back counts for longer, never for less long.
    """

    def __init__(self, limit: Limit, share: Share) -> None:
        super().__init__(limit, share)
        self._level, self._at, self._speed = 0.0, 0.0, 0.0
        self._runs: list[tuple[float, float, float]] = []
        self._paces = limit.algorithm == "leaky_bucket"
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        self.used(now)
        rate = limit.rate
        whole = (limit.burst or (rate.limit if limit.queue is None else limit.queue + 1)) if rate.limit else 0
        if limit != self.limit:
            self._level = min(self._level, whole)
        super().resize(limit, share, now)
        self._set_size(whole)
        self._speed = share.speed(rate.limit) / rate.period
        if self._runs:  # What is in it is worked off at another speed from now on.
            self._runs = [(self._runs[0][0], now, self._level)]

    def used(self, now: float) -> float:
        self._level = max(0.0, self._level - (now - self._at) * self._speed)
        self._at = now
        if not self._level:
            self._runs.clear()
        return self._level

    def _free_after(self, now: float, units: float) -> float:
        return units / self._speed

    def wait(self, now: float) -> float:
        return self.used(now) / self._speed if self._paces and self._speed else 0.0

    def take(self, now: float, cost: int) -> None:
        self._level = self.used(now) + cost
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

    def catch_up(self, now: float, units: int, since: float, more: int) -> None:
        left = max(0.0, units - (now - since) * self._speed)
        self.take(now, max(0, ceil(min(self.size, left + more) - self.used(now))))

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        used = self.used(now)
        if not used:
            return
        if self._paces:  # Only the last turn that was told: else, whoever comes next would get one of the others'.
            if since is None or abs(now + (used - cost) / self._speed - since) < SAME_SECONDS:
                self._level = max(0.0, used - cost)
            return
        runs, left, total, level = [], float(cost), 0.0, 0.0
        for first, start, units in reversed(self._runs):
            if left and (since is None or first <= since):
                back = min(units, left)
                units, left = units - back, left - back if since is None else 0.0
            if units:
                runs.append((first, start, units))
                total += units
                level = max(level, total - (now - start) * self._speed)
        self._runs = runs[::-1]
        self._level = min(used, max(0.0, round(level, 9)))

    def reset_after(self, now: float) -> float:
        return self.used(now) / self._speed if self._speed else 0.0

    def copy(self) -> Self:
        twin = super().copy()
        twin._runs = self._runs[:]
        return twin


class Moments:
    """How many moments several windows remember together, and may at most."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most


class Window(Counter):
    """A fixed or sliding window, or a log: units, and until when they count.

    Moments are in the order in which they end, each with the sum of all units up to it, so that nothing is ever summed
    up: a decision costs the same whatever is counted. Where all windows together remember too many moments, units are
    put to the latest one and count as long as that: longer, never shorter.
    """

    def __init__(self, limit: Limit, share: Share, moments: Moments) -> None:
        super().__init__(limit, share)
        self._moments = moments
        self._ends: list[float] = []
        self._sums: list[int] = []
        self._opened = 0.0  # When the fixed window began that counts.
        self._first = self._lapsed = 0  # Where the first moment is that counts, and the sum up to it.
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        is_other = limit != self.limit
        super().resize(limit, share, now)
        self._set_size(limit.rate.limit)
        self._period = limit.rate.period
        self._segment = self._period / (limit.segments or 10) if limit.algorithm == "sliding_window" else 0.0
        self._together = limit.algorithm == "fixed_window"
        if is_other:
            latest = now + (self._bounds()[1] if self._together else self._period)
            too_late = bisect_right(self._ends, latest, self._first)
            self._ends[too_late:] = [latest] * (len(self._ends) - too_late)

    def used(self, now: float) -> int:
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

    def _free_after(self, now: float, units: float) -> float:
        return self._ends[bisect_left(self._sums, self._lapsed + units, self._first)] - now

    def take(self, now: float, cost: int) -> None:
        used = self.used(now)
        if self._together and not used:
            self._opened = now
        if cost:
            # An open window ends when it ends, however often it is hit.
            self._count(self._ends[-1] if self._together and used else self._end(now, now), cost, used)

    def catch_up(self, now: float, units: int, since: float, more: int) -> None:
        end, used = self._end(since, now), self.used(now)
        missing = min(self.size, (units if end > now else 0) + more) - used
        if missing > 0:
            self._count(max(end, now), missing, used)

    def _count(self, end: float, units: int, used: int) -> None:
        """Count units until then; with the latest ones, as long as either counts, where they have no moment of their
        own: longer, never shorter."""
        if not self._sums:
            self._lapsed = 0
        has_room = self._moments.count < self._moments.most
        if used and (self._together or self._ends[-1] >= end or not has_room or self._is_segment(self._ends[-1], end)):
            self._ends[-1] = max(self._ends[-1], end)
            self._sums[-1] += units
        else:
            self._ends.append(end)
            self._sums.append(self._lapsed + used + units)
            self._moments.count += 1

    def _bounds(self) -> tuple[float, float]:
        """Seconds since a window began that is aligned, and seconds that it has left; one that is not begins now."""
        clock = time.time_ns() // 1000
        _, period, align, _, begin, end, _, _ = self.limit.numbers(clock)
        if align == 0:
            return 0.0, self._period
        if align == 1:
            begin, end = clock - clock % period, clock - clock % period + period
        return (clock - begin) / SECOND, (end - clock) / SECOND

    def _end(self, since: float, now: float) -> float:
        """Until when units count that count since then; of a fixed window, if they open it."""
        if self._together and self.limit.align is not None:
            ago, left = self._bounds()
            return now + left if since >= now - ago else since
        return since + self._period

    def _is_segment(self, end: float, other: float) -> bool:
        """Whether units that count until these moments are in one segment."""
        return self._segment > 0 and end // self._segment == other // self._segment

    def give(self, now: float, cost: int, since: float | None = None) -> None:
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
        if self._together:
            end = self._ends[-1] if self._ends and since >= self._opened else now
        else:
            end = self._end(since, now)
        place = bisect_left(self._ends, end, self._first)
        if place == len(self._ends) or (end <= now and not self._is_segment(self._ends[place], end)):
            return
        before = self._sums[place - 1] if place > self._first else self._lapsed
        back = min(cost, self._sums[place] - before)
        # Those after it: as many as have come since.
        self._sums[place:] = [units - back for units in self._sums[place:]]
        if self._sums[place] == before:
            self._forget(place, place + 1)

    def reset_after(self, now: float) -> float:
        return self._ends[-1] - now if self.used(now) else 0.0

    def copy(self) -> Self:
        twin = super().copy()
        twin._ends, twin._sums = self._ends[:], self._sums[:]
        self._moments.count += len(self._sums)
        return twin

    def drop(self) -> None:
        self._forget(0, len(self._sums))
        self._first = self._lapsed = 0


class Slots(Counter):
    """The slots of one identity: all that this process holds of them, whoever gave them, and those that were just given
    here, until whoever asked for them holds them or they are over.

    Redis is told of them by their renewal, so they are not owed.
    """

    def __init__(self, limit: Limit, share: Share) -> None:
        super().__init__(limit, share)
        self._given: dict[bytes, tuple[float, int]] = {}
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        super().resize(limit, share, now)
        self.size, self._most_alone = share.units(limit.rate.limit), 0

    def used(self, now: float) -> float:
        self._given = {slot: given for slot, given in self._given.items() if given[0] > now}
        held = held_slots.of(self.key) if self.key is not None else {}
        given = sum(cost for slot, (_, cost) in self._given.items() if slot not in held)
        return given + sum(slot.charge.cost for slot in list(held.values()))

    def _free_after(self, now: float, units: float) -> float:
        return self.reset_after(now)

    def hold(self, now: float, slot: bytes, cost: int) -> None:
        self._given[slot] = (now + lasts_us(slot) / SECOND, cost)

    def release(self, slot: bytes) -> None:
        self._given.pop(slot, None)

    def reset_after(self, now: float) -> float:
        return conf.SLOT_SECONDS if self.used(now) else 0.0

    def copy(self) -> Self:
        twin = super().copy()
        twin._given = self._given.copy()
        return twin


def new_counter(limit: Limit, share: Share, moments: Moments) -> Counter:
    """One that has counted nothing yet, of the kind that a limit's algorithm needs."""
    if limit.holds:
        return Slots(limit, share)
    if limit.algorithm in ("token_bucket", "leaky_bucket"):
        return Bucket(limit, share)
    return Window(limit, share, moments)
