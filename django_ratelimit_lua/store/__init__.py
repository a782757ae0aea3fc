"""Connections to Redis: perform one call within one deadline, and flush collected data.

This package sends commands over connections that django-redis configures, and routes them by
Sentinel and hash slot. It imports only from floor 1 of the package, and
does not know requests, identities or rules: calls and keys reach it as bytes.
"""

from __future__ import annotations

import threading
from functools import cache

from django.core.exceptions import ImproperlyConfigured

from ..conf import conf, on_change
from .availability import KINDS as FAILURES
from .availability import failures
from .blocking import Subscription
from .cluster import ShardedStore
from .commands import ANNEX, RESET, RULES, Reply
from .connection_params import ConnectionParams, why_unusable
from .deadline import Deadline, exit_deadline, page_deadline
from .flusher import FLUSH_SECONDS, flusher
from .redis_py import ClusterConnectionFactory
from .server import Outage, Store

__all__ = [
    "ANNEX",
    "FAILURES",
    "FLUSH_SECONDS",
    "RESET",
    "RULES",
    "ClusterConnectionFactory",
    "Deadline",
    "Outage",
    "Reply",
    "Store",
    "Subscription",
    "acquire_lock",
    "exit_deadline",
    "failures",
    "flusher",
    "get_store",
    "page_deadline",
    "rules_key",
    "why_unusable",
]

BACKGROUND_SECONDS = 5.0
"""Timeout in seconds of commands that no request waits for."""

_stores: dict[bool, Store] = {}
_get_ident = threading.get_ident
"""gevent and eventlet replace this function when they patch the standard library."""


@cache
def get_store(background: bool = False) -> Store:
    """Return the store of the alias in `RATELIMIT_USE_CACHE`. Raises `ImproperlyConfigured`.

    A `background` store is for work that no request waits for. It has a longer timeout, and does
    not pause after failures.
    """
    # Greenlets would share locks, and block the whole process.
    if threading.get_ident is not _get_ident:
        raise ImproperlyConfigured(
            "gevent or eventlet patched the standard library after django_ratelimit_lua was "
            "imported. Patch it first; for gunicorn --preload, in the first lines of "
            "gunicorn.conf.py: from gevent import monkey; monkey.patch_all()"
        )
    stores = _stores
    params = ConnectionParams.of(conf.USE_CACHE)
    kind = ShardedStore if params.nodes else Store
    timeout = BACKGROUND_SECONDS if background else conf.TIMEOUT
    # If another thread was faster, its store is returned: all use the same.
    store = stores.setdefault(background, kind(params, timeout, background=background))
    if stores is not _stores:  # The settings have changed since.
        return get_store(background)
    return store


def acquire_lock(key: bytes, seconds: float) -> bool:
    """Acquire a lock that expires after this time.

    Return whether this process has acquired it. Raises `StoreError`.
    """
    store = get_store(background=True)
    lifetime = round(seconds * 1000)
    # If the server's clock was set back, the lock would last too long.
    if store.execute(b"PTTL", key) > lifetime:
        store.execute(b"DEL", key)
    return bool(store.execute(b"SET", key, b"1", b"NX", b"PX", b"%d" % lifetime))


def rules_key() -> bytes:
    """Return the key of the hash with the published rules.

    The hash contains the revision, and each part of the snapshot.
    """
    return conf.CACHE_PREFIX + b"{rules}:1"


def _close_idle(last: Deadline | None) -> bool:
    """Close idle connections, as a `Flush`. Return whether others are open, which may get idle."""
    has_open = [store.close_idle() for store in list(_stores.values())]
    return last is None and any(has_open)


flusher.add(_close_idle)


def _forget_stores() -> None:
    """Close the stores, because settings have changed. The next caller makes new ones."""
    global _stores
    forgotten = _stores
    _stores = {}
    get_store.cache_clear()
    for store in list(forgotten.values()):  # Another thread may still add one.
        store.close()


on_change(("CACHES", "RATELIMIT_TIMEOUT", "RATELIMIT_USE_CACHE"), _forget_stores)
