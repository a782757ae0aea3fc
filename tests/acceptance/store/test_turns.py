"""There are never more or fewer connections than an alias's `max_connections`, after any outages,
deadlines and cancellations.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import redis

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store.connection_params import ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_deadline import at_once
from tests.support.processes import until
from tests.support.redis_server import caches

MAX_ENTRIES = 3
WAITERS = 50
DEADLINE = 0.05
pytestmark = pytest.mark.skipif(os.name == "nt", reason="a process is stopped by a signal of POSIX")


def limited(settings: Any, server: Server) -> Store:
    """Return a store with three connections that does not pause after errors."""
    settings.CACHES = caches(server.url, CONNECTION_POOL_KWARGS={"max_connections": MAX_ENTRIES})
    return Store(ConnectionParams.of("default"), DEADLINE, background=True)


def connections(direct: redis.Redis) -> int:
    """Return the number of connections that the server has, without this one."""
    return len(direct.client_list()) - 1


def test_an_outage_adds_no_connections_for_threads(settings: Any) -> None:
    """Fifty threads wait for three connections to a hanging server."""
    with Server() as server, redis.Redis(port=server.port) as direct:
        store = limited(settings, server)
        at_once(store, "sync", WAITERS)
        for _ in range(2):
            os.kill(server.pid, signal.SIGSTOP)
            try:
                found = at_once(store, "sync", WAITERS)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert all(isinstance(decided, StoreError) for decided, _ in found)
            until(lambda: not failures(at_once(store, "sync", WAITERS)), "all are answered", 20)
            until(lambda: connections(direct) <= MAX_ENTRIES, "three connections", 20)
        store.close()


def failures(found: list[tuple[Any, float]]) -> list[Any]:
    return [decided for decided, _ in found if isinstance(decided, StoreError)]
