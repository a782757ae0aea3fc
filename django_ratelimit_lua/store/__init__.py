"""The one room that knows Redis: it performs a call, blocking or not, and says so when that fails."""

from __future__ import annotations

from functools import cache

from ..conf import conf
from ..conf.changes import on_change
from .connection_params import ConnectionParams, why_unusable
from .exchange import RESET, RULES
from .factory import ClusterConnectionFactory
from .patience import Patience
from .server import Store
from .sharded import ShardedStore
from .subscription import Subscription

__all__ = [
    "RESET",
    "RULES",
    "ClusterConnectionFactory",
    "Patience",
    "Store",
    "Subscription",
    "get_store",
    "last_patience",
    "why_unusable",
]

PATIENCE = 5.0
"""Seconds that a command may take which no request waits for."""

LAST_PATIENCE = 1.0
"""Seconds for all that a process still has to say when it ends."""

_stores: dict[tuple[str, bool], Store] = {}
_last: Patience | None = None


@cache
def get_store(background: bool = False) -> Store:
    """The store of the alias that `RATELIMIT_USE_CACHE` names. Raises `ImproperlyConfigured`.

    `background`: for what no request waits for. It has more time, and asks on whatever has failed.
    """
    store_key = (conf.USE_CACHE, background)
    store = _stores.get(store_key)
    if store is None:
        params = ConnectionParams.of(conf.USE_CACHE)
        kind = ShardedStore if params.nodes else Store
        new_store = kind(params, PATIENCE if background else conf.TIMEOUT, background=background)
        store = _stores.setdefault(store_key, new_store)  # Another thread may have been faster: there is one for all.
    return store


def last_patience() -> Patience:
    """What is left of the time for all that a process still has to say when it ends; it begins with the first."""
    global _last
    if _last is None:
        _last = Patience(LAST_PATIENCE)
    return _last


def _close_stores() -> None:
    while _stores:
        _stores.popitem()[1].close()


on_change(("CACHES", "RATELIMIT_TIMEOUT"), _close_stores)
on_change(("CACHES", "RATELIMIT_TIMEOUT", "RATELIMIT_USE_CACHE"), get_store.cache_clear)
