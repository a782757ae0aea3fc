"""Draws docs/plots/*.svg: the same visitors under every algorithm, decided by the real program on a real server."""

from __future__ import annotations

from pathlib import Path

import django
from django.conf import settings

from django_ratelimit_lua.testing.server import Server

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
# Moments in seconds: one, 14 just before a fixed window ends, 14 just after, then three in two seconds.
VISITORS = [1.0] + [9.5] * 14 + [12.0] * 14 + [14 + turn / 1.5 for turn in range(24)]
COLOURS = {"admitted": "#1f8a5b", "waits": "#b26a00", "refused": "#c0392b"}


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


def draw(algorithm: str, folder: Path) -> None:
    """One plot: who came when, who went in when, and how many had in the last ten seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    came = outcomes(algorithm)
    labels = set()
    for number, (arrived, went) in enumerate(came):
        kind = "refused" if went is None else "waits" if went > arrived else "admitted"
        at = arrived if went is None else went
        if kind == "waits":
            above.plot([arrived, at], [number, number], color=COLOURS[kind], linewidth=1, alpha=0.5)
        label = None if kind in labels else {"waits": "admitted, waits its turn"}.get(kind, kind)
        labels.add(kind)
        marker = {"marker": "o", "facecolors": "none" if kind == "refused" else COLOURS[kind]}
        above.scatter([at], [number], s=16, edgecolors=COLOURS[kind], linewidths=1.2, label=label, **marker)
    above.set_ylabel("visitor")
    above.legend(loc="lower right", fontsize=8, frameon=False)
    departures = [round(went * SECOND) for _, went in came if went is not None]
    moments = [step / 20 for step in range(45 * 20)]
    counts = [sum(0 <= round(at * SECOND) - went < 10 * SECOND for went in departures) for at in moments]
    below.step(moments, counts, where="post", color="#30506b")
    below.axhline(10, color="#888", linestyle=":", linewidth=1)
    below.set_ylabel("in the\nlast 10 s")
    below.set_xlabel("seconds")
    below.set_ylim(0, 21)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / f"{algorithm}.svg", metadata={"Date": None})


def main() -> None:
    """Draw all of them."""
    from django_ratelimit_lua.limits.algorithms import BY_RATE

    folder = Path(__file__).parent / "plots"
    folder.mkdir(exist_ok=True)
    with Server() as server:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        settings.configure(CACHES={"default": cache}, SECRET_KEY="plots", RATELIMIT_TIMEOUT=10)
        django.setup()
        for algorithm in BY_RATE:
            draw(algorithm, folder)


if __name__ == "__main__":
    main()
