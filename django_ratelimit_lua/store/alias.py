"""How to connect, taken from a django-redis alias: the same servers and credentials, our own deadline, no retries.

The connections are the limiter's own. The cache's timeouts, retries, decoding and pool size are right for the cache and
stay as they are; a pool that the cache has used up takes no limit away.
"""

from __future__ import annotations

import inspect
from copy import copy
from functools import cache
from typing import Any

import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.cache import RedisCache
from django_redis.client import DefaultClient, SentinelClient
from redis.credentials import UsernamePasswordCredentialProvider
from redis.sentinel import SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from .exchange import Address
from .factory import ClusterConnectionFactory
from .sentinel import Sentinels

MOST_CONNECTIONS = 100
"""Connections a process (or an event loop) opens at most, if the alias's pool allows no fewer."""

# What has to do with the cache's own way of using a connection, not with reaching the server.
_NOT_OURS = {
    "decode_responses",
    "encoding",
    "encoding_errors",
    "event_dispatcher",
    "health_check_interval",
    "himport_registry",
    "legacy_responses",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "parser_class",
    "protocol",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_read_size",
    "socket_timeout",
}
_TWINS: list[tuple[Any, Any]] = [
    (synchronous.SSLConnection, asynchronous.SSLConnection),
    (synchronous.UnixDomainSocketConnection, asynchronous.UnixDomainSocketConnection),
    (synchronous.Connection, asynchronous.Connection),
]
_MANAGED: list[tuple[Any, Any]] = [
    (SentinelManagedSSLConnection, synchronous.SSLConnection),
    (SentinelManagedConnection, synchronous.Connection),
]


def credentials(connection: Any) -> tuple[str, ...]:
    """What a connection of redis-py's authenticates with; nothing where it need not."""
    provider = _provider(connection)
    return () if provider is None else tuple(provider.get_credentials())


async def acredentials(connection: Any) -> tuple[str, ...]:
    """`credentials`, for coroutines."""
    provider = _provider(connection)
    if hasattr(provider, "get_credentials_async"):  # Not before redis-py 5.3.
        return tuple(await provider.get_credentials_async())
    return credentials(connection)


def _provider(connection: Any) -> Any:
    if connection.credential_provider is not None:
        return connection.credential_provider
    if connection.username or connection.password:
        return UsernamePasswordCredentialProvider(connection.username, connection.password)
    return None


def why_unusable(alias: str) -> str | None:
    """What is wrong with a cache alias for our purpose, or None."""
    if alias not in caches.settings:
        return f"CACHES has no alias {alias!r}"
    try:
        return _problem(alias, caches[alias])
    except Exception as error:  # Django, django-redis and redis-py make of bad settings whatever they like.
        return f"CACHES[{alias!r}] cannot be used: {str(error) or type(error).__name__}"


def _problem(alias: str, cache: Any) -> str | None:
    if not isinstance(cache, RedisCache):
        kind = f"{type(cache).__module__}.{type(cache).__qualname__}"
        return f"CACHES[{alias!r}] is {kind}; it must be django_redis.cache.RedisCache"
    if not cache._server:  # django-redis would take any server as one of none.
        return f"CACHES[{alias!r}] has no LOCATION; name the server, such as 'redis://127.0.0.1:6379/0'"
    client = cache.client
    known = isinstance(client, SentinelClient) or (
        isinstance(client, DefaultClient) and type(client).connect is DefaultClient.connect
    )
    if not known:
        kinds = "django_redis.client.DefaultClient or SentinelClient"
        return f"CACHES[{alias!r}] uses {type(client).__name__}; use {kinds}"
    pool = _pools(client)[0]
    if isinstance(client.connection_factory, ClusterConnectionFactory):
        if pool.connection_kwargs.get("db"):
            return f"CACHES[{alias!r}] names database {pool.connection_kwargs['db']}; a cluster has only database 0"
        if "host" not in pool.connection_kwargs:
            return f"CACHES[{alias!r}] is a cluster; its nodes are named by redis:// or rediss://"
    return None


