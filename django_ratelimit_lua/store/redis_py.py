"""All code that relies on the internals of redis-py and django-redis.

It is tested with the oldest and the newest supported version of both. redis-py opens the
connections (addresses, TLS, login) and parses the replies. Three of its private names are used:
`_connect` of its connections, and `_parser` and `_writer` of its asyncio connections.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from django.conf import settings
from django_redis.client import DefaultClient
from django_redis.pool import ConnectionFactory
from redis import ConnectionPool
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection

from ..process import Clock
from ..process.forks import leave_to_parent, renew_after_fork
from .deadline import Deadline

# A subclass of `redis.connection.AbstractConnection`, which mypy does not take as hashable.
ConnectionClass = Any
Options = dict[str, Any]
"""The arguments of a connection class."""

A = TypeVar("A")
T = TypeVar("T")

_TWINS: list[tuple[ConnectionClass, ConnectionClass]] = [
    (synchronous.SSLConnection, asynchronous.SSLConnection),
    (synchronous.UnixDomainSocketConnection, asynchronous.UnixDomainSocketConnection),
    (synchronous.Connection, asynchronous.Connection),
]
_BLOCKING_ONLY = {
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
}
"""Options that asyncio connections do not have."""
LARGE = 65_536
"""From this number of bytes on, the time that it takes to read a reply counts, not only the wait
for it.
"""
_BLOCKED = (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Exchange:
    """The current exchange of a connection: its deadline, and the number of bytes received."""

    __slots__ = ("cpu", "deadline", "received")

    def __init__(self) -> None:
        self.begin(Deadline(0.0))

    def begin(self, deadline: Deadline) -> None:
        """Begin an exchange that ends with a deadline."""
        self.deadline = deadline
        self.received = 0
        self.cpu = 0.0

    def spend_cpu_time(self) -> None:
        """Count the processor time of this thread since the last call as spent."""
        now = time.thread_time()
        if self.cpu:
            self.deadline.left -= now - self.cpu
        self.cpu = now


class DeadlineSocket:
    """A connected socket. Its operations together take no longer than the exchange's deadline.

    redis-py sets a timeout for each operation, so a reply that arrives byte by byte would never
    reach it. Its timeouts are ignored here, except for zero, which means not to wait.
    """

    __slots__ = ("_exchange", "_may_wait", "_timeout", "sock")

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self.sock = sock
        self._exchange = exchange
        self._timeout = -1.0
        self._may_wait = True

    def settimeout(self, seconds: float | None) -> None:
        self._may_wait = seconds != 0

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Usually the first attempt does so, without setting a timeout."""
        try:
            sent = self.sock.send(data)
        except _BLOCKED:
            sent = 0
            self._exchange.deadline.left -= max(self._timeout, 0.0)
        while sent < len(data):
            sent += self._run_within_deadline(self.sock.send, memoryview(data)[sent:])

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive at most `size` bytes, or peek at those that have arrived."""
        if flags:  # redis-py peeks at what has arrived.
            return self.sock.recv(size, flags)
        data = self._run_within_deadline(self.sock.recv, size)
        self._exchange.received += len(data)
        return data

    def recv_into(self, buffer: bytearray) -> int:
        size = self._run_within_deadline(self.sock.recv_into, buffer)
        self._exchange.received += size
        return size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def _run_within_deadline(self, operation: Callable[[A], T], argument: A) -> T:
        """Run an operation, and wait for it in slices of bounded length: see `Deadline`."""
        deadline = self._exchange.deadline
        if self._exchange.received > LARGE:
            self._exchange.spend_cpu_time()
            if deadline.is_over:
                raise TimeoutError("the reply was not complete within the deadline")
        while True:
            timeout = 0.0
            if self._may_wait:
                timeout = max(0.0, min(deadline.left, deadline.slice))
            if timeout != self._timeout:
                self.sock.settimeout(timeout)
                self._timeout = timeout
            began = Clock.monotonic()
            try:
                result = operation(argument)
            except _BLOCKED as error:
                if not self._may_wait:
                    raise
                if not timeout:
                    raise TimeoutError("no reply within the deadline") from error
                deadline.spend(began, timeout)
            else:
                deadline.left -= min(Clock.monotonic() - began, timeout)
                return result


class BlockingConnection(synchronous.AbstractConnection):
    """A mixin for redis-py's connection classes: operations end with the exchange's deadline."""

    exchange = Exchange()
    deadline_socket: DeadlineSocket
    _began = 0.0

    @property
    def socket_timeout(self) -> float:
        """Return the seconds left to connect. redis-py reads this before each step."""
        return max(self.exchange.deadline.left - (Clock.monotonic() - self._began), 0.001)

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        pass

    socket_connect_timeout = socket_timeout

    def _connect(self) -> DeadlineSocket:
        """Connect. redis-py uses the returned socket from then on."""
        self._began = Clock.monotonic()
        try:
            sock = super()._connect()  # type: ignore[safe-super] # The class that this is mixed into has one.
        finally:
            self.exchange.deadline.spend(self._began, self.exchange.deadline.left)
        self.exchange.deadline.extend()
        self.deadline_socket = DeadlineSocket(sock, self.exchange)
        return self.deadline_socket


class AsyncConnection(asynchronous.AbstractConnection):
    """A mixin for redis-py's asyncio connection classes: many callers write without waiting."""

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them if the server does not read them yet.

        After the connection has broken, nothing is written: asyncio would log each attempt. The
        read of the reply fails.
        """
        if not self._writer.is_closing():  # type: ignore[union-attr] # It is connected.
            self._writer.write(data)  # type: ignore[union-attr]

    def read_reply(self) -> Awaitable[Any]:
        """Return the next reply. Errors of the server are returned as well, not raised.

        redis-py's `read_response` takes as long again. When it is cancelled, it waits for the
        server to end TLS, which an event loop that ends does not.
        """
        return self._parser.read_response(disable_decoding=True)  # type: ignore[attr-defined, no-any-return] # Only its parsers have it.

    def abort(self) -> None:
        """Close the connection at once. A read that waits for a reply fails."""
        if self._writer is not None:
            with suppress(RuntimeError):  # The event loop is closed.
                self._writer.transport.abort()

    def __del__(self, *args: object) -> None:
        """Omit redis-py's warning if the event loop was closed first."""


