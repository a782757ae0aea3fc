"""Draws docs/plots/*.svg: the same visitors under every algorithm, decided by the real program on a
real server.
"""

from __future__ import annotations

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
    from django_ratelimit_lua.operations.plot import Plot, labels

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
        up=labels(range(0, 21, 5)),
        key=(("", "allowed in the last 10 s"),),
    )
    plot.bars(bars, 20)
    plot.line("", [(at / SECONDS, count / 20) for at, count in zip(moments, counts, strict=True)])
    return plot.svg(is_file=True)


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
