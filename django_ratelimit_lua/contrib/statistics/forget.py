"""Erase the statistics of one identity: the lists of top clients in which it is.

Other clients of such a list are missing from it as well, for 24 hours at most. Requests remain
counted. The HyperLogLogs of rules in shadow mode remain as well: no digest can be
read from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...conf import conf
from ...store import ANNEX, get_store
from .recorder import recorder


def forget(digests: Collection[bytes]) -> Mapping[str, int]:
    """Erase the identity in Redis, and make all processes drop their unwritten client counts.

    Args:
        digests: The digests of the identity under each secret.

    Returns:
        The number of erased items, by kind.

    Raises:
        StoreError: Redis is unavailable.
    """
    recorder.forget()
    store = get_store(background=True)
    store.execute(b"PUBLISH", store.channel(conf.CACHE_PREFIX), ANNEX + b" statistics")
    lists = 0
    for key in store.find_keys(conf.CACHE_PREFIX + b"{stats:", b"*:top:*"):
        pairs = iter(store.execute(b"HGETALL", key))
        for process, written in zip(pairs, pairs, strict=True):
            if any(digest in written for digest in digests):
                lists += store.execute(b"HDEL", key, process)
    return {"lists of clients, with the other clients in them": lists}
