"""What this process decides by itself: in an outage, and by its leases and its shares of splits.

There is one count for each client and limit: the units since the first hit of a window. The window
of a bucket is the time in which a full bucket refills. Slots have neither: those that this process
holds are counted. Nothing is reported to Redis when it is available again.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from functools import lru_cache
from math import inf
from threading import Lock
from typing import Any, NamedTuple

from ..conf import conf
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState, Source
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..process import Clock
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from ..store import Deadline
from .deny_cache import deny_cache
from .heartbeat import heartbeat
from .leases import Lease, lease_key, leases
from .run import Wait
from .slots import CountKey, HeldSlot, held_slots

logger = logging.getLogger("django_ratelimit_lua")
MAX_COUNTS = 10_000
"""Counts that are kept. The least recently used is dropped first: its client may begin anew."""
RETRY_SECONDS = 1.0
"""The retry time of a hit that is larger than this process's part, because Redis may be back."""


class LocalCount(NamedTuple):
    """The count of one client under one limit, and the charge that a call makes.

    - `size`: the units that this process admits in a window; infinite if it counts nothing;
    - `start`: the start of the window, in microseconds since 1970. For slots: now;
    - `ends_in`: the seconds until its end. For slots: those until a slot ends unless it is renewed;
    - `used`: the units counted in it. For slots: the units held.
    """

    charge: Charge
    key: CountKey
    size: float
    start: int
    ends_in: float
    used: int

    @property
    def retry_after(self) -> float | None:
        """Return the seconds until the charge may fit; None if it never does."""
        cost = max(self.charge.cost, 1)
        if self.used + cost <= self.size:
            return 0.0
        if cost > self.charge.limit.capacity:
            return None
        if cost > self.size:
            return RETRY_SECONDS
        return self.ends_in


class LocalCounts:
    """All counts of this process."""

    def __init__(self) -> None:
        self._counts: BoundedMap[CountKey, tuple[int, int]] = BoundedMap(MAX_COUNTS)
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = Lock()

    def decide(self, call: Call, *, in_outage: bool = False) -> Decision:
        """Decide a call in this process. Units are taken if every limit allows the call.

        With `in_outage`, the policy of each limit decides.
        """
        with self._lock:
            counts = [self._open_count(call, charge, in_outage) for charge in call.charges]
            allowed = call.operation in ("charge", "refund") or _fit_all(counts)
            states = tuple([self._apply(call, count, allowed) for count in counts])
        return Decision(allowed, states, call.units if allowed else 0, source="fallback")

    def _open_count(self, call: Call, charge: Charge, in_outage: bool) -> LocalCount:
        """Return the count of a charge, in a new window if the last one has ended.

        A window that has ended is dropped.
        """
        limit = charge.limit
        size = _units_admitted(limit, in_outage)
        key = (call.prefix, charge.digest, limit.key_part)
        now = call.now or Clock.time_ns() // 1000
        if limit.holds:
            used = held_slots.units_of(key)
            return LocalCount(charge, key, size, now, conf.SLOT_SECONDS, used)
        seconds = limit.rate.period * limit.capacity / max(limit.rate.limit, 1)
        start, used = self._counts.pop(key) or (0, 0)
        ends_in = seconds - (now - start) / SECOND
        if not 0.0 < ends_in <= seconds:
            return LocalCount(charge, key, size, now, seconds, 0)
        if used:  # The most recently used count is the last to be dropped.
            self._counts.put(key, (start, used))
        return LocalCount(charge, key, size, start, ends_in, used)

    def _apply(self, call: Call, count: LocalCount, allowed: bool) -> LimitState:
        """Take or give back the units of a charge, and return the state of its limit."""
        limit = count.charge.limit
        used = _count_after(call, count, allowed)
        if used != count.used and limit.holds:
            held_slots.reserve(HeldSlot(call.prefix, count.charge, call.slot, "", is_local=True))
        elif used != count.used:
            self._counts.put(count.key, (count.start, used))
        return LimitState.of(
            limit,
            allowed=count.retry_after == 0.0,
            used=used,
            remaining=max(0, min(limit.capacity, count.size - used)),
            retry_after=count.retry_after,
            reset_after=count.ends_in if used else 0.0,
            counted_at=count.start if used > count.used else 0,
        )

    def forget(self, call: Call) -> None:
        """Delete the counts of a call's limits."""
        with self._lock:
            for charge in call.charges:
                self._counts.pop((call.prefix, charge.digest, charge.limit.key_part))


def _fit_all(counts: Sequence[LocalCount]) -> bool:
    """Return whether every enforced limit allows its charge."""
    enforced = [count for count in counts if count.charge.limit.mode == "enforce"]
    return all(count.retry_after == 0.0 for count in enforced)


def _count_after(call: Call, count: LocalCount, allowed: bool) -> int:
    """Return the units that are counted after an operation."""
    limit, _, cost = count.charge
    if call.operation == "refund":
        is_of_this_window = call.hit_at in (None, count.start)
        if limit.holds or not is_of_this_window:
            return count.used
        return max(0, count.used - cost)
    takes = call.operation == "charge"
    if call.operation == "hit":
        takes = allowed and count.retry_after == 0.0
    if takes and count.size < inf:
        return count.used + cost
    return count.used


