"""Clusters and sentinels on loopback, from the binary of the session."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from django_redis.pool import ConnectionFactory
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from django_ratelimit_lua.testing.server import Server, valkey_binary
from tests.support.processes import free_port, until

SERVICE = "limits"
SLOTS = 16_384


def client(port: int) -> redis.Redis:
    """Return a client that does not retry."""
    return redis.Redis(port=port, socket_timeout=5, retry=Retry(NoBackoff(), 0))


@dataclass
class Cluster:
    """Three masters with a replica each."""

    servers: list[Server]

    def cache(self, *nodes: Server, user: str = "") -> dict[str, Any]:
        """Return the value of `CACHES`."""
        urls = [server.url.replace("//", f"//{user}") for server in nodes or self.servers[:2]]
        options = {"CONNECTION_FACTORY": "django_ratelimit_lua.store.ClusterConnectionFactory"}
        return {
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": urls,
                "OPTIONS": options,
            }
        }

    def master_of(self, key: bytes) -> Server:
        """Return the server with a key's hash slot."""
        return self._at(self._owner(key_slot(key)))

    def move(self, key: bytes, to: Server, while_moving: Callable[[], Any] = lambda: None) -> None:
        """Move a key's hash slot to another master, key by key, as redis-cli does."""
        slot, source = key_slot(key), self.master_of(key)
        with client(source.port) as giver, client(to.port) as taker:
            giver_id, taker_id = (
                str(one.execute_command("CLUSTER MYID").decode()) for one in (giver, taker)
            )
            taker.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", giver_id)
            giver.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", taker_id)
            while_moving()
            while keys := giver.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                giver.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            while_moving()
            for one in (taker, giver):
                one.execute_command("CLUSTER SETSLOT", slot, "NODE", taker_id)

    def _owner(self, slot: int) -> int:
        for server in self.servers:
            with suppress(redis.RedisError), client(server.port) as direct:
                for first, last, master, *_ in direct.execute_command("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return int(master[1])
        raise AssertionError(f"no server has slot {slot}")

    def _at(self, port: int) -> Server:
        return next(server for server in self.servers if server.port == port)


@contextmanager
def cluster(
    binary: str | None = None, replicas: bool = True, masters: int = 3
) -> Iterator[Cluster]:
    """Run a cluster, and yield it when it is ready."""
    options = (
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "1000",
        "--cluster-require-full-coverage",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    )
    with ExitStack() as stack:
        servers = [
            stack.enter_context(Server(binary, *options, port=_port_of_a_node()))
            for _ in range(masters * (2 if replicas else 1))
        ]
        found = Cluster(servers)
        share = SLOTS // masters
        for number, server in enumerate(servers):
            with client(server.port) as direct:
                direct.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                direct.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port)
                if number < masters:
                    last = SLOTS if number == masters - 1 else (number + 1) * share
                    direct.execute_command("CLUSTER ADDSLOTS", *range(number * share, last))
        everyone = lambda: all(  # noqa: E731
            _cluster_info(server)["cluster_known_nodes"] == str(len(servers)) for server in servers
        )
        until(everyone, "the nodes know each other")
        for server, master in zip(servers[masters:], servers, strict=False):
            with client(master.port) as direct:
                master_id = direct.execute_command("CLUSTER MYID").decode()
            with client(server.port) as direct:
                until(
                    lambda direct=direct, master_id=master_id: _replicates(direct, master_id),
                    "a replica is one",
                )
        until(
            lambda: all(_cluster_info(server)["cluster_state"] == "ok" for server in servers),
            "the cluster is ok",
        )
        if replicas:
            until(
                lambda: all(_replicas(server) == 1 for server in servers[:masters]),
                "the replicas follow",
            )
        yield found


def _port_of_a_node() -> int:
    """Return a free port, 10,000 below another free port for the cluster bus.

    Both are below the ports that the system uses for connections.
    """
    for port in random.sample(range(20_000, 22_700), 500):
        with suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
    raise AssertionError("no free port")


def _cluster_info(server: Server) -> dict[str, str]:
    with client(server.port) as direct:
        text = direct.execute_command("CLUSTER INFO")
    pairs = (
        text
        if isinstance(text, dict)
        else dict(line.split(":") for line in text.decode().split("\r\n") if line)
    )
    return {str(key): str(value) for key, value in pairs.items()}


def _replicates(direct: redis.Redis, master_id: str) -> bool:
    direct.execute_command("CLUSTER REPLICATE", master_id)
    return True


def _replicas(server: Server) -> int:
    """Return the number of replicas that are in sync."""
    with client(server.port) as direct:
        state = direct.info("replication")
    return sum(
        state[f"slave{number}"]["state"] == "online"
        for number in range(int(state["connected_slaves"]))
    )


@dataclass
class Watched:
    """A master with two replicas, and three sentinels that watch them."""

    servers: list[Server]
    sentinels: list[int]

    def cache(self) -> dict[str, Any]:
        """Return the value of `CACHES`. One of its sentinels does not run."""
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", port) for port in (free_port(), *self.sentinels)],
        }
        backend = "django_redis.cache.RedisCache"
        return {
            "default": {"BACKEND": backend, "LOCATION": f"redis://{SERVICE}/0", "OPTIONS": options}
        }

    def master(self) -> Server:
        """Return the master that a sentinel names."""
        with client(self.sentinels[0]) as sentinel:
            port = int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])
        return next(server for server in self.servers if server.port == port)


@contextmanager
def watched() -> Iterator[Watched]:
    """Run these servers, and yield them when they are ready."""
    for url in [url for url in ConnectionFactory._pools if SERVICE in url]:
        del ConnectionFactory._pools[url]  # Of sentinels that have ended.
    with ExitStack() as stack:
        servers = [
            stack.enter_context(Server(None, "--repl-diskless-sync-delay", "0")) for _ in range(3)
        ]
        for server in servers[1:]:
            with client(server.port) as replica:
                replica.replicaof("127.0.0.1", servers[0].port)
        until(lambda: _replicas(servers[0]) == 2, "the replicas follow")
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-sentinel-"))
        )
        ports = []
        for number in range(3):
            port = free_port()
            file = folder / f"{number}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {servers[0].port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout "
                f"{SERVICE} 3000\n"
            )
            process = subprocess.Popen(
                [valkey_binary(), str(file), "--sentinel"], stdout=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports.append(port)
        until(lambda: all(_agrees(port) for port in ports), "the sentinels agree")
        yield Watched(servers, ports)


def _agrees(port: int) -> bool:
    """Return whether a sentinel has found both replicas and both other sentinels."""
    with client(port) as sentinel:
        state = sentinel.sentinel_master(SERVICE)
    return int(state["num-slaves"]) == 2 and int(state["num-other-sentinels"]) == 2


def kill(server: Server) -> None:
    """Kill a server."""
    os.kill(server.pid, signal.SIGKILL)
