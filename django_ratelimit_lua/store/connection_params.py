"""The connection parameters of a django-redis alias: servers, credentials and TLS options.

Only the options listed here are taken from the alias, so a new option of redis-py changes nothing.
The cache's timeouts, retries, decoding and pool belong to the cache, and are not used: limits have
their own deadline, and a cache that uses up its pool takes no connection from the limiter.
"""

from __future__ import annotations

from typing import NamedTuple

from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.cache import RedisCache
from django_redis.client import DefaultClient, SentinelClient
from redis import ConnectionPool

from . import redis_py
from .commands import Address
from .redis_py import ClusterConnectionFactory, address_of

MAX_CONNECTIONS = 100
"""Maximum number of connections of a process to one server, unless the alias's pool allows fewer.
"""
OPTIONS = {
    "client_name",
    "credential_provider",
    "db",
    "host",
    "parser_class",
    "password",
    "path",
    "port",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_type",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
    "ssl_password",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
    "username",
}
"""The options of an alias's connections that are used."""


class ConnectionParams(NamedTuple):
    """How to connect to the server of an alias, to one node of its cluster, or to a Sentinel.

    - `options`: the arguments for the connection class;
    - `nodes`: the nodes of a cluster that the alias names;
    - `service`, `sentinels`: the service and the Sentinels that know its master.
    """

    name: str
    connection_class: redis_py.ConnectionClass
    options: redis_py.Options
    max_connections: int = 1
    nodes: tuple[Address, ...] = ()
    service: str = ""
    sentinels: tuple[ConnectionParams, ...] = ()

    def __repr__(self) -> str:  # The options contain the password.
        return f"ConnectionParams({self.name!r})"

    @classmethod
    def of(cls, name: str) -> ConnectionParams:
        """Return the parameters of an alias.

        Raises `ImproperlyConfigured` if it cannot be used, and Django's `InvalidCacheBackendError`
        if it does not exist.
        """
        problem = why_unusable(name)
        if problem and name not in caches.settings:
            raise InvalidCacheBackendError(f"RATELIMIT_USE_CACHE: {problem}")
        if problem:
            raise ImproperlyConfigured(f"RATELIMIT_USE_CACHE: {problem}")
        client: DefaultClient = caches[name].client  # type: ignore[attr-defined]
        pools = redis_py.pools_of(client)
        sentinels = redis_py.sentinel_pools_of(pools[0])
        nodes: tuple[Address, ...] = ()
        if isinstance(client.connection_factory, ClusterConnectionFactory):
            nodes = tuple(address_of(pool) for pool in pools)
        return cls._of_pool(name, pools[0])._replace(
            max_connections=min(pools[0].max_connections, MAX_CONNECTIONS),
            nodes=nodes,
            service=sentinels.service,
            sentinels=tuple(cls._of_pool(name, pool) for pool in sentinels.pools),
        )

    @classmethod
    def _of_pool(cls, name: str, pool: ConnectionPool) -> ConnectionParams:
        """Return the parameters of a pool's server, without those of the alias."""
        arguments = pool.connection_kwargs
        options = {name: value for name, value in arguments.items() if name in OPTIONS}
        return cls(name, redis_py.class_of(pool), options)

    def at(self, address: Address) -> ConnectionParams:
        """Return these parameters for another server: a node of the cluster, or the master."""
        return self._replace(options={**self.options, "host": address[0], "port": address[1]})

    @property
    def database(self) -> int:
        """Return the number of the database."""
        return int(self.options.get("db") or 0)

    def connection(self, exchange: redis_py.Exchange) -> redis_py.BlockingConnection:
        """Return a connection for a thread, not connected yet.

        Raises the errors of redis-py for options that it rejects.
        """
        return redis_py.blocking_connection(self.connection_class, self.options, exchange)

    def async_connection(self) -> redis_py.AsyncConnection:
        """Return a connection for coroutines, not connected yet. Raises `ImproperlyConfigured`."""
        try:
            return redis_py.async_connection(self.connection_class, self.options)
        except TypeError as error:
            raise ImproperlyConfigured(
                f"CACHES[{self.name!r}] cannot be used by coroutines: {error}"
            ) from error


def why_unusable(alias: str) -> str | None:
    """Return why limits cannot use a cache alias, or None if they can."""
    if alias not in caches.settings:
        return f"CACHES has no alias {alias!r}"
    try:
        return _find_problem(alias, caches[alias])
    except Exception as error:  # Bad settings raise anything in Django, django-redis and redis-py.
        return f"CACHES[{alias!r}] cannot be used: {str(error) or type(error).__name__}"


def _find_problem(alias: str, cache: object) -> str | None:
    """Return why limits cannot use a cache, or None. Raises anything for invalid options."""
    if not isinstance(cache, RedisCache):
        kind = f"{type(cache).__module__}.{type(cache).__qualname__}"
        return f"CACHES[{alias!r}] is {kind}: must be django_redis.cache.RedisCache"
    if not cache._server:  # django-redis would connect to a default server.
        return f"CACHES[{alias!r}] has no LOCATION; name the server, such as 'redis://127.0.0.1:6379/0'"
    client = cache.client
    if not _is_supported(client):
        kinds = "django_redis.client.DefaultClient or SentinelClient"
        return f"CACHES[{alias!r}] uses {type(client).__name__}; use {kinds}"
    if redis_py.uses_fakeredis(client):
        server = "django_ratelimit_lua.testing.Server"
        return (
            f"CACHES[{alias!r}] uses fakeredis, which limits cannot use; in tests, start {server}"
        )
    return _find_problem_of_options(alias, client)


def _is_supported(client: object) -> bool:
    """Return whether a client is django-redis's own. A subclass that connects by itself is not."""
    if isinstance(client, SentinelClient):
        return True
    return isinstance(client, DefaultClient) and type(client).connect is DefaultClient.connect


def _find_problem_of_options(alias: str, client: DefaultClient) -> str | None:
    """Return why limits cannot use the options of a client, or None."""
    pools = redis_py.pools_of(client)
    given = pools[0].connection_kwargs
    # To ignore an option of TLS would check less than the project requires.
    unknown = [name for name in given.keys() - OPTIONS if name.startswith("ssl_") and given[name]]
    if unknown:
        names = ", ".join(sorted(unknown))
        return f"CACHES[{alias!r}] connects with {names}, which limits do not support"
    for pool in pools:  # redis-py rejects invalid options.
        ConnectionParams._of_pool(alias, pool).connection(redis_py.Exchange())
    if not isinstance(client.connection_factory, ClusterConnectionFactory):
        return None
    if given.get("db"):
        return f"CACHES[{alias!r}] names database {given['db']}; a cluster has only database 0"
    if "host" not in given:
        return f"CACHES[{alias!r}] is a cluster; name its nodes by redis:// or rediss://"
    return None
