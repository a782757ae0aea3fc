"""Erase the statistics of one identity: its marks, and its rows in the lists of clients.

Requests remain counted. The HyperLogLogs of refused clients remain as well: no digest can be read
from them.
"""

from __future__ import annotations

import json
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
    message = ANNEX + b" statistics"
    store.execute(b"PUBLISH", store.channel(conf.CACHE_PREFIX), message)
    marks = 0
    for key in store.find_keys(conf.CACHE_PREFIX + b"{stats:", b"*:marks:*"):
        marks += store.execute(b"ZREM", key, *digests)
    rows = 0
    for key in store.find_keys(conf.CACHE_PREFIX + b"{stats:", b"*:top:*"):
        pairs = iter(store.execute(b"HGETALL", key))
        for process, written in zip(pairs, pairs, strict=True):
            found = [digest.decode() for digest in digests if digest in written]
            if not found:
                continue
            lists = json.loads(written)
            for word, (least, clients) in lists.items():
                others = [client for client in clients if client[0] not in found]
                rows += len(clients) - len(others)
                lists[word] = [least, others]
            store.execute(b"HSET", key, process, json.dumps(lists, separators=(",", ":")).encode())
    return {"high-water marks": marks, "rows in lists of clients": rows}
