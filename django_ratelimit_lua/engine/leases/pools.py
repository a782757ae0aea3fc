"""The pools of this process, by what they are about; what is not spent goes back when it lapses, when nobody comes for
it, and when the process ends."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.core.signals import setting_changed

from ...exceptions import StoreError
from ...limits.call import Call, Charge
from ...process.bounded_map import BoundedMap
from ...process.forks import renew_after_fork, start_thread
from ...store import Patience, get_store, last_patience
from ...store.freshness import without
from ..deny_cache import deny_cache
from ..heartbeat import heartbeat
from .pool import Pool

MOST, MOST_BYTES, POOL_BYTES = 10_000, 32 * 2**20, 2500
"""Pools that are kept: the latest; and what one of them takes, about."""
SWEEP_SECONDS = 0.1
EVERYTHING = 2**63


class Leases:
    """Every pool of this process."""

    def __init__(self) -> None:
        self._pools: BoundedMap[Any, Pool] = BoundedMap(
            MOST, MOST_BYTES, lambda key, pool: POOL_BYTES + len(pool.limit.name)
        )
        self._holding: set[Pool] = set()
        self._begin()
        renew_after_fork(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        for pool in {*self._pools.clear(), *self._holding}:
            pool.abandon()
        self._begin()

    def _begin(self) -> None:
        self._holding.clear()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def pool(self, call: Call, charge: Charge) -> Pool:
        """The pool for a charge of a call."""
        tags = tuple([(subject.digest, subject.tag) for subject in call.subjects]) if call.subjects else ()
        key = (call.prefix, charge.digest, charge.limit.key_part, call.revision, tags)
        pool = self._pools.get(key)
        if pool is None or (pool.limit is not charge.limit and pool.limit != charge.limit):
            heartbeat.start()
            pool = Pool(call, charge)
            self._pools.put(key, pool)  # One that goes for it and holds something goes on until that has lapsed.
        return pool

    def holds(self, pool: Pool) -> None:
        """Something was put into a pool: nobody is refused for the lack of it, and it goes back if it is not spent."""
        deny_cache.forget([pool.digest])
        with self._lock:
            self._holding.add(pool)
            if self._thread is None:
                self._thread = start_thread(self._watch, "ratelimit-leases")

    def drop(self, digests: Iterable[bytes] | None = None) -> None:
        """Spend and give back nothing more of what these identities (None: all) had: it was reset."""
        with self._lock:
            for key, pool in self._pools.items():
                if digests is None or pool.digest in digests:
                    self._pools.pop(key)
                    pool.close()
            for pool in self._holding:
                if digests is None or pool.digest in digests:
                    pool.close()

    def refunds(self, pool: Pool, fewer_than: int | None = None) -> list[Call]:
        """The calls that give back what is not to be spent from a pool any more, or all of it if that is fewer than so
        many units; whoever is told them has to make them."""
        call = replace(without(pool.call), operation="refund", partial=False)
        return [
            replace(call, charges=[Charge(pool.limit, pool.digest, units)], hit_at=moment)
            for units, moment in pool.returned(fewer_than)
        ]

    def give_back(self, patience: Patience | None = None) -> bool:
        """Give back what is not to be spent here any more; whether anything is held still. With a patience, give back
        everything within it, as far as that goes."""
        for pool in list(self._holding):
            for refund in self.refunds(pool, None if patience is None else EVERYTHING):
                try:
                    get_store(background=True).decide(refund, patience)
                    deny_cache.forget([pool.digest])
                except StoreError:  # Then they stay counted until the limit forgets them.
                    if patience is not None and patience.is_over:
                        return True
            with self._lock:
                if pool.is_empty:
                    self._holding.discard(pool)
        return bool(self._holding)

    def _watch(self) -> None:
        while True:
            time.sleep(SWEEP_SECONDS)
            with suppress(Exception):
                if self.give_back():
                    continue
            with self._lock:
                if not self._holding:
                    self._thread = None
                    return


leases = Leases()


@atexit.register
def _at_exit() -> None:
    with suppress(Exception):
        leases.give_back(last_patience())


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting.startswith("RATELIMIT_") or setting in ("CACHES", "SECRET_KEY"):
        leases.drop()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.engine.leases")