@cache
def _mix_into(kind: ConnectionClass, mixin: type) -> Any:
    """Return a connection class of redis-py with a mixin."""
    return type(mixin.__name__, (mixin, kind), {})


def blocking_connection(
    kind: ConnectionClass, options: Options, exchange: Exchange
) -> BlockingConnection:
    """Return a connection that is not connected yet.

    Raises the errors of redis-py for options that it rejects.
    """
    connection: BlockingConnection = _mix_into(kind, BlockingConnection)(**options, protocol=2)
    connection.exchange = exchange
    _remove_library_name(connection)
    return connection


def async_connection(kind: ConnectionClass, options: Options) -> AsyncConnection:
    """Return a connection for coroutines that is not connected yet.

    Raises `TypeError` if redis-py's asyncio connections lack the class or an option.
    """
    counterpart = next((twin for blocking, twin in _TWINS if issubclass(kind, blocking)), None)
    if counterpart is None:
        raise TypeError(f"{kind.__name__} has no asyncio counterpart")
    accepted = {name: value for name, value in options.items() if name not in _BLOCKING_ONLY}
    parser = accepted.pop("parser_class", None)
    if parser is not None and not parser.__module__.startswith("redis."):
        raise TypeError(f"the parser {parser.__name__} has no asyncio counterpart")
    refused = sorted(name for name in _BLOCKING_ONLY if options.get(name))
    if refused:
        raise TypeError(f"asyncio connections do not support {', '.join(refused)}")
    # The deadline is kept outside: a timeout costs redis-py's asyncio connections some µs in each
    # operation.
    timeouts = {"socket_timeout": None, "socket_connect_timeout": None}
    mixed = _mix_into(counterpart, AsyncConnection)
    connection: AsyncConnection = mixed(**accepted, **timeouts, protocol=2)
    _remove_library_name(connection)
    return connection


