"""The refusal curve of what was counted: for every limit N, how many requests and people it would have refused.

Requests are known by the units they found used, themselves among them: one that found more than N would have been
refused by a limit of N. For a fixed window that is exactly so. Under other algorithms what is refused makes room for
what follows, so that N refuses as many at most. Above the limit in force nothing is known of what was refused but that
it wanted one more: that part is a band.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..limits.algorithms import find
from ..limits.limit import Limit
from ..limits.rate import Rate
from ..stats.marks import Marks
from ..stats.reading import Detail

MOST_POINTS = 200


class Between(NamedTuple):
    """A number that is known within bounds."""

    least: int
    most: int


class CurvePoint(NamedTuple):
    """What a limit of so many units would have refused."""

    limit: int
    requests: Between
    people: Between


@dataclass(frozen=True, slots=True)
class Curve:
    """The refusal curve of one period of a rule or call site.

    - `period_us`: of the limit; `now`: the limit that is in force, None where it is not known;
    - `detail`, `marks`: what was counted; `lowest`: the lowest limit that has refused in that time, None where nothing
      was refused; `refused`: how many requests were, in all;
    - `is_alone`: no other period was counted, so that it is this limit that has refused them; `others`: by what
      it was another one for some, or for some of the time; `is_steady`: it is alone, and there are no others;
      `is_unit`: each request took one unit.
    """

    period_us: int
    now: Limit | None
    detail: Detail
    marks: Marks
    lowest: int | None = None
    refused: int = 0
    is_alone: bool = False
    is_steady: bool = False
    others: tuple[str, ...] = ()
    is_unit: bool = False

    @property
    def is_burst(self) -> bool:
        """Whether N is what a bucket holds, at the rate that it has."""
        return self.now is not None and find(self.now.algorithm).name == "token_bucket"

    @property
    def is_exact(self) -> bool:
        """Whether a limit below today's would have refused just these, and not these at most."""
        return self.is_unit and self.now is not None and find(self.now.algorithm).name == "fixed_window"

    @property
    def today(self) -> int | None:
        """The N that is in force."""
        if self.now is None:
            return None
        return self.of(self.now.rate, self.now.burst)

    def of(self, rate: Rate, burst: int | None) -> int:
        """The N of a limit of this kind."""
        return burst or rate.limit if self.is_burst else rate.limit

    @property
    def requests(self) -> int:
        """All requests that it is drawn from."""
        return sum(self.detail.used.get(self.period_us, {}).values())

    @property
    def top(self) -> int:
        """The largest N that it says something about."""
        most = max(self.marks.marks, default=0)
        return max(most, round((self.today or 0) * 1.25), 1)

    def at(self, limit: int) -> CurvePoint:
        """What a limit would have refused."""
        requests = Between(*self.detail.beyond(self.period_us, limit))
        people = self._people(limit)
        lowest = self.lowest
        if lowest is None:
            return CurvePoint(limit, requests, people)
        if limit <= lowest:
            # Whatever was refused would have been so.
            if self.is_alone:
                requests = Between(max(requests.least, self.refused), max(requests.most, self.refused))
            if self.is_steady and limit == lowest:
                requests = Between(self.refused, self.refused)
        else:
            # Who was refused would have wanted nobody knows how much.
            known = Between(*self.detail.beyond(self.period_us, lowest))
            requests = Between(requests.least, min(known.most, requests.most + self.refused))
            people = Between(people.least, self._people(lowest).most)
            if self.is_steady:
                requests = Between(0, min(requests.most, self.refused))
        return CurvePoint(limit, requests, people)

    def _people(self, limit: int) -> Between:
        count, error = self.marks.beyond(limit)
        return Between(max(0, count - error), count + error)

    def points(self) -> list[CurvePoint]:
        """The curve: at every N, or where there are too many, at N each of which is by the same part larger."""
        top = self.top
        if top < MOST_POINTS:
            limits = set(range(top + 1))
        else:
            limits = {0, top, *(round(top ** (step / MOST_POINTS)) for step in range(MOST_POINTS))}
        if self.today is not None:
            limits |= {self.today}
        return [self.at(limit) for limit in sorted(limits) if limit <= max(top, self.today or 0)]
