"""The refusal curve: for every limit N at once, how many requests and how many identities it would have refused.

Think of N places, and of each request taking the first that is free, for as long as it counts. Which of the first N
places are taken never depends on whether there are more behind them. So a request that takes place m with any number of
places would have been refused by every N below m, and by no other: one pass over the log tells all limits, exactly.

That holds where it is known when a request comes until when it counts: for a sliding log and a fixed window. For others
the curve gives an N that is enough. A token bucket empties at a speed that depends on N. With N as its burst it never
refuses who has at most N requests in any period, as a sliding log counts them. A segment of a sliding window counts
until the last hit in it that N admits is a period old: here, as long as if that came at the end of the segment.

Requests that end together and have places in a row are kept as one run. In a sliding log each ends at its own time: of
more runs than `MOST_COUNTED`, no curve is drawn, so memory does not grow with the lines.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from django.utils.translation import gettext as _

from ...limits.algorithms import find
from ...limits.limit import Limit

SHARES = (0.99, 0.999, 0.9999)
"""Of identities, for which `--suggest` names the limit that never refuses them."""
MOST_POINTS = 200
MOST_COUNTED = 500_000
"""Runs of places, of all identities, that are kept at once, some 64 MiB; and places of one identity."""


class CurvePoint(NamedTuple):
    """What a limit of so many units would have refused."""

    limit: int
    requests: int
    identities: int


class Suggestion(NamedTuple):
    """The smallest limit under which this share of identities is never refused, and what it refuses."""

    share: float
    point: CurvePoint


@dataclass(frozen=True, slots=True)
class RefusalCurve:
    """Requests by the limit that would just have admitted them, and identities by the limit that never refuses them.

    - `period`: seconds; `requests`, `identities`: all of them; `today`: the limit that is in force, if one is;
    - `is_bound`: the limit is a token bucket's or a sliding window's, for which the curve says what is enough.

    >>> curve = RefusalCurve({1: 7, 2: 2, 3: 1}, {1: 4, 3: 1}, 60.0)
    >>> curve.at(1), curve.at(2), curve.at(3)
    (CurvePoint(limit=1, requests=3, identities=1), CurvePoint(limit=2, requests=1, identities=1), \
CurvePoint(limit=3, requests=0, identities=0))
    >>> curve.enough_for(0.75).limit, curve.enough_for(0.99).limit
    (1, 3)
    """

    by_place: dict[int, int]
    by_peak: dict[int, int]
    period: float
    today: int | None = None
    is_bound: bool = False

    @property
    def requests(self) -> int:
        """All requests."""
        return sum(self.by_place.values())

    @property
    def identities(self) -> int:
        """All identities."""
        return sum(self.by_peak.values())

    def at(self, limit: int) -> CurvePoint:
        """What a limit would have refused."""
        return CurvePoint(
            limit, *(sum(count for place, count in by.items() if place > limit) for by in (self.by_place, self.by_peak))
        )

    def enough_for(self, share: float) -> CurvePoint:
        """The smallest limit under which at least this share of the identities is never refused."""
        whole, never = self.identities, 0
        for peak in sorted(self.by_peak):
            never += self.by_peak[peak]
            if never >= share * whole:
                return self.at(peak)
        return self.at(0)

    def suggestions(self) -> list[Suggestion]:
        """The limits that `SHARES` of the identities never meet."""
        return [Suggestion(share, self.enough_for(share)) for share in SHARES]

    def points(self, most: int = MOST_POINTS) -> list[CurvePoint]:
        """The curve where it changes, from a limit of 0 on; where it changes more often, at limits each of which is by
        the same part larger than the one before."""
        changes = sorted({0, *self.by_place, *self.by_peak})
        if len(changes) > most:
            top = changes[-1]
            chosen = {0, 1, top, *(round(top ** (step / (most - 3))) for step in range(most - 2))}
            changes = sorted(chosen)
        requests, identities = self.requests, self.identities
        found: list[CurvePoint] = []
        places, peaks = sorted(self.by_place.items()), sorted(self.by_peak.items())
        for limit in changes:
            while places and places[0][0] <= limit:
                requests -= places.pop(0)[1]
            while peaks and peaks[0][0] <= limit:
                identities -= peaks.pop(0)[1]
            found.append(CurvePoint(limit, requests, identities))
        return found


@dataclass(slots=True)
class _Places:
    """Of one identity: runs of places that are taken, as (until when, the first, the last), the earliest end first; and
    those that are free among the `top` first, as a heap of (first, last). `peak`: the highest that ever was taken."""

    taken: deque[tuple[int, int, int]] = field(default_factory=deque)
    free: list[tuple[int, int]] = field(default_factory=list)
    top: int = 0
    peak: int = 0
    ends: int = 0

    def clear(self, moment: int) -> None:
        """Free what does not count any more."""
        taken, free = self.taken, self.free
        while taken and taken[0][0] <= moment:
            _, first, last = taken.popleft()
            heappush(free, (first, last))
        if not taken:
            free.clear()
            self.top = 0

    def join(self) -> int:
        """Make one run of free ones that adjoin; tells how many runs are kept."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted(self.free):
            if joined and joined[-1][1] == first - 1:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        self.free = joined  # In order, so a heap.
        return len(joined) + len(self.taken)


