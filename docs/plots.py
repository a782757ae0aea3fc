"""Draws docs/plots/*.svg: the same visitors under every algorithm, decided by the real program on a
real server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import django
from django.conf import settings

from django_ratelimit_lua.testing.server import Server

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
# Moments in seconds: one, 14 just before a fixed window ends, 14 just after, then three in two
# seconds.
VISITORS = [1.0] + [9.5] * 14 + [12.0] * 14 + [14 + turn / 1.5 for turn in range(24)]
SECONDS = 45


STYLE = """
svg:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
.plot { font-family: system-ui, sans-serif; }
.plot text { fill: currentColor; font-size: 11px; }
.plot text.up { text-anchor: end; }
.plot text.across { text-anchor: middle; }
.plot .grid { stroke: #8884; }
.plot .line { fill: none; stroke: #3987ad; stroke-width: 2.5; }
.plot path.allowed { fill: #6b93ab; }
.plot path.refused { fill: #c94040; }
"""
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
        width: Its width, in pixels before it is scaled.
        height: Its height.
        left: The space at its left edge; `right`, `top` and `bottom` at the others.
        across: Labels below, each with its share of the width; `axis` names them all.
        up: Labels on the left, each with its share of the height.
        key: The names of lines, each with its class.
    """

    title: str
    words: str = ""
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

    def svg(self) -> str:
        """Return the picture, with its style sheet."""
        grid = "".join(
            f'<path class="grid" d="M{self.left} {self.y(share)}H{self.width}"/>'
            f'<text class="up" x="{self.left}" y="{self.y(share)}" dx="-6" dy="4">{label}</text>\n'
            for share, label in self.up
        )
        columns = "".join(
            f'<text class="across" x="{self.x(share)}" y="{self.ground}" dy="18">{label}</text>\n'
            for share, label in self.across
        )
        shapes = "".join(f'<path class="{name}" d="{line}"/>\n' for name, line in self.paths)
        key = "".join(
            f'<svg x="64" y="{self.height - 16}"><path class="line {name}" d="M0 8h28"/>'
            f'<text x="36" y="12">{label}</text></svg>\n'
            for name, label in self.key
        )
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 '
            f'{self.width} {self.height}" role="img" aria-label="{self.title}">\n'
            f"<desc>{self.words}</desc><style>{STYLE}</style>\n{grid}{columns}"
            f'<text class="across" x="50%" y="{self.ground}" dy="40">{self.axis}</text>\n'
            f"{shapes}{key}</svg>\n"
        )


def outcomes(algorithm: str) -> list[tuple[float, float | None]]:
    """For each visitor, when they came and when they went in, or None."""
    from django_ratelimit_lua.limits.call import Call, Charge
    from django_ratelimit_lua.limits.limit import Limit
    from django_ratelimit_lua.store import get_store

    limit = Limit("plot", "10/10s", algorithm=algorithm)
    found: list[tuple[float, float | None]] = []
    for moment in VISITORS:
        call = Call([Charge(limit, b"0" * 32)], prefix=b"plot:", now=START + round(moment * SECOND))
        decision = get_store().decide(call)
        found.append((moment, moment + decision.wait if decision else None))
    return found


def draw(algorithm: str) -> str:
    """One plot: how many came in each half second and went in or were refused, and how many had in
    the last ten.
    """
    came = outcomes(algorithm)
    departures = [round(went * SECOND) for _, went in came if went is not None]
    bars = [{"allowed": 0, "refused": 0} for _ in range(2 * SECONDS)]
    for arrived, went in came:
        bars[int((arrived if went is None else went) * 2)][
            "refused" if went is None else "allowed"
        ] += 1
    moments = [step / 20 for step in range(20 * SECONDS)]
    counts = [
        sum(0 <= round(at * SECOND) - went < 10 * SECOND for went in departures) for at in moments
    ]
    plot = Plot(
        f"The visitors under {algorithm}",
        f"Of {len(came)} visitors, {len(departures)} are allowed; at most {max(counts)} in ten "
        "seconds.",
        left=32,
        bottom=64,
        axis="seconds",
        across=[(second / SECONDS, str(second)) for second in range(0, SECONDS + 1, 5)],
        up=[(number / 20, str(number)) for number in range(0, 21, 5)],
        key=(("", "allowed in the last 10 s"),),
    )
    plot.bars(bars, 20)
    plot.line("", [(at / SECONDS, count / 20) for at, count in zip(moments, counts, strict=True)])
    return plot.svg()


def main() -> None:
    """Draw all of them."""
    from django_ratelimit_lua.limits.algorithms import BY_RATE

    folder = Path(__file__).parent / "plots"
    folder.mkdir(exist_ok=True)
    with Server() as server:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        apps = ["django.contrib.contenttypes", "django.contrib.auth", "django_ratelimit_lua"]
        settings.configure(
            CACHES={"default": cache}, INSTALLED_APPS=apps, SECRET_KEY="plots", RATELIMIT_TIMEOUT=10
        )
        django.setup()
        for algorithm in BY_RATE:
            (folder / f"{algorithm}.svg").write_text(draw(algorithm), encoding="utf-8")


if __name__ == "__main__":
    main()
