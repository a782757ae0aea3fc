"""Durable hours: counts that the database keeps longer than Redis does."""

from __future__ import annotations

import time
from collections import Counter

from django.db.models import QuerySet

from ...publishing.publish import primary
from ...rules.rule import UNWRITABLE
from .hours import COLUMNS
from .keys import DAY, HOUR, HOURS_KEPT
from .models import RateLimitHour
from .reading import Counts, Point, Span, series


def kept_series(name: str, span: Span) -> list[Point]:
    """The counts of one name, step by step, in hours or longer steps: from the database, and from
    Redis if that has more, as for the last minutes.

    Raises `StoreError`, and errors of the database.
    """
    # Both count by hours of UTC, in which a time need not begin, as where clocks are half an hour
    # off.
    begin = span.start - span.start % HOUR
    by_hour: dict[int, Counts] = {}
    for row in _rows(name, begin, span.end):
        by_hour[row.moment] = Counter(
            {result: getattr(row, column) for result, column in COLUMNS.items()}
        )
    first = max(begin, (int(time.time()) // DAY - HOURS_KEPT // DAY) * DAY)
    for point in series(name, Span(first, span.end, HOUR)) if first < span.end else ():
        by_hour[point.moment] = (
            by_hour.get(point.moment, Counter()) | point.counts
        )  # The larger of both.
    counts: dict[int, Counts] = {moment: Counter() for moment in span.moments}
    for hour, found in by_hour.items():
        moment = max(
            hour, span.start
        )  # An hour that is in it in part is in it as a whole, as in `series`.
        step = moment - (moment - span.start) % span.step
        if step in counts:
            counts[step] += found
    return [Point(moment, of) for moment, of in counts.items()]


def _rows(name: str, start: int, end: int) -> QuerySet[RateLimitHour]:
    rows = RateLimitHour.objects.using(primary())
    return (
        rows.none()
        if UNWRITABLE.search(name)
        else rows.filter(name=name, moment__gte=start, moment__lt=end)
    )
