"""All that is used of redis-py's and django-redis's inside, tried with the oldest and the newest of both.

redis-py opens the sockets (addresses, TLS and all) and django-redis knows where to; what is said on them, and for how
long, is ours.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from django_redis.client import DefaultClient
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from .factory import ClusterConnectionFactory

ConnectionClass = Any  # A subclass of `redis.connection.AbstractConnection`; mypy takes such for not hashable.

_TWINS: list[tuple[Any, Any]] = [
    (synchronous.SSLConnection, asynchronous.SSLConnection),
    (synchronous.UnixDomainSocketConnection, asynchronous.UnixDomainSocketConnection),
    (synchronous.Connection, asynchronous.Connection),
]
_MANAGED: list[tuple[Any, Any]] = [
    (SentinelManagedSSLConnection, synchronous.SSLConnection),
    (SentinelManagedConnection, synchronous.Connection),
]

_BLOCKING_ONLY = {
    "ssl_ocsp_context", "ssl_ocsp_expected_cert", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled",
}  # fmt: skip
"""What only blocking connections know; where it is switched off, there is nothing to know."""


class _Dial(synchronous.AbstractConnection):
    """Mixed into a connection class, which makes the socket and nothing else: each step may take what is left."""

    def seconds_left(self) -> float:
        """Of the time to connect."""
        return 0.0

    @property
    def socket_timeout(self) -> float:
        return max(self.seconds_left(), 0.001)

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        pass

    socket_connect_timeout = socket_timeout


@cache
def _with_deadline(kind: Any) -> type[_Dial]:
    return type("Dial", (_Dial, kind), {})


def make_dial(kind: ConnectionClass, options: dict[str, Any]) -> _Dial:
    """What opens a socket. Raises whatever redis-py raises where the class does not know the options."""
    return _with_deadline(kind)(**options, protocol=2)


def open_socket(kind: ConnectionClass, options: dict[str, Any], seconds_left: Callable[[], float]) -> Any:
    """A connected socket. Raises whatever redis-py, `socket` or `ssl` raise."""
    dial = make_dial(kind, options)
    dial.seconds_left = seconds_left  # type: ignore[method-assign]
    return dial._connect()


class AsyncDial:
    """Opens connections of an event loop. Raises `TypeError` where redis-py's asynchronous connections could not do,
    or would not check, what the options say."""

    def __init__(self, kind: ConnectionClass, options: dict[str, Any]) -> None:
        twin = next((twin for plain, twin in _TWINS if issubclass(kind, plain)), None)
        if twin is None:
            raise TypeError(f"{kind.__name__} has no asynchronous twin")
        accepted = {name: value for name, value in options.items() if value or name not in _BLOCKING_ONLY}
        self._connection = twin(**accepted, protocol=2)

    async def connect(self, make_protocol: Callable[[], asyncio.Protocol], **address: Any) -> None:
        """Connect; `address`: instead of its own `host` and `port`."""
        loop, connection = asyncio.get_running_loop(), self._connection
        path = getattr(connection, "path", None)
        if path is not None:
            await loop.create_unix_connection(make_protocol, path=path)
            return
        arguments = {**connection._connection_arguments(), **address}
        transport, _ = await loop.create_connection(make_protocol, **arguments)
        sock = transport.get_extra_info("socket")
        if sock is not None and connection.socket_keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (connection.socket_keepalive_options or {}).items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def pools_of(client: DefaultClient) -> list[Any]:
    """The pools that tell where to connect to: of a cluster, one for each node that the alias names. Makes them;
    connects to nothing."""
    factory = client.connection_factory
    if isinstance(factory, ClusterConnectionFactory):
        return [factory.get_connection_pool(factory.make_connection_params(url)) for url in client._server]
    return [client.get_client(write=True).connection_pool]


def pool_of_url(url: str) -> Any:
    """A pool that tells where to connect to. Raises `ValueError` for what is no URL of a server."""
    return synchronous.ConnectionPool.from_url(url)


def class_of(pool: Any) -> ConnectionClass:
    """The class of a pool's connections; of those that ask sentinels themselves, of the ordinary ones they are."""
    kind: ConnectionClass = pool.connection_class
    return next((plain for managed, plain in _MANAGED if issubclass(kind, managed)), kind)


def sentinel_pools_of(pool: Any) -> tuple[str, list[Any]]:
    """The service that sentinels watch, and the pools of the sentinels; of any other pool, none."""
    if not isinstance(pool, SentinelConnectionPool):
        return "", []
    return str(pool.service_name), [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
