"""The refusal curve: how many requests and identities each limit N would have refused.

For each request, the used units including its own are recorded: a limit of N would have refused it
if there were more than N. For a fixed window that is exact. Under other algorithms a refusal makes
room for later requests, so a limit of N refuses at most as many. For a request that the limit in
force has refused, the used units are unknown: above that limit, the curve is an upper bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from django.utils.translation import gettext as _

from ..limits.limit import Limit
from .formatting import number_words, share_words
from .plot import Mark, Plot

MAX_POINTS = 200
MAX_TICKS = 9


class Between(NamedTuple):
    """The lower and the upper bound of a number."""

    least: int
    most: int

    def up_to(self, number: int) -> Between:
        """Return these bounds, reduced to a known maximum."""
        return Between(min(self.least, number), min(self.most, number))


class CurvePoint(NamedTuple):
    """The refusals that a limit of this size would have made."""

    limit: int
    requests: Between
    people: Between


class HigherLimits(Protocol):
    """The bounds for limits above today's, if today's limit has refused requests."""

    def enough(self, today: int) -> int:
        """Return a limit above which nothing changes any more."""

    def cap(self, point: CurvePoint, today: int) -> CurvePoint:
        """Lower the upper bounds of a limit above today's."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The refusal curve of one period of a rule or call site.

    Args:
        period_us: The period of the limit.
        now: The limit in force, if it is known.
        requests: The number of all requests.
        people: The number of all identities.
        find_requests: Returns how many requests brought the used units above a number.
        find_people: Returns how many identities used, or requested, more than a number of units.
        most: The maximum number of units that one identity used.
        refused: The number of refused requests.
        others: Why requests met other limits than this one.
        is_exact: Whether the numbers are exact instead of upper bounds. Above today's limit, they
            are exact only if that has refused nothing.
        higher: The bounds for limits above today's, if today's limit has refused requests.
        is_sampled: The number of identities is estimated.

    >>> counts = lambda units: Between(max(0, 10 - units), max(0, 10 - units))
    >>> curve = Curve(60_000_000, None, 10, 10, counts, counts, most=10)
    >>> curve.at(9).requests, curve.enough_for(75).limit, curve.enough_for(99).limit
    (Between(least=1, most=1), 8, 10)
    """

    period_us: int
    now: Limit | None
    requests: int
    people: int
    find_requests: Callable[[int], Between]
    find_people: Callable[[int], Between]
    most: int
    refused: int = 0
    others: tuple[str, ...] = ()
    is_exact: bool = False
    higher: HigherLimits | None = None
    is_sampled: bool = False

    @property
    def is_burst(self) -> bool:
        """Return whether the curve is about the burst of a bucket, not about its limit."""
        return self.now is not None and self.now.kind.is_bucket

    @property
    def today(self) -> int | None:
        """Return the limit or burst that is in force, or None."""
        if self.now is None:
            return None
        if self.is_burst and self.now.burst:
            return self.now.burst
        return self.now.rate.limit

    def at(self, limit: int) -> CurvePoint:
        """Return the refusals that a limit would have made."""
        requests = self.find_requests(limit)
        people = self.find_people(limit)
        today = self.today
        refused = self.refused
        if today is not None and refused:
            least, most = requests
            if limit > today:
                # How much more the refused requests would have taken is not known.
                most = min(self.find_requests(today).most, most + refused)
                people = Between(people.least, self.find_people(today).most)
                if not self.others:
                    least = 0
                    most = min(most, refused)
            elif not self.others:  # Every request that was refused would have been refused.
                least = max(least, refused)
                most = max(most, refused)
                if limit == today:
                    least = most = refused
            requests = Between(least, most)
        point = CurvePoint(limit, requests, people)
        if self.higher is not None and today is not None and limit > today:
            return self.higher.cap(point, today)
        return point

    def is_exact_at(self, limit: int) -> bool:
        """Return whether `at` returns exact numbers for this limit, and not only bounds."""
        if self.refused and self.today is not None and not self.others:
            return limit == self.today or (self.is_exact and limit < self.today)
        return self.is_exact

    @property
    def top(self) -> int:
        """Return the largest N that is drawn. Any larger N refuses as many."""
        today = self.today or 0
        enough = 0 if self.higher is None else self.higher.enough(today)
        return max(self.most, round(today * 1.25), enough, 1)

    def points(self, chosen: int = 0) -> list[CurvePoint]:
        """Return the curve up to a chosen N: at every N, or at some, growing by the same factor."""
        top = max(self.top, chosen)
        limits = set(range(min(top, MAX_POINTS) + 1))
        if top >= MAX_POINTS:
            limits = {0, top, *(round(top ** (step / MAX_POINTS)) for step in range(MAX_POINTS))}
        limits |= {self.today or 0, chosen}
        return [self.at(limit) for limit in sorted(limits)]

    def enough_for(self, percent: float) -> CurvePoint:
        """Return the smallest limit that never refuses this percentage of the identities."""

        def is_enough(limit: int) -> bool:
            refused = self.find_people(limit).most
            return (self.people - refused) * 100 >= percent * self.people

        return self.at(bisect_left(range(self.most), True, key=is_enough))


def plot_curve(
    points: Sequence[CurvePoint],
    requests: int,
    people: int,
    per: str,
    *,
    today: int | None = None,
    title: str = "",
) -> Plot:
    """Return the plot of a refusal curve: the shares that each limit refuses.

    Args:
        points: In the order of their limits, at least one. Each holds up to the next one.
        requests: The number of all requests.
        people: The number of all people.
        per: The period of the limits, in words.
        today: The limit that is in force.
        title: The name of the plot.
    """
    quarters = [(quarter / 4, share_words(quarter / 4)) for quarter in range(5)]
    top = points[-1].limit
    plot = Plot(
        title or _("What each limit refuses"),
        " ".join(_sentences(points, requests, people, per, today)),
        "curve",
        height=324,
        bottom=78,
        up=quarters,
        across=[(scale(limit, top), f"{limit:,}") for limit in ticks(top)],
        axis=_("limit per %(period)s") % {"period": per},
        key=(("requests", _("requests refused")), ("people", _("clients refused"))),
    )
    if today is not None:
        label = _("today %(limit)s") % {"limit": number_words(today)}
        plot.marks = [Mark(scale(today, top), label, kind="today")]
    for name, whole in (("requests", requests), ("people", people)):
        edges = [(scale(point.limit, top), getattr(point, name)) for point in points]
        lower = [(at, bounds.least / max(1, whole)) for at, bounds in edges]
        upper = [(at, bounds.most / max(1, whole)) for at, bounds in edges]
        if lower != upper:
            plot.band(name, lower, upper)
        plot.line(name, upper)
    return plot


def scale(limit: int, top: int) -> float:
    """Return the position of a limit on a logarithmic axis from 0, as a share of its length."""
    return math.log(limit + 1) / math.log(max(top, 2) + 1)


def ticks(top: int) -> list[int]:
    """Return round numbers from 1 up to a limit, at most `MAX_TICKS`.

    >>> ticks(60), ticks(5_000)
    ([1, 2, 5, 10, 20, 50], [1, 5, 10, 50, 100, 500, 1000, 5000])
    """
    for steps in ((1, 2, 5), (1, 5), (1,)):
        found = [
            step * 10**power
            for power in range(len(str(top)))
            for step in steps
            if step * 10**power <= top
        ]
        if len(found) <= MAX_TICKS:
            break
    return found


def _sentences(
    points: Sequence[CurvePoint], requests: int, people: int, per: str, today: int | None
) -> list[str]:
    """Return the refusals of today's limit and of some others, in sentences."""
    text = _(
        "%(limit)s per %(period)s refuses %(requests)s of the requests and affects %(clients)s "
        "of the clients."
    )
    return [
        text
        % {
            "limit": number_words(point.limit),
            "period": per,
            "requests": share_words(point.requests.most / max(1, requests)),
            "clients": share_words(point.people.most / max(1, people)),
        }
        for point in points
        if point.limit in (today, *ticks(points[-1].limit))
    ]
