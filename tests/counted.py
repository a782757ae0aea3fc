"""What the statistics read of one name, for tests."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from django_ratelimit_lua.contrib.statistics import reading
from django_ratelimit_lua.contrib.statistics.reading import Counts, Point, Span
from django_ratelimit_lua.contrib.statistics.results import LABELS, SOURCES


class Total(NamedTuple):
    """The requests of a span by result and by source, their units, and those near the limit."""

    counts: Counts
    sources: dict[str, int]
    units: int
    near: int


def results(counts: Counts) -> Counts:
    return Counter({word: number for word, number in counts.items() if word in LABELS})


def total(name: str, span: Span) -> Total:
    counts = reading.add_up(reading.series([name], span)[name])
    sources = {source: counts[f"S{letter}"] for source, letter in SOURCES.items()}
    found = {source: number for source, number in sources.items() if number}
    return Total(results(counts), found, counts["u"], counts["n"])


def series(name: str, span: Span) -> list[Point]:
    """The requests of one name by result, step by step."""
    points = reading.series([name], span)[name]
    return [Point(point.moment, results(point.counts)) for point in points]


def people_refused(name: str, span: Span) -> int:
    return reading.people_refused([name], span)[name]
