"""What a process decides without asking Redis: from memory, and in an outage."""

from __future__ import annotations

from django.test import override_settings

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.local import LocalCounts
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
    """A decision by the counts of this process."""
    limit = Limit("outage", "100000/h", on_store_error="local")
    counts, call = LocalCounts(), build_call([Charge(limit, b"o" * 32)])
    wall, _ = interleaved({"alone": lambda: counts.decide(call, in_outage=True)})["alone"]
    print(f"a decision without Redis: {wall:.1f} µs\n")
