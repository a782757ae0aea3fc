"""Durable hourly counts, which the database keeps longer than Redis."""

from __future__ import annotations

import time
from collections import Counter

from ...publishing.publish import primary
from ...rules.rule import UNWRITABLE
from .hours import COLUMNS
from .keys import DAY, HOUR, HOURS_KEPT
from .models import RateLimitHour
from .reading import Counts, Point, Span, by_step, series


def kept_series(name: str, span: Span) -> list[Point]:
    """Return the requests of one name, step by step, in steps of an hour or more.

    For each hour, the larger count of the database and Redis is returned, because Redis has more of
    the last minutes.

    Raises:
        StoreError: Redis is unavailable. The database may raise its own errors.
    """
    # The hours of UTC, in which a span need not begin if a clock is half an hour off.
    begin = span.start - span.start % HOUR
    by_hour: dict[int, Counts] = {}
    if not UNWRITABLE.search(name):
        rows = RateLimitHour.objects.using(primary()).filter(name=name)
        for row in rows.filter(moment__gte=begin, moment__lt=span.end):
            by_hour[row.moment] = Counter(
                {result: getattr(row, column) for result, column in COLUMNS.items()}
            )
    oldest = int(time.time()) // DAY * DAY - HOURS_KEPT
    for point in series(name, Span(max(begin, oldest), span.end, HOUR)):
        by_hour[point.moment] = by_hour.get(point.moment, Counter()) | point.counts
    return by_step(span, HOUR, by_hour)
