"""Redis Sentinel: decisions are made by the current master."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.store import get_store
from tests.support import clusters
from tests.support.clusters import SERVICE, Watched, client
from tests.support.processes import until


@pytest.fixture
def watched(settings: Any) -> Iterator[Watched]:
    """Run a master, two replicas and three sentinels."""
    with clusters.watched() as found:
        settings.RATELIMIT_TIMEOUT = 2
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
        settings.CACHES = found.cache()
        yield found


def test_decisions_follow_the_master(watched: Watched) -> None:
    """A sentinel that is down has no effect."""
    limiter = RateLimiter("x", "1000000/h")

    async def ahit() -> Any:
        return await limiter.ahit("x")

    assert [limiter.hit("x").source, asyncio.run(ahit()).source] == ["redis", "redis"]
    first = watched.master()
    with client(first.port) as master:
        assert master.dbsize() == 1
        master.set("last", "written")  # WAIT waits for what this connection has written.
        master.wait(2, 5000)
    clusters.kill(first)
    until(lambda: limiter.hit("x").source == "redis", "the new master decides")
    assert watched.master() is not first
    decision = limiter.hit("x")
    assert decision.limits[0].used == 4
    assert asyncio.run(ahit()).limits[0].used == 5


def test_a_demoted_master_decides_nothing(watched: Watched) -> None:
    """It decides neither a peek nor a hit."""
    limiter = RateLimiter("x", "1/h")
    limiter.hit("x")
    port = watched.master().port
    with client(port) as master:
        for sentinel in watched.sentinels:
            with client(sentinel) as watcher:
                watcher.sentinel_remove(SERVICE)
                watcher.sentinel_monitor(SERVICE, "127.0.0.1", port, 2)
        other = next(server.port for server in watched.servers if server.port != port)
        master.replicaof("127.0.0.1", other)
        master.client_kill_filter(_type="normal", skipme=True)
        found = [limiter.hit("y").source, limiter.peek("x").source]
        assert found == ["fallback", "fallback"]
    get_store().close()
