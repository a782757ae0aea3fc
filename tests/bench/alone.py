"""What a process decides without asking Redis: from memory, and in an outage."""

from __future__ import annotations

from functools import partial

from django.test import override_settings

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.counters import Counters
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from tests.bench.measure import interleaved, limiter


def deny_cache() -> None:
    """A refusal from memory, against an answer of Redis."""
    refused, asked = RateLimiter("refused", "1/h"), limiter("asked", "10000000/h", "sliding_window")
    with override_settings(RATELIMIT_DENY_CACHE_SECONDS=3600):
        refused.hit("someone")
        costs = interleaved(
            {
                "asked": lambda: asked.hit("someone"),
                "refused from memory": lambda: refused.hit("someone"),
            }
        )
        assert refused.hit("someone").source == "deny-cache"
    (wall, _), (memory_wall, _) = costs["asked"], costs["refused from memory"]
    print(
        f"a hit that Redis answers: {wall:.1f} µs; that is refused from memory: {memory_wall:.2f} "
        "µs;",
        end=" ",
    )
    print(f"{wall / memory_wall:.0f} times less\naim: under 12 µs, at least 10 times less\n")


def outage() -> None:
    """A decision by this process's share, where little is counted and where much is."""
    limit, costs = Limit("outage", "100000/h", algorithm="sliding_log"), {}
    for units in (10, 10_000):
        counted, call = Counters(), build_call([Charge(limit, b"o" * 32)])
        for _ in range(units):
            counted.decide(call)
        costs[f"{units} units"] = partial(
            counted.decide, build_call([Charge(limit, b"o" * 32)], "peek")
        )
    (few, _), (many, _) = interleaved(costs).values()
    print(f"a decision without Redis: {few:.1f} µs where 10 units are counted,", end=" ")
    print(
        f"{many:.1f} µs where 10,000 are, {many / few:.2f} times as much\naim: at most 1.5 times\n"
    )
