"""The drawing of a refusal curve: from numbers to SVG, for a file, a page of the documentation or the admin.

Inside a page, colours are classes of its style sheet; a drawing that stands alone brings its own, for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from django.utils.translation import gettext as _

WIDTH, HEIGHT = 640, 324
LEFT, RIGHT, TOP, BOTTOM = 56, 624, 28, 246
MOST_TICKS = 9

STYLE = """
.curve { font: 12px system-ui, sans-serif; color-scheme: light dark; }
.curve text { fill: #444; font-size: 12px; }
.curve .up { text-anchor: end; }
.curve .across, .curve .axis { text-anchor: middle; }
.curve .grid { stroke: #e3e3e3; stroke-width: 1; }
.curve .back { fill: #fff; }
.curve polyline { fill: none; stroke-width: 2.5; }
.curve .requests { stroke: #205067; }
.curve .identities { stroke: #a1461d; stroke-dasharray: 6 4; }
.curve .band { fill: #205067; stroke: none; opacity: 0.15; }
.curve .band.identities { fill: #a1461d; }
.curve .today { stroke: #666; stroke-width: 1.5; stroke-dasharray: 2 3; }
@media (prefers-color-scheme: dark) {
.curve text { fill: #ccc; }
.curve .grid { stroke: #3a3a3a; }
.curve .back { fill: #161616; }
.curve .requests { stroke: #7fc4e0; }
.curve .identities { stroke: #f0a27c; }
.curve .band { fill: #7fc4e0; }
.curve .band.identities { fill: #f0a27c; }
.curve .today { stroke: #aaa; }
}
"""


class Refused(NamedTuple):
    """What a limit of N units refuses: the share of requests and the share of identities, from 0 to 1. `least`, `most`:
    between which the share of requests is, where that is not known better; `fewest`, `most_of_them`: the same of
    identities."""

    limit: int
    requests: float
    identities: float
    least: float | None = None
    most: float | None = None
    fewest: float | None = None
    most_of_them: float | None = None


def curve_svg(
    points: Sequence[Refused],
    period: str,
    *,
    today: int | None = None,
    chosen: int | None = None,
    title: str = "",
    axis: str = "",
    stands_alone: bool = True,
) -> str:
    """A refusal curve as SVG: across, the limit N (in steps each of which is so many times the one before); up, the
    share that it refuses, of requests and of identities.

    - `points`: in the order of their limits; between two, what the first says holds;
    - `period`: of the limit, in words: "minute"; `today`: the limit that is in force, marked; `chosen`: another one,
      which is looked at;
    - `axis`: what stands across, where it is not the limit; `stands_alone`: for a file of its own, with its colours.

    >>> svg = curve_svg([Refused(0, 1.0, 1.0), Refused(5, 0.25, 0.1), Refused(20, 0.0, 0.0)], "minute", today=5)
    >>> svg.startswith("<svg"), "5 per minute refuses 25% of the requests" in svg
    (True, True)
    """
    top = _top(points, today)
    parts = [f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>'] if stands_alone else []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{_y(share)}" y2="{_y(share)}"/>')
        parts.append(f'<text class="up" x="{LEFT - 8}" y="{_y(share)}" dy="4">{_percent(share)}</text>')
    for limit in ticks(top):
        x = _x(limit, top)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM}"/>')
        parts.append(f'<text class="across" x="{x}" y="{BOTTOM + 18}">{limit:,}</text>')
    axis = axis or _("limit per %(period)s") % {"period": period}
    parts.append(f'<text class="axis" x="{(LEFT + RIGHT) / 2:g}" y="{BOTTOM + 40}">{escape(axis)}</text>')
    for name, edges in (
        ("requests", [(point.limit, point.least, point.most) for point in points]),
        ("identities", [(point.limit, point.fewest, point.most_of_them) for point in points]),
    ):
        banded = [(limit, least, most) for limit, least, most in edges if least is not None and most is not None]
        if banded:
            above = _steps([(limit, most) for limit, _least, most in banded], top)
            below = _steps([(limit, least) for limit, least, _most in banded], top)
            parts.append(f'<polygon class="band {name}" points="{" ".join([*above, *reversed(below)])}"/>')
    if chosen is not None:
        x = _x(min(chosen, top), top)
        parts.append(f'<line class="chosen" x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM}"/>')
    if today is not None:
        x = _x(today, top)
        parts.append(f'<line class="today" x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM}"/>')
        label = escape(_("today %(limit)s") % {"limit": f"{today:,}"})
        parts.append(f'<text x="{x}" y="{TOP - 10}" text-anchor="middle">{label}</text>')
    for name, shares in (
        ("requests", [(point.limit, point.requests) for point in points]),
        ("identities", [(point.limit, point.identities) for point in points]),
    ):
        parts.append(f'<polyline class="{name}" points="{" ".join(_steps(shares, top))}"/>')
    parts += _key()
    style = f"<style>{STYLE}</style>" if stands_alone else ""
    head = escape(title or _("What each limit refuses"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{head}</title>\n<desc>{escape(' '.join(words(points, period, today)))}</desc>\n{style}{body}\n</svg>"
    )


def across(points: Sequence[Refused], today: int | None = None) -> list[float]:
    """Where the points of a curve are drawn, from the left."""
    return [_x(point.limit, _top(points, today)) for point in points]


def _top(points: Sequence[Refused], today: int | None) -> int:
    return max([point.limit for point in points] + [today or 1, 1])


def words(points: Sequence[Refused], period: str, today: int | None = None) -> list[str]:
    """The curve in sentences: what today's limit refuses, and some others."""
    if not points:
        return [_("There is nothing to draw.")]
    marks = [10**step for step in range(10)]
    chosen = {limit for limit in marks if points[0].limit <= limit <= points[-1].limit} | {points[-1].limit}
    if today is not None:
        chosen.add(today)
    found = []
    for limit in sorted(chosen):
        refused = max((point for point in points if point.limit <= limit), key=lambda point: point.limit)
        text = _(
            "%(limit)s per %(period)s refuses %(requests)s of the requests and meets %(identities)s of the identities."
        )
        found.append(
            text
            % {
                "limit": f"{limit:,}",
                "period": period,
                "requests": _percent(refused.requests),
                "identities": _percent(refused.identities),
            }
        )
    return found


def ticks(top: int) -> list[int]:
    """Round numbers from 1 up to a limit, at most `MOST_TICKS`.

    >>> ticks(60), ticks(5_000)
    ([1, 2, 5, 10, 20, 50], [1, 5, 10, 50, 100, 500, 1000, 5000])
    """
    for steps in ((1, 2, 5), (1, 5), (1,)):
        found = [step * 10**power for power in range(len(str(top))) for step in steps if step * 10**power <= top]
        if len(found) <= MOST_TICKS:
            break
    return found


def _x(limit: int, top: int) -> float:
    """Where a limit is: 0 at the edge, the others by their logarithm."""
    if limit < 1:
        return float(LEFT)
    whole = math.log(max(top, 2) + 1)
    return round(LEFT + math.log(limit + 1) / whole * (RIGHT - LEFT), 1)


def _y(share: float) -> float:
    return round(BOTTOM - share * (BOTTOM - TOP), 1)


def _steps(shares: Sequence[tuple[int, float]], top: int) -> list[str]:
    points: list[str] = []
    before: float | None = None
    for limit, share in shares:
        x, y = _x(limit, top), _y(share)
        if before is not None and before != y:
            points.append(f"{x},{before}")
        points.append(f"{x},{y}")
        before = y
    return [*points, f"{RIGHT},{before}"] if before is not None else points


def _percent(share: float) -> str:
    """A share; of few, with as many digits as it takes to tell it from none.

    >>> _percent(0.25), _percent(0.0123), _percent(0.00004), _percent(0.0)
    ('25%', '1.2%', '0.004%', '0%')
    """
    return f"{share * 100:.{2 if share < 0.1 else 3}g}%"


def _key() -> list[str]:
    """What the lines are."""
    parts = []
    for x, name, text in (
        (LEFT, "requests", _("requests refused")),
        (LEFT + 240, "identities", _("identities refused")),
    ):
        y = HEIGHT - 8
        parts.append(f'<polyline class="{name}" points="{x},{y - 4} {x + 28},{y - 4}"/>')
        parts.append(f'<text x="{x + 36}" y="{y}">{escape(text)}</text>')
    return parts


def curve_page(title: str, svgs: Sequence[str], tables: Sequence[str]) -> str:
    """A page of drawings, each with the numbers behind it as a table."""
    parts = "\n".join(f"<figure>{svg}</figure>\n{table}" for svg, table in zip(svgs, tables, strict=True))
    style = (
        "body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; "
        "color-scheme: light dark; } figure { margin: 1rem 0; } svg { width: 100%; height: auto; } "
        "table { border-collapse: collapse; } th, td { padding: 0.2rem 1rem 0.2rem 0; text-align: right; }"
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n<h1>{escape(title)}</h1>\n{parts}\n</html>\n"
    )
