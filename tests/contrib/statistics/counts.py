"""The counts of one name, read as pages read them."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from django_ratelimit_lua.contrib.statistics import reading
from django_ratelimit_lua.contrib.statistics.clients import Estimate
from django_ratelimit_lua.contrib.statistics.counters import HOUR, LABELS, SOURCES
from django_ratelimit_lua.contrib.statistics.reading import Counts, Point, Span


class Total(NamedTuple):
    """The requests of a span by result, and the decisions by source."""

    counts: Counts
    sources: dict[str, int]


def last(seconds: int, step: int, now: float | None = None) -> Span:
    """Return the last seconds as a span, up to the end of the current step."""
    end = (int(now or time.time()) // step + 1) * step
    return Span(end - seconds, end, step)


def results(counts: Counts) -> Counts:
    return Counter({word: number for word, number in counts.items() if word in LABELS})


def total(name: str, span: Span) -> Total:
    counts = reading.add_up(reading.read_series([name], span)[name])
    sources = {source: counts[f"S{letter}"] for source, letter in SOURCES.items()}
    return Total(results(counts), {source: number for source, number in sources.items() if number})


def series(name: str, span: Span) -> list[Point]:
    """Return the requests of one name by result, step by step."""
    points = reading.read_series([name], span)[name]
    return [Point(point.moment, results(point.counts)) for point in points]


def top(name: str, what: str = "refused") -> list[Estimate]:
    """Return the top clients of the last 24 hours."""
    now = int(time.time()) // HOUR
    return reading.read_top_clients(name, range(now - 23, now + 1), what)
