"""Leases: units of a hot key that this process takes ahead, in batches, and spends without Redis.

The units of a lease are counted before they are spent, so no unit is admitted twice. A process
holds at most one batch of `lease` units of an identity's limit. If fewer than a fifth are left, a
thread fetches the next batch, which may be smaller if Redis has fewer units. Only a hit that finds
too few units waits for it.

A lease begins with the second hit of an identity within a second. Its units are given back after a
second without a hit and when the process ends. At the end of a fixed window they are dropped,
because they count no more. A bucket keeps as many units back as flow in while units are held, see
`TokenBucket.numbers`; units of a bucket that are held so long are given back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from ..conf import on_change
from ..exceptions import StoreError
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..process import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import JobRunner
from ..store import Deadline, flusher, get_store
from .deny_cache import deny_cache
from .run import Wait

IDLE_SECONDS = 1.0
"""Seconds without a hit after which units are given back. A lease begins with a hit that comes
earlier after another one.
"""
LOW = 5
"""The next batch is fetched if less than this part of a batch is left: a fifth."""
MAX_LEASES = 10_000

LeaseKey = tuple[bytes, bytes, Limit]
"""Prefix, identity and limit."""


def lease_key(call: Call, charge: Charge) -> LeaseKey | None:
    """Return the key of the lease that may serve a charge of a call; None: Redis has to.

    Redis decides other operations, hits that are larger than a batch, and hits that are partial,
    wait or go into debt. A caller with its own clock does not use the one that leases end by.
    """
    limit, digest, cost = charge
    if limit.lease is None or not 0 < cost <= limit.lease:
        return None
    if call.operation != "hit" or call.now is not None:
        return None
    if call.partial or call.debt or call.max_wait_us is not None:
        return None
    return (call.prefix, digest, limit)


class Lease:
    """The units that this process holds of one identity's limit.

    - `units`: how many of them are left;
    - `batch`: the units of the batch that is fetched, or was fetched last;
    - `is_dry`: whether the last batch was empty, so that only a hit that finds no units fetches the
      next;
    - `is_exhausted`: whether Redis had no units for a hit, and has allowed no hit since;
    - `hit_at`: the moment of the last hit (monotonic).
    """

    def __init__(self, key: LeaseKey) -> None:
        self.key = key
        self.units = 0
        self.batch: Future[int] | None = None
        self.is_dry = False
        self.is_exhausted = False
        self.hit_at = Clock.monotonic()
        # The garbage collector may close a coroutine, which puts units back, in this very thread.
        self._lock = threading.RLock()
        self._ends = self._read_at = 0.0
        self._moment = 0
        self._state: LimitState | None = None

    @property
    def size(self) -> int:
        """Return the units of a batch."""
        return self.key[2].lease or 0

    @property
    def is_low(self) -> bool:
        """Return whether the next batch has to be fetched."""
        return not self.is_dry and self.units * LOW < self.size

    @property
    def has_ended(self) -> bool:
        """Return whether its units may not be spent any more."""
        return Clock.monotonic() >= self._ends

    @property
    def is_idle(self) -> bool:
        """Return whether the last hit is `IDLE_SECONDS` ago."""
        return Clock.monotonic() - self.hit_at >= IDLE_SECONDS

    def take(self, cost: int) -> LimitState | None:
        """Take units, and return the state of the limit; None if there are too few.

        The hit is recorded in any case.
        """
        with self._lock:
            now = self.hit_at = Clock.monotonic()
            if self.units < cost or now >= self._ends or self._state is None:
                return None
            self.units -= cost
            return self._state.with_leased(self.units, now - self._read_at, self._moment)

    def put_back(self, units: int) -> None:
        """Put back units that a hit has taken, because another limit has refused it."""
        with self._lock:
            self.units += units
            self.is_exhausted = False

    def refill_call(self) -> Call:
        """Return the call that fills the lease up to a batch."""
        prefix, digest, limit = self.key
        charge = Charge(limit, digest, self.size - self.units)
        return Call([charge], prefix=prefix, partial=True)

    def add(self, decision: Decision, asked_at: float) -> int:
        """Add the units of a decision about `refill_call`, and return their number.

        Args:
            decision: The decision.
            asked_at: The time before the call was sent, by the monotonic clock.
        """
        (state,) = decision.limits
        if not state.counted_at:  # A limit in shadow mode allows a hit that takes nothing.
            return 0
        limit = self.key[2]
        lifetime = state.reset_after if limit.kind.ends_together else limit.lapse
        ends = asked_at + lifetime
        with self._lock:
            self.is_dry = False
            if self.units == 0:
                self._ends = ends
            else:  # The earlier units end first.
                self._ends = min(ends, self._ends)
            self._state = state
            self._read_at = Clock.monotonic()
            self._moment = state.counted_at
            self.units += decision.granted
        return decision.granted

    def drain(self) -> Call | None:
        """Take all units out of the lease.

        Return the call that refunds them; None if it was empty, or if their window has ended.
        """
        prefix, digest, limit = self.key
        with self._lock:
            units = self.units
            self.units = 0
        if not units or (limit.kind.ends_together and self.has_ended):
            return None
        return Call([Charge(limit, digest, units)], "refund", prefix, hit_at=self._moment)


class Leases:
    """All leases of this process."""

    def __init__(self) -> None:
        self._jobs = JobRunner()
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # A child does not spend the units of its parent.
        self._lock = threading.Lock()
        self._leases: dict[LeaseKey, Lease] = {}

    def find_active(self, key: LeaseKey) -> Lease | None:
        """Return the lease of an identity that made a hit in the last second, if it can serve."""
        lease = self._leases.get(key)
        if lease is None or lease.is_idle or lease.is_exhausted:
            return None
        return lease

    def record_hit(self, key: LeaseKey) -> None:
        """Record a hit that Redis has allowed: a further one within a second uses a lease."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.hit_at = Clock.monotonic()
            lease.is_exhausted = False
        elif len(self._leases) < MAX_LEASES:
            self._leases.setdefault(key, Lease(key))  # Another thread may have been faster.
            flusher.start()

    def taking(
        self, lease: Lease, cost: int, deadline: Deadline
    ) -> Generator[Wait, Any, LimitState | None]:
        """Take units of a lease, and wait for a batch if there are too few.

        If few units are left, the next batch is fetched in the background. Return the state of the
        limit; None if Redis has to decide.
        """
        while True:
            state = lease.take(cost)
            if state is not None and not lease.is_low:
                return state
            batch = self._fetch_batch(lease)
            if state is not None or batch is None:
                return state
            began = Clock.monotonic()
            seconds = deadline.left
            units = 0
            with suppress(TimeoutError, CancelledError):  # It takes too long, or the process ends.
                units = yield Wait(
                    partial(batch.result, seconds), partial(_await_batch, batch, seconds)
                )
            deadline.spend(began, seconds)
            if not units:
                return None
            deadline.extend()

    def _fetch_batch(self, lease: Lease) -> Future[int] | None:
        """Have another thread fetch the next batch of a lease, unless one does so already.

        Return the future of its units. None if the lease was dropped, or no thread can be started.
        """
        with self._lock:
            if self._is_dropped(lease):
                return None
            if lease.batch is None or lease.batch.done():
                lease.batch = self._jobs.submit(partial(self._fill, lease))
            return lease.batch

    def _is_dropped(self, lease: Lease) -> bool:
        """Return whether the lease is no longer that of its key."""
        return self._leases.get(lease.key) is not lease

    def _fill(self, lease: Lease) -> int:
        """Fetch a batch, and return its units: 0 if Redis has no units, or is unavailable."""
        units = 0
        lease.is_dry = True
        with suppress(StoreError):
            if lease.has_ended:
                self._refund(lease)
            asked_at = Clock.monotonic()
            units = lease.add(get_store().decide(lease.refill_call()), asked_at)
            if self._is_dropped(lease):
                self._refund(lease)
        if units:
            deny_cache.forget([lease.key[1]])
        elif not lease.units:  # Redis decides until it allows a hit again.
            lease.is_exhausted = True
        return units

    def _refund(self, lease: Lease, deadline: Deadline | None = None) -> None:
        """Give back all units of a lease. Raises `StoreError`."""
        refund = lease.drain()
        if refund is not None:
            get_store(background=True).decide(refund, deadline)
            deny_cache.forget([lease.key[1]])

    def give_back(self, last: Deadline | None = None) -> bool:
        """Give back units, as a `Flush` of the flusher: those of idle leases, or all at the end.

        If that fails, the units stay counted. Raises `StoreError`.
        """
        for key, lease in list(self._leases.items()):
            is_over = last is not None or lease.is_idle
            if is_over:
                self._leases.pop(key, None)
            if is_over or lease.has_ended:
                self._refund(lease, last)
        return bool(self._leases)

    def drop(self, digests: Collection[bytes]) -> None:
        """Drop the leases of these identities, after their counts were reset."""
        for key, lease in list(self._leases.items()):
            if key[1] in digests:
                self._leases.pop(key, None)
                lease.drain()

    def clear(self) -> None:
        """Drop all leases. Their units stay counted."""
        self._leases.clear()


async def _await_batch(batch: Future[int], seconds: float) -> int:
    """Return the units of a batch. Raises `TimeoutError`, and leaves the batch to others then."""
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(batch)), seconds)


leases = Leases()
flusher.add(leases.give_back)
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), leases.clear)