def _remove_library_name(connection: Any) -> None:
    """Prevent redis-py from sending its name and version, which are two commands per connection."""
    connection.lib_name = connection.lib_version = connection.driver_info = None


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc] # django-redis 6 has no types
    """A factory that makes clients of `redis.cluster.RedisCluster` for a cache.

    It is the `"CONNECTION_FACTORY"` in the `OPTIONS` of an alias. `LOCATION` lists one node or
    several. One of them has to reply, so that a process finds the others. All have the same user,
    password and TLS options. Each process keeps one client, as django-redis keeps its pools. Limits
    do not use it: they have their own connections to each node.
    """

    _clusters: ClassVar[dict[tuple[str, ...], RedisCluster]] = {}

    def connect(self, url: str) -> RedisCluster:
        """Return a client for the cluster of a node.

        Raises the errors of `RedisCluster` if no node replies.
        """
        urls = _find_siblings(url)
        if urls not in self._clusters:
            params = [self.make_connection_params(sibling) for sibling in urls]
            pools = [self.get_connection_pool(each) for each in params]
            nodes = [ClusterNode(*address_of(pool)) for pool in pools]
            options = dict(pools[0].connection_kwargs)
            for name in ("host", "port", "db", "parser_class"):
                options.pop(name, None)
            if url.startswith("rediss://"):
                options["ssl"] = True
            self._clusters[urls] = RedisCluster(
                startup_nodes=nodes, **options, **self.redis_client_cls_kwargs
            )
        return self._clusters[urls]

    def disconnect(self, connection: RedisCluster) -> None:
        """Close a client's connections. The next use makes a new client."""
        for urls in [urls for urls, cluster in self._clusters.items() if cluster is connection]:
            del self._clusters[urls]
        connection.close()


@renew_after_fork
def _leave_clusters() -> None:
    """Begin without clients in a child process."""
    # To drop a client waits for a lock, which the parent may have held.
    leave_to_parent(ClusterConnectionFactory._clusters)
    ClusterConnectionFactory._clusters = {}


def _find_siblings(url: str) -> tuple[str, ...]:
    """Return the URLs of all nodes of the alias that includes this one."""
    for config in settings.CACHES.values():
        urls: str | Sequence[str] = config.get("LOCATION", ())
        if isinstance(urls, str):
            urls = urls.split(",")
        if url in urls:
            return tuple(urls)
    return (url,)


def address_of(pool: ConnectionPool) -> tuple[str, int]:
    """Return the host and the port of the connections of a pool."""
    return pool.connection_kwargs["host"], pool.connection_kwargs.get("port", 6379)


def pools_of(client: DefaultClient) -> list[ConnectionPool]:
    """Return the pools of an alias, of which only the options are used.

    There is one, or one for each node of a cluster that the alias lists. They do not connect.
    """
    factory = client.connection_factory
    if isinstance(factory, ClusterConnectionFactory):
        return [
            factory.get_connection_pool(factory.make_connection_params(url))
            for url in client._server
        ]
    return [client.get_client(write=True).connection_pool]


def class_of(pool: ConnectionPool) -> ConnectionClass:
    """Return the class of a pool's connections; for Sentinel, the plain class."""
    kind: ConnectionClass = pool.connection_class
    if not isinstance(kind, type):
        raise TypeError(f"connection_class is {kind!r}: must be a class")
    if not issubclass(kind, SentinelManagedConnection):
        return kind
    if issubclass(kind, synchronous.SSLConnection):
        return synchronous.SSLConnection
    return synchronous.Connection


def uses_fakeredis(client: DefaultClient) -> bool:
    """Return whether an alias has a client or a connection class of fakeredis."""
    classes = [client.connection_factory.redis_client_cls, pools_of(client)[0].connection_class]
    for each in classes:
        # In some versions of fakeredis, its connection classes are functions.
        for base in getattr(each, "__mro__", [each]):
            name = str(getattr(base, "__module__", base))
            if name.partition(".")[0] == "fakeredis":
                return True
    return False


class SentinelPools(NamedTuple):
    """The service that Sentinels watch, and the pool of each; both empty without Sentinels."""

    service: str = ""
    pools: Sequence[ConnectionPool] = ()


def sentinel_pools_of(pool: ConnectionPool) -> SentinelPools:
    """Return the Sentinels that a pool uses, if any."""
    if not isinstance(pool, SentinelConnectionPool):
        return SentinelPools()
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    return SentinelPools(str(pool.service_name), pools)
