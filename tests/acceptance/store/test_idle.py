"""Idle connections are closed, and connections that the server has closed cause no errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.store import asynchronous, get_store, server
from django_ratelimit_lua.testing.server import Server
from tests.support.processes import until
from tests.support.redis_server import caches


@pytest.fixture
def own(settings: Any) -> Iterator[redis.Redis]:
    """Return a client of a server that only the limiter uses."""
    with Server() as found, redis.Redis.from_url(found.url) as direct:
        settings.CACHES = caches(found.url)
        settings.RATELIMIT_TIMEOUT = 5
        reset_rules()
        yield direct
        get_store().close()


def open_connections(direct: redis.Redis) -> int:
    """Return the number of connections that make decisions."""
    return sum(client["cmd"].startswith(("eval", "script")) for client in direct.client_list())


def test_threads_close_idle_connections(own: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst, the idle connections are closed, and one that is used stays open."""
    limiter = RateLimiter("idle", "100000/h")
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(limiter.hit, range(400)))
    assert open_connections(own) > 1
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)

    def is_alone() -> bool:
        limiter.hit("someone")
        time.sleep(0.02)
        return open_connections(own) == 1

    until(is_alone, "one connection is left", 10)
    assert limiter.hit("someone").source == "redis"
    until(lambda: open_connections(own) == 0, "none is left", 10)
    assert limiter.hit("someone").source == "redis"


def test_an_event_loop_closes_an_idle_connection(
    own: redis.Redis, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    """The next decision opens another connection."""
    monkeypatch.setattr(asynchronous, "IDLE_SECONDS", 0.3)
    limiter = RateLimiter("idle", "100000/h")

    async def both() -> list[str]:
        first = await limiter.ahit("someone")
        assert await asyncio.to_thread(open_connections, own) == 1
        await asyncio.to_thread(until, lambda: open_connections(own) == 0, "none is left", 10)
        return [first.source, (await limiter.ahit("someone")).source]

    assert asyncio.run(both()) == ["redis", "redis"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_connection_closed_by_the_server_fails_no_decision(kind: str, own: redis.Redis) -> None:
    """Redis with its setting `timeout`, or a firewall, may close idle connections."""
    limiter = RateLimiter("closed", "100000/h")

    async def several() -> list[str]:
        sources = []
        for _ in range(4):
            found = await limiter.ahit("x") if kind == "async" else limiter.hit("x")
            sources.append(found.source)
            own.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await asyncio.sleep(0.05)
        return sources

    assert asyncio.run(several()) == ["redis"] * 4
