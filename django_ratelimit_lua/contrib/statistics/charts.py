"""Bars for the steps of a period, as SVG that takes the width of its place.

Shapes are paths with a class, coloured by the style sheet: a strict Content-Security-Policy allows
no inline style. A pointer shows the numbers of a step without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

PARTS = ("requests", "would_be_refused", "refused")
"""The bars of a step, each in front of the one before: refusals stand on the ground."""
MIN_HEIGHT = 2.0
"""The height of a bar of refusals, in percent, however few they are."""


def draw(steps: Sequence[Mapping[str, int]], label: str, hovers: Sequence[str] = ()) -> SafeString:
    """Return a bar for each step, with a text for each that a pointer shows.

    >>> draw([{"requests": 4, "refused": 1}], "Requests")
    '<svg class="ratelimit-bars" viewBox="0 0 10 100" preserveAspectRatio="none" role="img" aria-label="Requests"><path class="requests" d="M1 100v-100.0h8v100.0z"/><path class="would_be_refused" d=""/><path class="refused" d="M1 100v-25.0h8v25.0z"/></svg>'
    """  # noqa: E501
    most = max((step["requests"] for step in steps), default=0)
    paths = ((part, _bars(steps, part, most)) for part in PARTS)
    hover = '<rect class="hover" x="{}" width="10" height="100"><title>{}</title></rect>'
    return format_html(
        '<svg class="ratelimit-bars" viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}{}</svg>',
        10 * len(steps),
        label,
        format_html_join("", '<path class="{}" d="{}"/>', paths),
        format_html_join("", hover, ((10 * at, text) for at, text in enumerate(hovers))),
    )


def _bars(steps: Sequence[Mapping[str, int]], part: str, most: int) -> str:
    bars = ""
    for at, step in enumerate(steps):
        if step.get(part):
            height = max(MIN_HEIGHT, 100 * step[part] / most)
            bars += f"M{10 * at + 1} 100v{-height:.1f}h8v{height:.1f}z"
    return bars
