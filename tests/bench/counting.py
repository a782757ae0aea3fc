"""The cost of counting: `python -m tests.bench.counting`, or a part of `make bench`."""

from __future__ import annotations

import os
import statistics
import time

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.extension import decision_hooks
from tests.support.redis_server import server

ROUNDS, HITS = 31, 1000


def counting() -> None:
    """Print the client CPU of a hit that is counted and of one that is not, in turns."""
    limiter = RateLimiter("counted", "10000000/h", algorithm="token_bucket")
    ways = {"not counted": False, "counted": True}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    hooks = list(decision_hooks)
    for round_number in range(ROUNDS + 1):
        for way, is_counted in ways.items():
            decision_hooks[:] = hooks if is_counted else []
            recorder._is_awaited = True  # No thread writes.
            began = time.process_time()
            for number in range(HITS):
                limiter.hit(number % 100)
            if round_number:  # The first round warms up.
                taken[way].append((time.process_time() - began) / HITS * 1e6)
    decision_hooks[:] = hooks
    base = statistics.median(taken["not counted"])
    print(f"{'a hit, token bucket':40}{'CPU µs':>9}{'more µs':>9}{'x':>7}")
    for way, rounds in taken.items():
        # Neighbouring rounds are compared, because the speed of the machine changes.
        more = statistics.median(
            one - other for one, other in zip(rounds, taken["not counted"], strict=True)
        )
        print(f"{way:40}{base + more:9.2f}{more:9.2f}{1 + more / base:7.3f}")
    print("aim: at most 1 µs of client CPU a decision, and no trip more\n")


if __name__ == "__main__":
    counting()
    server.stop()
