"""A preview as numbers for an SVG: what was sent and what was let through, added up over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from ..operations.simulate import Simulation

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines in the units of the picture, ticks (place, text), and the same in words."""

    sent: str
    passed: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    words: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def plot(seen: Simulation) -> Plot:
    """The plot of a preview."""
    total = max(1, seen.burst + seen.flow_sent)
    seconds = seen.seconds

    def x(at: float) -> float:
        return round(LEFT + min(at, seconds) / seconds * (WIDTH - LEFT - RIGHT), 2)

    def y(count: float) -> float:
        return round(HEIGHT - BOTTOM - count / total * (HEIGHT - TOP - BOTTOM), 2)

    def line(events: list[tuple[float, int]]) -> str:
        points, count = [f"{x(0)},{y(0)}"], 0
        for at, number in sorted(events):
            if at > seconds:
                break
            points.append(f"{x(at)},{y(count)}")
            count += number
            points.append(f"{x(at)},{y(count)}")
        points.append(f"{x(seconds)},{y(count)}")
        return " ".join(points)

    unit, times = _unit(seconds)
    across = tuple((x(seconds * part / 6), f"{seconds * part / 6 / times:.3g} {unit}") for part in range(7))
    up = tuple((y(total * part / 4), f"{total * part / 4:.4g}") for part in range(5))
    return Plot(
        line([(one.at, one.count) for one in seen.sent]),
        line([(one.at + one.wait, one.granted) for one in seen.sent if one.granted]),
        across,
        up,
        _words(seen),
    )


def _unit(seconds: float) -> tuple[str, float]:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length:
            return unit, length
    return "ms", 0.001


def _words(seen: Simulation) -> str:
    parts: list[Any] = []
    if seen.burst:
        parts.append(
            _("Of %(sent)d at once, %(granted)d are allowed.") % {"sent": seen.burst, "granted": seen.burst_granted}
        )
    if seen.flow_sent:
        parts.append(
            _("Of %(sent)d that follow steadily, %(granted)d are allowed.")
            % {"sent": seen.flow_sent, "granted": seen.flow_granted}
        )
    longest = max((one.wait for one in seen.sent if one.granted), default=0.0)
    if longest:
        parts.append(_("The longest wait is %(seconds).3g s.") % {"seconds": longest})
    return " ".join(parts) or _("No requests.")