def _units_admitted(limit: Limit, in_outage: bool) -> float:
    """Return the units of a limit that this process admits in a window."""
    policy = limit.on_store_error or conf.ON_STORE_ERROR
    if in_outage and policy == "open":
        return inf
    if not limit.rate.limit or (in_outage and policy == "closed"):
        return 0
    if limit.split and heartbeat.share is not None:
        if limit.capacity < heartbeat.count:
            _warn_once(limit.name, limit.capacity, heartbeat.count)
        return heartbeat.share.units(limit.capacity)
    return max(1, limit.capacity // heartbeat.count)


@lru_cache(maxsize=1024)
def _warn_once(name: str, units: int, count: int) -> None:
    """Warn that a split limit has fewer units than there are processes."""
    logger.warning(
        "The split limit %r has too few units (%d) for %d processes: some of them admit nothing. "
        "Raise the limit, start fewer processes, or remove `split`.",
        name,
        units,
        count,
    )


local_counts = LocalCounts()


class LocalPart:
    """What this process has decided of a call, and has taken for it.

    - `rest`: the charges that are left for Redis, by their position in the call.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.rest: dict[int, Charge] = dict(enumerate(call.charges))
        self._is_refused = False
        self._states: dict[int, LimitState] = {}
        self._split: list[Charge] = []
        self._leased: list[tuple[Lease, int]] = []

    def taking(self, deadline: Deadline) -> Generator[Wait, Any, None]:
        """Take what the call needs of splits and of leases. Raises `StoreError`."""
        split = [place for place, charge in self.rest.items() if charge.limit.split]
        if split and self._call.now is None:  # The counts of this process have its clock.
            if heartbeat.share is None:
                yield from heartbeat.joining(deadline)
            self._take_splits(split)
        if not self._is_refused:
            yield from self._taking_leased(deadline)

    def _taking_leased(self, deadline: Deadline) -> Generator[Wait, Any, None]:
        """Take the units of each charge that a lease can serve."""
        for place, charge in list(self.rest.items()):
            key = lease_key(self._call, charge)
            lease = None if key is None else leases.find_active(key)
            if lease is None:
                continue
            state = yield from leases.taking(lease, charge.cost, deadline)
            if state is not None:
                self._set_state(place, state)
                self._leased.append((lease, charge.cost))

    def _take_splits(self, places: Sequence[int]) -> None:
        """Decide the charges of split limits, at these positions of the call."""
        # A share grants a hit whole or not at all.
        self._call = self._call._replace(partial=False)
        charges = [self.rest[place] for place in places]
        decision = local_counts.decide(self._call._replace(charges=charges))
        self._is_refused = not decision.allowed
        for place, charge, state in zip(places, charges, decision.limits, strict=True):
            self._set_state(place, state)
            if state.counted_at:
                self._split.append(charge)

    def _set_state(self, place: int, state: LimitState) -> None:
        """Store the state of a charge that is decided, and take it out of the rest."""
        self._states[place] = state
        self.rest.pop(place)

    def call_for_rest(self) -> Call:
        """Return the call for Redis. If a split limit refuses, it takes nothing."""
        call = self._call._replace(charges=list(self.rest.values()))
        if self._is_refused and call.operation == "hit":
            return call._replace(operation="peek")
        return call

    def give_back(self) -> None:
        """Give back all that was taken."""
        for lease, units in self._leased:
            lease.put_back(units)
        if self._split:
            local_counts.decide(self._call._replace(charges=self._split, operation="refund"))

    def _undo_hit(self) -> None:
        """Give back what a refused hit has taken."""
        self.give_back()
        # Meanwhile another hit may have found the lease empty, and may have been refused.
        emptied = [lease.key[1] for lease, cost in self._leased if lease.units <= cost]
        if emptied:
            deny_cache.forget(emptied)

    def complete(self, decision: Decision | None) -> Decision:
        """Return the decision of the whole call, and give back what a refused hit has taken.

        `decision` is that of Redis about the rest; None: nothing was left for Redis. A hit that
        Redis has allowed is recorded for leases.
        """
        call = self._call
        on_rest = decision
        if on_rest is None:
            source: Source = "lease" if self._leased else "split"
            on_rest = Decision(True, source=source, moment=Clock.time_ns() // 1000)
        for (place, charge), state in zip(self.rest.items(), on_rest.limits, strict=True):
            self._states[place] = state
            key = lease_key(call, charge)
            if key is not None and state.counted_at:
                leases.record_hit(key)
        if len(self.rest) == len(call.charges):
            return on_rest
        allowed = on_rest.allowed and not self._is_refused
        granted = 0
        if allowed:
            granted = max(on_rest.granted, call.units)
        elif call.operation == "hit":
            self._undo_hit()
        states = tuple([self._states[place] for place in range(len(call.charges))])
        return on_rest._replace(
            allowed=allowed,
            limits=states,
            granted=granted,
            wait=max([state.wait for state in states if state.enforced], default=0.0),
            revision=call.revision_number,
        )
