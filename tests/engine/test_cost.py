"""The cost of a decision for the server, by the statistics of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.limits.algorithms import BY_RATE

# They count what Redis is asked.
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("quiet")]
RATES = [f"{n}/h" for n in range(101, 109)]
INSIDE = "get set del time zadd zcount zrange zremrangebyscore pexpire hget"


def calls(direct: redis.Redis) -> dict[str, int]:
    """Return how often each command was called from outside, without those of statistics."""
    statistics = direct.info("commandstats")
    names = {
        name.removeprefix("cmdstat_"): int(entry["calls"]) for name, entry in statistics.items()
    }
    beside = {"info", "config|resetstat", "config", "hincrby", "expire"}
    return {name: count for name, count in names.items() if name not in {*INSIDE.split(), *beside}}


@pytest.mark.parametrize("algorithm", BY_RATE)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_any_number_of_limits_costs_one_evalsha(
    algorithm: str, count: int, direct: redis.Redis
) -> None:
    """1, 3 and 8 limits take one EVALSHA and no other command, also in a coroutine."""
    limiter = RateLimiter("cost", RATES[:count], algorithm=algorithm)
    limiter.hit("warm")
    direct.config_resetstat()
    for _ in range(10):
        limiter.hit("someone")
    assert calls(direct) == {"evalsha": 10}

    async def hits() -> None:
        await limiter.ahit("warm")
        direct.config_resetstat()
        for _ in range(10):
            await limiter.ahit("someone")
        assert calls(direct) == {"evalsha": 10}

    asyncio.run(hits())


def test_stacked_decorators_cost_one_evalsha(direct: redis.Redis, rf: RequestFactory) -> None:
    """Adjacent decorators, and lists of rates, are decided in one call."""

    @ratelimit(key="ip", rate="100/m")
    @ratelimit(key="header:x-api-key", rate=["10/s", "500/h"])
    @ratelimit(key=("ip", "get:q"), rate="50/m", method="GET")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    view(rf.get("/"))
    direct.config_resetstat()
    request = rf.get("/")
    view(request)
    assert calls(direct) == {"evalsha": 1}
    assert len(request.ratelimit.limits) == 4


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_flushed_script_is_loaded_again_within_the_call(kind: str, direct: redis.Redis) -> None:
    """NOSCRIPT costs one load of the script, and the hit counts once."""
    limiter = RateLimiter("flushed", "5/h")

    def hit() -> Any:
        return limiter.hit("someone") if kind == "sync" else asyncio.run(limiter.ahit("someone"))

    hit()
    direct.script_flush()
    direct.config_resetstat()
    assert hit().limits[0].used == 2
    found = calls(direct)
    assert (found["evalsha"], found["eval"]) == (1, 1)
