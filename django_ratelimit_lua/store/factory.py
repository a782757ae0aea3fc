"""A connection factory for django-redis, so that a cache can be a Redis or Valkey Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from django.conf import settings
from django_redis.pool import ConnectionFactory
from redis import ConnectionPool
from redis.cluster import ClusterNode, RedisCluster

from ..process.forks import leave_to_parent, renew_after_fork


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
        urls = _siblings(url)
        if urls not in self._clusters:
            pools = [
                self.get_connection_pool(self.make_connection_params(node_url)) for node_url in urls
            ]
            kwargs = dict(pools[0].connection_kwargs)
            nodes = [ClusterNode(*address_of(pool)) for pool in pools]
            for name in ("host", "port", "db", "parser_class"):
                kwargs.pop(name, None)
            if url.startswith("rediss://"):
                kwargs["ssl"] = True
            self._clusters[urls] = RedisCluster(
                startup_nodes=nodes, **kwargs, **self.redis_client_cls_kwargs
            )
        return self._clusters[urls]

    def disconnect(self, connection: RedisCluster) -> None:
        """Close a client's connections. The next use makes a new client."""
        for urls in [urls for urls, cluster in self._clusters.items() if cluster is connection]:
            del self._clusters[urls]
        connection.close()


@renew_after_fork
def _renew() -> None:
    # To drop a client waits for a lock, which the parent may have held.
    leave_to_parent(ClusterConnectionFactory._clusters)
    ClusterConnectionFactory._clusters = {}


def _siblings(url: str) -> tuple[str, ...]:
    """Return the nodes of the alias that includes this one."""
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
