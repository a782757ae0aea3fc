"""Sentinel: decisions go to the master, whoever that is at the moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.embedded import Server, valkey_binary
from django_ratelimit_lua.store import get_store
from tests.demo import free_port

SERVICE = "limits"


@dataclass
class Watched:
    """A master with two replicas, and three sentinels that watch them."""

    servers: list[Server]
    sentinels: list[int]

    def master(self) -> int:
        """The port of the server that is the master, as the sentinels say."""
        with redis.Redis(port=self.sentinels[0]) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])


def ready(port: int) -> bool:
    """Whether a sentinel knows both replicas and both other sentinels."""
    try:
        with redis.Redis(port=port, socket_timeout=1) as sentinel:
            state = sentinel.sentinel_master(SERVICE)
    except redis.RedisError:
        return False
    return int(state["num-slaves"]) == 2 and int(state["num-other-sentinels"]) == 2


@pytest.fixture
def watched(settings: Any) -> Iterator[Watched]:
    """All of them on loopback."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        for server in servers[1:]:
            with redis.Redis.from_url(server.url) as replica:
                replica.replicaof("127.0.0.1", servers[0].port)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-sentinel-")))
        ports = []
        for number in range(3):
            port = free_port()
            file = folder / f"{number}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {servers[0].port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n"
            )
            process = subprocess.Popen([valkey_binary(), str(file), "--sentinel"], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports.append(port)
        for _ in range(300):
            if all(map(ready, ports)):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the sentinels never agreed")
        nobody = free_port()
        settings.RATELIMIT_TIMEOUT = 2
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
        settings.CACHES = {
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"redis://{SERVICE}/0",
                "OPTIONS": {
                    "CLIENT_CLASS": "django_redis.client.SentinelClient",
                    "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                    "SENTINELS": [("127.0.0.1", port) for port in (nobody, *ports)],
                },
            }
        }
        yield Watched(servers, ports)


def test_decisions_follow_the_master(watched: Watched) -> None:
    """One sentinel that is not there costs nothing; the master is asked; when it dies, the next one is, and no request
    is a failure for longer than the failover takes."""
    limiter = RateLimiter("x", "1000000/h")

    async def ahit() -> Any:
        return await limiter.ahit("x")

    assert [limiter.hit("x").source, asyncio.run(ahit()).source] == ["redis", "redis"]
    first = watched.master()
    with redis.Redis(port=first) as master:
        assert master.dbsize() == 1
        master.wait(2, 5000)
    victim = next(server for server in watched.servers if server.port == first)
    os.kill(victim.pid, signal.SIGKILL)
    sources = []
    for _ in range(1500):
        sources.append(limiter.hit("x").source)
        if sources[-1] == "redis":
            break
        time.sleep(0.02)
    assert sources[-1] == "redis"
    second = watched.master()
    assert second != first
    decision = limiter.hit("x")
    assert decision.limits[0].used == 4
    assert asyncio.run(ahit()).limits[0].used == 5


def test_a_demoted_master_decides_nothing(watched: Watched) -> None:
    """Neither what it would only have to read, nor what it may not write."""
    limiter = RateLimiter("x", "1/h")
    limiter.hit("x")
    port = watched.master()
    with redis.Redis(port=port) as master:
        for sentinel in watched.sentinels:
            with redis.Redis(port=sentinel) as watcher:
                watcher.sentinel_remove(SERVICE)
                watcher.sentinel_monitor(SERVICE, "127.0.0.1", port, 2)
        other = next(server.port for server in watched.servers if server.port != port)
        master.replicaof("127.0.0.1", other)
        master.client_kill_filter(_type="normal", skipme=True)
        found = [limiter.hit("y").source, limiter.peek("x").source]
        assert found == ["fallback", "fallback"]
    get_store().close()
