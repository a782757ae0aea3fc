"""The part of a call that this process decides by itself: its leases and its shares of splits.

Redis decides the rest. Together the call is all or nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState, Source
from ..process.clock import Clock
from ..store import Deadline
from .deny_cache import deny_cache
from .fallback import local_counts
from .heartbeat import heartbeat
from .leases import Lease, lease_key, leases
from .run import Wait


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
        if self._is_refused:
            return
        for place, charge in list(self.rest.items()):
            key = lease_key(self._call, charge)
            lease = None if key is None else leases.find(key)
            if lease is None:
                continue
            state = yield from leases.taking(lease, charge.cost, deadline)
            if state is not None:
                self._set(place, state)
                self._leased.append((lease, charge.cost))

    def _take_splits(self, places: Sequence[int]) -> None:
        # Their shares grant a hit whole or not at all.
        self._call = self._call._replace(partial=False)
        charges = [self.rest[place] for place in places]
        decision = local_counts.decide(self._call._replace(charges=charges))
        self._is_refused = not decision.allowed
        for place, charge, state in zip(places, charges, decision.limits, strict=True):
            self._set(place, state)
            if state.counted_at:
                self._split.append(charge)

    def _set(self, place: int, state: LimitState) -> None:
        self._states[place] = state
        self.rest.pop(place)

    def call(self) -> Call:
        """Return the call for Redis. If a split limit refuses, it takes nothing."""
        call = self._call._replace(charges=[*self.rest.values()])
        if self._is_refused and call.operation == "hit":
            return call._replace(operation="peek")
        return call

    def give_back(self) -> None:
        """Give back all that was taken."""
        for lease, units in self._leased:
            lease.put_back(units)
        if self._split:
            local_counts.decide(self._call._replace(charges=self._split, operation="refund"))

    def complete(self, decision: Decision | None) -> Decision:
        """Return the decision of the whole call, given that of Redis about the rest."""
        call = self._call
        if decision is None:
            source: Source = "lease" if self._leased else "split"
            decision = Decision(True, source=source, moment=Clock.time_ns() // 1000)
        for (place, charge), state in zip(self.rest.items(), decision.limits, strict=True):
            self._states[place] = state
            key = lease_key(call, charge)
            if key is not None and state.counted_at:
                leases.note_hit(key)
        if len(self.rest) == len(call.charges):
            return decision
        allowed = decision.allowed and not self._is_refused
        granted = 0
        if allowed:
            granted = max(decision.granted, call.units)
        elif call.operation == "hit":
            self.give_back()
            # Another hit may have found the lease empty meanwhile, and may have been refused.
            emptied = [lease.key[1] for lease, cost in self._leased if lease.units <= cost]
            if emptied:
                deny_cache.forget(emptied)
        states = tuple([self._states[place] for place in range(len(call.charges))])
        return decision._replace(
            allowed=allowed,
            limits=states,
            granted=granted,
            wait=max([state.wait for state in states if state.enforced], default=0.0),
            revision=call.revision_number,
        )