def _pools(client: DefaultClient) -> list[Any]:
    """The pools that tell where to connect to. Makes them; connects to nothing."""
    factory = client.connection_factory
    if isinstance(factory, ClusterConnectionFactory):
        return [factory.get_connection_pool(factory.make_connection_params(url)) for url in client._server]
    return [client.get_client(write=True).connection_pool]


def _ours(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in _NOT_OURS}


@cache
def _parameters(kind: Any) -> frozenset[str]:
    """The names of the arguments that a class and those it inherits from are made with."""
    return frozenset(name for base in kind.__mro__ for name in inspect.signature(base.__init__).parameters)


class Alias:
    """A usable alias: what its connections are made of. Raises `ImproperlyConfigured`; of it, as Django does, an
    `InvalidCacheBackendError` where there is no such alias."""

    def __init__(self, name: str) -> None:
        problem = why_unusable(name)
        if problem:
            kind = ImproperlyConfigured if name in caches.settings else InvalidCacheBackendError
            raise kind(f"RATELIMIT_USE_CACHE: {problem}")
        client: DefaultClient = caches[name].client  # type: ignore[attr-defined]
        pools = _pools(client)
        pool = pools[0]
        self.name = name
        self.connection_class: type[synchronous.AbstractConnection] = pool.connection_class
        self.most_connections = min(pool.max_connections, MOST_CONNECTIONS)
        self._kwargs = _ours(pool.connection_kwargs)
        self.sentinels = self._watched_by(pool) if isinstance(pool, SentinelConnectionPool) else None
        self.nodes: tuple[Address, ...] = ()
        """Of a cluster: nodes to begin with."""
        if isinstance(client.connection_factory, ClusterConnectionFactory):
            self.nodes = tuple(
                (one.connection_kwargs["host"], one.connection_kwargs.get("port", 6379)) for one in pools
            )

    def at(self, address: Address) -> Alias:
        """The same, for one node of the cluster."""
        node = copy(self)
        node._kwargs = {**self._kwargs, "host": address[0], "port": address[1]}
        return node

    def _watched_by(self, pool: SentinelConnectionPool) -> Sentinels:
        """The sentinels that know where to connect to; the connections themselves are ordinary ones."""
        for managed, plain in _MANAGED:
            if issubclass(self.connection_class, managed):
                self.connection_class = plain
        self._kwargs = {
            key: value for key, value in self._kwargs.items() if key not in ("connection_pool", "host", "port")
        }
        manager = pool.sentinel_manager
        kwargs = [_ours(sentinel.connection_pool.connection_kwargs) | {"protocol": 2} for sentinel in manager.sentinels]
        first = manager.sentinels[0].connection_pool.connection_class
        twins = next(twins for twins in _TWINS if issubclass(first, twins[0]))
        return Sentinels(str(pool.service_name), kwargs, twins)

    def kwargs(self) -> dict[str, Any]:
        """Arguments for a connection."""
        return {**self._kwargs, "protocol": 2}

    def connect_async(self) -> asynchronous.AbstractConnection:
        """What redis-py knows of an asynchronous connection to the same server. Raises `ImproperlyConfigured`."""
        for sync_class, async_class in _TWINS:
            if issubclass(self.connection_class, sync_class):
                kwargs = self.kwargs()
                unknown = [name for name in kwargs.keys() - _parameters(async_class) if kwargs.pop(name)]
                if unknown:
                    raise ImproperlyConfigured(
                        f"CACHES[{self.name!r}] connects with {', '.join(sorted(unknown))}, "
                        f"which redis-py's asynchronous {async_class.__name__} does not know"
                    )
                connection: asynchronous.AbstractConnection = async_class(**kwargs)
                return connection
        raise ImproperlyConfigured(
            f"CACHES[{self.name!r}] connects by {self.connection_class.__name__}, which has no asynchronous twin"
        )