class RefusalCounter:
    """Counts for a limit what every other N would have refused."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._by_place = array("Q", [0])  # Requests, by their place.
        self._runs = 0  # At most so many are kept.
        self._places: dict[bytes, _Places] = {}
        self._period = limit.rate.period_us
        self._kind = limit.algorithm
        self._segment = round(limit.numbers(0)[2]) if limit.algorithm == "sliding_window" else 0

    def add(self, digest: bytes, moment: int) -> bool:
        """Count a request; tells whether there was room to."""
        places = self._places.get(digest)
        if places is None:
            places = self._places[digest] = _Places()
        taken, free = places.taken, places.free
        if taken and taken[0][0] <= moment:
            places.clear(moment)
        if free:
            place, last = free[0]
            if place == last:
                heappop(free)
            else:
                heapreplace(free, (place + 1, last))
        else:
            place = places.top = places.top + 1
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
        return place <= MOST_COUNTED and (self._runs <= MOST_COUNTED or self._has_room(moment))

    def _has_room(self, moment: int) -> bool:
        """Forget whatever counts no more, and tell whether that was the half of it."""
        self._runs = 0
        for places in self._places.values():
            places.clear(moment)
            self._runs += places.join()
        return self._runs <= MOST_COUNTED // 2

    def _until(self, places: _Places, moment: int) -> int:
        """Until when a request counts, at most."""
        if self._segment:
            return moment - moment % self._segment + self._segment + self._period
        if self._kind != "fixed_window":
            return moment + self._period
        if moment >= places.ends:
            places.ends = self._window_end(moment)
        return places.ends

    def _window_end(self, moment: int) -> int:
        _, period, align, _, _, following, *_ = map(round, self.limit.numbers(moment))
        if align == 0:
            return moment + period
        return moment - moment % period + period if align == 1 else following

    def curve(self, cost: int = 1) -> RefusalCurve:
        """What was counted, of requests of so many units."""
        by_place = {place * cost: count for place, count in enumerate(self._by_place) if count}
        peaks = Counter(places.peak * cost for places in self._places.values())
        is_bound = self._kind in ("token_bucket", "sliding_window")
        return RefusalCurve(by_place, dict(peaks), self._period / 1_000_000, self.limit.rate.limit, is_bound)


def why_no_curve(limits: Sequence[Limit], cost: int) -> str:
    """Why no curve is drawn for such limits; empty: one is."""
    limit = limits[0]
    if cost < 1:
        return _("a request costs 0 units")
    if find(limit.algorithm).name == "leaky_bucket":
        return _("a leaky bucket makes requests wait, and refuses by the length of its queue")
    if limit.count_denied:
        return _("it counts refused requests, too (count_denied)")
    if limit.max_wait:
        return _("it makes requests wait (max_wait)")
    return ""
