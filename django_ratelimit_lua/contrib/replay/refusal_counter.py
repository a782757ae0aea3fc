"""Count what every limit N would have refused of a log, in one pass.

Imagine N places, and that each request takes the first free place for as long as it counts. Which
of the first N places are taken never depends on whether there are more behind them. So a request
that takes place m with any number of places would have been refused by every N below m, and by no
other: one pass over the log decides all limits, exactly.

That holds if the time until which a request counts is known when it arrives: for a sliding log and
a fixed window. For other algorithms the curve gives an N that is sufficient. A token bucket empties
at a speed that depends on N. With N as its burst it never refuses an identity that has at most N
requests in any period, as a sliding log counts them. A segment of a sliding window counts for one
period after the last hit that was admitted in it. That hit depends on N, so it is assumed at the
end of the segment.

Requests that end together and have successive places are stored as one run. In a sliding log each
ends at its own time: if there are more runs than `MAX_RUNS`, no curve is drawn, so memory does not
grow with the lines.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import accumulate

from django.utils.translation import gettext as _

from ...limits.limit import Limit
from ...operations.curve import Between, Curve

MAX_RUNS = 500_000
"""Runs of places, of all identities, that are kept at once, some 64 MiB; and places of one
identity.
"""


@dataclass(slots=True)
class _Places:
    """The places of one identity.

    Attributes:
        taken: Runs of places that are taken, as (end, first, last), the earliest end first.
        free: Runs of free places among the first `top` ones, as a heap of (first, last).
        top: The highest place in use.
        peak: The highest place that was ever taken.
        ends: The end of its fixed window.
    """

    taken: deque[tuple[int, int, int]] = field(default_factory=deque)
    free: list[tuple[int, int]] = field(default_factory=list)
    top: int = 0
    peak: int = 0
    ends: int = 0

    def clear(self, moment: int) -> None:
        """Free the places of requests that do not count any more."""
        while self.taken and self.taken[0][0] <= moment:
            _, first, last = self.taken.popleft()
            heappush(self.free, (first, last))
        if not self.taken:
            self.free.clear()
            self.top = 0

    def take(self) -> int:
        """Take the first place that is free."""
        if not self.free:
            self.top += 1
            return self.top
        place, last = self.free[0]
        if place == last:
            heappop(self.free)
        else:
            heapreplace(self.free, (place + 1, last))
        return place


class RefusalCounter:
    """Counts the refusals that every other maximum than a limit's own would have made."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._by_place = array("Q", [0])  # Requests, by their place.
        self._runs = 0  # Maximum number that is kept.
        self._places: dict[bytes, _Places] = {}
        self._period = limit.rate.period_us
        self._kind = limit.kind

    def add(self, digest: bytes, moment: int) -> bool:
        """Count a request. Return False if there is no room for it."""
        places = self._places.get(digest)
        if places is None:
            places = self._places[digest] = _Places()
        taken = places.taken
        places.clear(moment)
        place = places.take()
        until = self._until(places, moment)
        if taken and taken[-1][0] == until and taken[-1][2] == place - 1:
            taken[-1] = (until, taken[-1][1], place)
        else:
            taken.append((until, place, place))
            self._runs += 1
        if place > places.peak:
            places.peak = place
            if place == len(self._by_place):
                self._by_place.append(0)
        self._by_place[place] += 1
        return place <= MAX_RUNS and (self._runs <= MAX_RUNS or self._has_room(moment))

    def _has_room(self, moment: int) -> bool:
        """Drop requests that do not count any more. Return whether half of the room is free."""
        self._runs = 0
        for places in self._places.values():
            places.clear(moment)
            self._runs += len(places.taken) + len(places.free)
        return self._runs <= MAX_RUNS // 2

    def _until(self, places: _Places, moment: int) -> int:
        """Return the latest time until which a request counts."""
        if not self._kind.ends_together:
            return self._kind.expires_at(self.limit, moment)
        if moment >= places.ends:
            places.ends = self._kind.expires_at(self.limit, moment)
        return places.ends

    def curve(self, cost: int = 1) -> Curve:
        """Return the curve of the counts, for requests with this number of units."""
        by_place = {place * cost: count for place, count in enumerate(self._by_place) if count}
        by_peak = Counter(places.peak * cost for places in self._places.values())
        now = Limit(self.limit.name, self.limit.rate, algorithm=self._kind.name)
        return Curve(
            self._period,
            now,
            sum(by_place.values()),
            len(self._places),
            _beyond(by_place),
            _beyond(by_peak),
            max(by_peak, default=0),
            is_exact=self._kind.is_exact,
        )


def _beyond(counts: Mapping[int, int]) -> Callable[[int], Between]:
    """Return a function that returns how many requests needed more than a number of units."""
    units = sorted(counts)
    sums = [0, *accumulate(counts[each] for each in units)]

    def find_beyond(limit: int) -> Between:
        count = sums[-1] - sums[bisect_right(units, limit)]
        return Between(count, count)

    return find_beyond


def why_no_curve(limits: Sequence[Limit], cost: int) -> str:
    """Return why no curve is drawn for these limits; empty if one is drawn."""
    limit = limits[0]
    if cost < 1:
        return _("a request costs 0 units")
    if limit.kind.waits_anyway:
        return _("a leaky bucket makes requests wait, and refuses by the length of its queue")
    if limit.count_denied:
        return _("it counts refused requests, too (count_denied)")
    if limit.max_wait:
        return _("it makes requests wait (max_wait)")
    return ""
