"""The plot of this package: bars and step lines as SVG.

Shapes are paths with a class, coloured by static/django_ratelimit_lua/plot.css. A page needs no
inline style, which a strict Content-Security-Policy would refuse. A separate SVG file contains that
style sheet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from django.template import Context, Engine
from django.utils.safestring import SafeString, mark_safe

from .formatting import number_words

PACKAGE = Path(__file__).parents[1]
STACK = ("refused", "allowed")
"""The parts of a bar, from the bottom up: refusals can be compared along the ground."""

Points = Iterable[tuple[float, float]]
"""Places in a plot, as shares of its width from the left and of its height from the bottom."""


@dataclass(slots=True)
class Plot:
    """A plot and its elements.

    Args:
        title: The name of the plot, for screen readers.
        words: The content of the plot in sentences, for screen readers.
        kind: The CSS classes of the picture.
        width: Its width, in pixels before it is scaled.
        height: Its height.
        left: The space at its left edge; `right`, `top` and `bottom` at the others.
        across: Labels below, each with its share of the width; `axis` names them all.
        up: Labels on the left, each with its share of the height.
        key: The names of lines, each with its class.

    >>> plot = Plot("Requests")
    >>> plot.line("sent", [(0.0, 0.0), (0.5, 1.0)])
    >>> 'd="M64 222H348V22H632"' in plot.svg()
    True
    """

    title: str
    words: str = ""
    kind: str = ""
    width: float = 640
    height: float = 250
    left: float = 64
    right: float = 8
    top: float = 22
    bottom: float = 28
    across: Sequence[tuple[float, str]] = ()
    axis: str = ""
    up: Sequence[tuple[float, str]] = ()
    key: Sequence[tuple[str, str]] = ()
    paths: list[tuple[str, str]] = field(default_factory=list)

    def x(self, share: float) -> float:
        """Return the x coordinate for a share of the width."""
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def y(self, share: float) -> float:
        """Return the y coordinate for a share of the height."""
        return round(self.ground - share * (self.ground - self.top), 1)

    @property
    def ground(self) -> float:
        """Return the y coordinate of the lower edge of bars and lines."""
        return self.height - self.bottom

    def bars(self, points: Sequence[Mapping[str, float]], most: float, gap: float = 0.15) -> None:
        """Draw a bar for each point, as high as the sum of its parts (see `STACK`).

        Args:
            points: The parts of each bar.
            most: The sum that has the full height.
            gap: The share of a step between two bars.
        """
        paths: dict[str, str] = defaultdict(str)
        step = 1 / max(1, len(points))
        for place, point in enumerate(points):
            ground = self.ground
            for part in STACK:
                if not point.get(part) or not most:
                    continue
                height = point[part] / most * (self.ground - self.top)
                height = min(height, ground - self.top)
                left = self.x((place + gap / 2) * step)
                right = self.x((place + 1 - gap / 2) * step)
                paths[part] += f"M{left:g} {ground:.1f}v{-height:.1f}H{right:g}v{height:.1f}z"
                ground -= height
        self.paths += paths.items()

    def line(self, name: str, points: Points) -> None:
        """Draw a line that keeps the height of each point up to the next one."""
        self.paths.append((f"line {name}", self._steps(points)))

    def _steps(self, points: Points) -> str:
        (at, up), *others = points
        steps = "".join(f"H{self.x(at):g}V{self.y(up):g}" for at, up in others)
        return f"M{self.x(at):g} {self.y(up):g}{steps}H{self.x(1.0):g}"

    def svg(self, *, is_file: bool = False) -> SafeString:
        """Return the picture, for a page that has the style sheet or for a separate file."""
        context: dict[str, object] = {
            "plot": self,
            "grid": [(self.y(share), label) for share, label in self.up],
            "columns": [(self.x(share), label) for share, label in self.across],
        }
        if is_file:
            context["style"] = read_style()
        return render("django_ratelimit_lua/plot.svg", context)


def ticks(most: float) -> list[float]:
    """Return a few round numbers from zero to about `most`.

    >>> ticks(87), ticks(3), ticks(0)
    ([0, 20, 40, 60, 80, 100], [0, 1, 2, 3], [0, 1])
    """
    if most <= 0:
        return [0, 1]
    raw = most / 5
    power = 10 ** math.floor(math.log10(raw))
    step = max(1, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw))
    return [round(step * number) for number in range(math.ceil(most / step) + 1)]


def labels(scale: Sequence[float]) -> list[tuple[float, str]]:
    """Return the labels of an axis that ends at the last of these numbers."""
    return [(number / scale[-1], number_words(number)) for number in scale]


def read_style() -> SafeString:
    """Return the style sheet of plots."""
    return mark_safe((PACKAGE / "static/django_ratelimit_lua/plot.css").read_text(encoding="utf-8"))


def render(name: str, context: Mapping[str, object]) -> SafeString:
    """Render one of this package's templates, whatever engine the project uses."""
    return _engine().get_template(name).render(Context(context, use_l10n=False))


@cache
def _engine() -> Engine:
    return Engine(
        dirs=[str(folder) for folder in sorted(PACKAGE.rglob("templates"))],
        libraries={"i18n": "django.templatetags.i18n"},
    )
