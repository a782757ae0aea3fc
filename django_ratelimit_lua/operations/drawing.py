"""Drawings of what was counted, as SVG: nothing inline that a strict Content-Security-Policy keeps out, colours by
classes (see static/django_ratelimit_lua/admin.css), and what they show in words, for those who do not see them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .words import number_words

STACK = ("refused", "blocked", "would_be_refused", "allowed", "exempt", "policy", "failed")
"""From the ground up: what is refused stands on it, so that its course can be read."""
LEAST_HEIGHT = 2.0
"""What is there at all is seen."""


class Mark(NamedTuple):
    """A moment on the time axis: `at`, as a share of its length, with a `label` of a letter or two and `words`."""

    at: float
    label: str
    words: str


def sparkline(hours: Sequence[Mapping[str, int]], words: str) -> SafeString:
    """A day at a glance: a bar for each hour."""
    width, height = 120.0, 28.0
    return format_html(
        '<svg class="ratelimit-spark" viewBox="0 0 120 29" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<line class="ground" x1="0" x2="120" y1="28.5" y2="28.5"/>{}</svg>',
        words, _bars(hours, 0.0, 0.0, width, height, _largest(hours), gap=0.2),
    )  # fmt: skip


def _largest(points: Sequence[Mapping[str, int]]) -> int:
    return max((sum(point[word] for word in STACK) for point in points), default=0)


def _bars(
    points: Sequence[Mapping[str, int]], left: float, up: float, width: float, height: float, most: float, gap: float
) -> SafeString:
    paths: dict[str, list[str]] = {}
    step = width / max(1, len(points))
    for place, point in enumerate(points):
        ground = up + height
        for word in STACK:
            if not point[word] or not most:
                continue
            tall = point[word] / most * height
            if word in ("refused", "blocked", "would_be_refused"):
                tall = max(tall, LEAST_HEIGHT)
            tall = min(tall, ground - up)
            x, w = left + (place + gap / 2) * step, step * (1 - gap)
            paths.setdefault(word, []).append(f"M{x:.1f} {ground:.1f}v{-tall:.1f}h{w:.1f}v{tall:.1f}z")
            ground -= tall
    rows = ((word, "".join(paths[word])) for word in STACK if word in paths)
    return format_html_join("", '<path class="{}" d="{}"/>', rows)


def ticks(most: float) -> list[float]:
    """A few round numbers from nought to about that.

    >>> ticks(87), ticks(3), ticks(0)
    ([0, 20, 40, 60, 80, 100], [0, 1, 2, 3], [0, 1])
    """
    if most <= 0:
        return [0, 1]
    raw = most / 5
    power = 10 ** math.floor(math.log10(raw))
    step = max(1, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw))
    return [round(step * number) for number in range(math.ceil(most / step) + 1)]


WIDE, NARROW = 960.0, 400.0
"""Of a chart on a desk, and on a phone, where letters stay as large."""
HEIGHT, LEFT, RIGHT, UP, DOWN = 260.0, 64.0, 8.0, 22.0, 28.0


def chart(
    points: Sequence[Mapping[str, int]], moments: Sequence[str], axis: Sequence[tuple[float, str]],
    marks: Sequence[Mark], title: str, words: str, size: float = WIDE,
) -> SafeString:  # fmt: skip
    """A stacked bar for each step of a time. `moments`: what each is called; `axis`: places on the time axis, as shares
    of its length, and their labels."""
    scale = ticks(_largest(points))
    width, height = size - LEFT - RIGHT, HEIGHT - UP - DOWN
    step = width / max(1, len(points))

    def y(number: float) -> str:
        return f"{UP + height * (1 - number / scale[-1]):.1f}"

    grid = format_html_join(
        "", '<line class="grid" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
        '<text class="up" x="{3}" y="{2}" dy="4">{4}</text>',
        ((LEFT, size - RIGHT, y(number), LEFT - 6, number_words(number)) for number in scale),
    )  # fmt: skip
    labels = format_html_join(
        "", '<text class="across{}" x="{}" y="{}">{}</text>',
        ((" rarer" if place % 2 else "", f"{LEFT + width * at:.1f}", HEIGHT - 8, label)
         for place, (at, label) in enumerate(axis)),
    )  # fmt: skip
    hovers = format_html_join(
        "", '<rect class="hover" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        ((f"{LEFT + place * step:.1f}", UP, f"{step:.1f}", height, moment) for place, moment in enumerate(moments)),
    )  # fmt: skip
    drawn = format_html_join(
        "", '<g class="mark"><title>{0}</title><line x1="{1}" x2="{1}" y1="{2}" y2="{3}"/>'
        '<circle cx="{1}" cy="11" r="9"/><text class="across" x="{1}" y="15">{4}</text></g>',
        ((mark.words, f"{LEFT + width * mark.at:.1f}", 20, HEIGHT - DOWN, mark.label) for mark in marks),
    )  # fmt: skip
    return format_html(
        '<svg class="ratelimit-chart {0}" viewBox="0 0 {1} {2}" role="img" '
        'aria-labelledby="chart-title-{0} chart-words-{0}">'
        '<title id="chart-title-{0}">{3}</title><desc id="chart-words-{0}">{4}</desc>{5}{6}{7}{8}{9}</svg>',
        "wide" if size == WIDE else "narrow", int(size), int(HEIGHT), title, words, grid, labels,
        _bars(points, LEFT, UP, width, HEIGHT - UP - DOWN, scale[-1], 0.15), hovers, drawn,
    )  # fmt: skip
