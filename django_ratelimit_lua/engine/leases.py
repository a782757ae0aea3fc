"""Limits of hot keys, which this process decides as far as possible.

Redis decides the rest of a call. Together the call is all or nothing.

A **lease** is a number of units of one identity's limit that this process has taken from the shared
count and not spent yet. They are counted before they are spent, so no unit is admitted twice. They
may be spent for a second, or until the window in which they were counted ends, by a clock that
starts before they are requested. Unspent units are refunded after that time, earlier if hits do
not need them, and at the latest when the process ends.

A **split** limit is decided by this process's part of it.

Decisions are written as generators that yield calls and receive their decisions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial

from ..conf.changes import on_change
from ..exceptions import StoreError
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState, Source
from ..limits.limit import Limit
from ..process.bounded_map import BoundedMap
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import FOREVER, Patience, get_store, last_patience
from .deny_cache import deny_cache
from .fallback import local_counts
from .heartbeat import heartbeat
from .run import Wait, Waiting

HORIZON = 0.1
"""Seconds that a batch is meant to last."""
IDLE = 0.25
"""Seconds without a hit after which units go back."""
DRY = 0.05
"""Seconds without a new request for a batch after Redis had none."""
MIN_LENGTH = 0.0005
"""Seconds over which speed is measured at least."""
MAX_ENTRIES = 10_000
"""Leases that are remembered: the latest, of about 2.5 KB each."""
SWEEP_SECONDS = 0.1
EVERYTHING = 2**63

_Key = tuple[bytes, bytes, Limit, object]


class Batch:
    """A batch of leased units.

    Attributes:
        units: The number of units left.
        until: The end of the time in which they may be spent, by the monotonic clock.
        moment: The moment from which they count, in microseconds since 1970.
        taken_at: When they were taken, by the clock of Redis. It is before `moment` if the clock of
            the limit's state is ahead.
    """

    def __init__(self, units: int, until: float, moment: int, taken_at: int) -> None:
        self.units = units
        self.until = until
        self.moment = moment
        self.taken_at = taken_at


class Lease:
    """The batch that this process holds of one identity's limit, and how fast it is spent."""

    def __init__(self, call: Call, charge: Charge) -> None:
        self.limit = charge.limit
        self.digest = charge.digest
        self._refund = call._replace(revision=None, operation="refund", partial=False)
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._expired: list[Batch] = []
        self._is_asking = False
        self._closed_until = -1
        self._state: LimitState | None = None
        self._state_at = self._hit_at = self._since = Clock.monotonic()
        self._speed = 0.0
        self._spent = 0
        self._dry_until = 0.0

    def take(self, cost: int, needed: int) -> LimitState | None:
        """Spend units if at least `needed` are left. Return the limit's state."""
        now = Clock.monotonic()
        with self._lock:
            batch = self._batch
            if batch is None or batch.until <= now or batch.units < needed:
                return None
            if cost:
                self._hit_at = now
            batch.units -= cost
            self._spent += cost
            assert self._state is not None
            return self._state.with_leased(batch.units, now - self._state_at, batch.moment)

    def put_back(self, units: int, moment: int) -> None:
        """Put units that were just taken, and count since `moment`, back into the batch."""
        with self._lock:
            if moment <= self._closed_until:
                return
            if self._batch is not None and self._batch.moment == moment:
                self._batch.units += units
            else:
                self._expired.append(Batch(units, 0.0, moment, moment))

    def next_batch_size(self, cost: int) -> int:
        """Return the number of units to request now; 0 if a batch would not pay.

        If the number is not 0, the caller has to request the units, and report the result by
        `add_batch` or `ask_failed`.
        """
        now = Clock.monotonic()
        with self._lock:
            if self._is_asking or self._closed_until >= 0 or now < self._dry_until:
                return 0
            elapsed = now - self._since
            if elapsed >= MIN_LENGTH:
                speed = self._spent / elapsed
                if elapsed <= IDLE:
                    speed = (self._speed + speed) / 2
                self._speed = speed
                self._since = now
                self._spent = 0
            if self._state is None:
                return 0
            # One part more than there are processes, for hits that are on their way to Redis by
            # themselves.
            fair = self._state.remaining // (heartbeat.count + 1)
            size = min(self.limit.lease or 0, int(self._speed * HORIZON), fair)
            if size <= cost:
                return 0
            self._is_asking = True
            return size

    def add_batch(self, decision: Decision, asked_at: float) -> None:
        """Add the units that a request for a batch has returned."""
        now = Clock.monotonic()
        with self._lock:
            self._is_asking = False
            # A reset came later: these units are counted nowhere any more.
            if decision.moment <= self._closed_until:
                return
            self._state = decision.limits[0]
            self._state_at = now
            if not decision.allowed or not decision.granted:
                self._dry_until = now + DRY
                return
            until = asked_at + self.limit.lapse
            if self.limit.kind.ends_together:
                until = min(until, asked_at + self._state.reset_after)
            self._expire()
            self._batch = Batch(decision.granted, until, self._state.counted_at, decision.moment)

    def _expire(self) -> None:
        if self._batch is not None:
            self._expired.append(self._batch)
            self._batch = None

    def ask_failed(self) -> None:
        """Record that a request for a batch has failed."""
        with self._lock:
            self._is_asking = False
            self._dry_until = Clock.monotonic() + DRY

    def observe(self, state: LimitState, cost: int) -> None:
        """Record the state that Redis returned for a single hit."""
        with self._lock:
            self._state = state
            self._state_at = Clock.monotonic()
            if state.allowed:
                self._spent += cost

    def take_expired(self, fewer_than: int = 0) -> list[Call]:
        """Return the calls that refund units. The caller has to make these calls.

        They refund the units that may not be spent here any more, and all units if fewer than
        `fewer_than` are left.
        """
        now = Clock.monotonic()
        with self._lock:
            batch = self._batch
            if batch is not None and (
                batch.until <= now or batch.units < fewer_than or now - self._hit_at > IDLE
            ):
                self._expire()
            expired = self._expired
            self._expired = []
        return [
            self._refund._replace(
                charges=[Charge(self.limit, self.digest, batch.units)], hit_at=batch.moment
            )
            for batch in expired
            if batch.units
        ]

    @property
    def units(self) -> int:
        """Return the number of units that can be spent, without reading the clock."""
        batch = self._batch
        return 0 if batch is None else batch.units

    @property
    def may_have_more(self) -> bool:
        """Return whether units are left or being requested."""
        return self._is_asking or self.units > 0

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to spend or to refund."""
        return not self._expired and not self.units

    def close(self, moment: int = FOREVER) -> None:
        """Request no more batches.

        Units that were taken up to `moment` are not counted any more, and are neither spent nor
        refunded. Later units are refunded.
        """
        with self._lock:
            self._closed_until = max(self._closed_until, moment)
            self._expire()
            self._expired = [
                batch for batch in self._expired if batch.taken_at > self._closed_until
            ]

    def leave_to_parent(self) -> None:
        """Stop spending units in a child process, in which no thread will release the lock."""
        self._lock = threading.Lock()
        self._closed_until = FOREVER
        self._batch = None


class Leases:
    """All leases of this process."""

    def __init__(self) -> None:
        self._leases: BoundedMap[_Key, Lease] = BoundedMap(
            MAX_ENTRIES, labels_of=lambda key: (key[1],)
        )
        self._holding: set[Lease] = set()
        self._begin()
        self.task = Task(
            "leases",
            self._step,
            delay=SWEEP_SECONDS,
            at_exit=lambda: self.give_back(last_patience()),
        )
        renew_after_fork(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        for lease in {*self._leases.clear(), *self._holding}:
            lease.leave_to_parent()
        self._begin()

    def _begin(self) -> None:
        self._holding.clear()
        self._lock = threading.Lock()

    def of(self, call: Call, charge: Charge) -> Lease:
        """Return the lease from which a charge of a call is spent."""
        key = (call.prefix, charge.digest, charge.limit, call.revision)
        lease = self._leases.get(key)
        if lease is None:
            with self._lock:  # Concurrent callers share it.
                lease = self._leases.get(key)
                if lease is None:
                    lease = Lease(call, charge)
                    # One that goes for it goes on until what it holds has expired.
                    self._leases.put(key, lease)
        return lease

    def hold(self, lease: Lease) -> None:
        """Keep a lease with units: later hits may spend them, and unspent ones are refunded."""
        deny_cache.forget([lease.digest])
        with self._lock:
            self._holding.add(lease)
        self.task.start()

    def put_back(self, lease: Lease, moment: int, units: int) -> None:
        """Put units that were just taken, and count since `moment`, back into a lease."""
        lease.put_back(units, moment)
        self.hold(lease)

    def drop(self, moments: Mapping[bytes, int]) -> None:
        """Drop the units that these identities had taken before a reset.

        They are neither spent nor refunded.

        Args:
            moments: The moment of the reset, by the digest of the identity.
        """
        with self._lock:
            dropped = [lease for lease in self._holding if lease.digest in moments]
        for digest in moments:
            dropped += self._leases.pop_labelled(digest)
        for lease in dropped:
            lease.close(moments[lease.digest])

    def clear(self) -> None:
        """Drop all leases, and neither spend nor refund their units."""
        with self._lock:
            held = list(self._holding)
        for lease in held + self._leases.clear():
            lease.close()

    def renew(self) -> None:
        """Stop spending units that were leased under these rules, which may have changed.

        Unspent units are refunded as usual.
        """
        self._leases.clear()

    def give_back(self, patience: Patience | None = None) -> bool:
        """Refund the units that are not to be spent here; return whether any are still held.

        With a `patience`, refund all units, as far as that time allows.
        """
        fewer_than = 0 if patience is None else EVERYTHING
        for lease in list(self._holding):
            for refund in lease.take_expired(fewer_than):
                try:
                    get_store(background=True).decide(refund, patience)
                    deny_cache.forget([lease.digest])
                except StoreError:  # Then they stay counted until the limit forgets them.
                    if patience is not None and patience.is_over:
                        return True
            with self._lock:
                if lease.is_empty:
                    self._holding.discard(lease)
        return bool(self._holding)

    def _step(self) -> float | None:
        return SWEEP_SECONDS if self.give_back() else None


leases = Leases()


class LocalPart:
    """The part of a call that is decided in this process.

    - `states`: the states of limits, by the position of their charge;
    - `taken`: the units taken, each number with the function that gives units back.
    """

    def __init__(self) -> None:
        self.states: dict[int, LimitState] = {}
        self.taken: list[tuple[int, Callable[[int], object]]] = []
        self.source: Source = "split"

    def at_most(self, call: Call, charge: Charge) -> Charge:
        """Reduce the cost of a partial hit to the units that were granted here."""
        if not call.partial or not self.taken or call.operation != "hit":
            return charge
        return charge._replace(cost=min(charge.cost, *[units for units, _ in self.taken]))

    def undo(self, keep: int = 0) -> None:
        """Give back the units that were taken from each limit, except for `keep` of them."""
        for units, give_back in self.taken:
            if units > keep:
                give_back(units - keep)


def may_have_more(call: Call) -> bool:
    """Return whether units are being requested, so that a refusal does not predict the next hit."""
    return any(
        charge.limit.lease is not None and leases.of(call, charge).may_have_more
        for charge in call.charges
    )


def decide_here(call: Call, patience: Patience) -> Waiting[Decision]:
    """Decide a call in this process and, for the rest, in Redis.

    Raises the `StoreError` or `StaleRules` of the calls that it yields.
    """
    yield from _join_splits(call, patience)
    here = LocalPart()
    is_refused = not _decide_splits(call, here)
    query = call
    if is_refused and call.operation == "hit":
        query = call._replace(operation="peek")
    rest: list[int] = []
    redis: Decision | None = None
    try:
        for place, charge in enumerate(call.charges):
            if place not in here.states and not (
                _is_leased(query, charge) and (yield from _spend(here, place, query))
            ):
                rest.append(place)
        if rest:
            redis = yield query._replace(
                charges=[here.at_most(query, call.charges[place]) for place in rest]
            )
            for place, state in zip(rest, redis.limits, strict=True):
                charge = call.charges[place]
                here.states[place] = state
                if _is_leased(call, charge):
                    is_spent = redis.allowed and call.operation == "hit"
                    leases.of(call, charge).observe(state, charge.cost if is_spent else 0)
    except BaseException:
        here.undo()
        raise
    return _combine(call, here, redis, is_refused)


def _combine(call: Call, here: LocalPart, redis: Decision | None, is_refused: bool) -> Decision:
    allowed = not is_refused and (redis is None or redis.allowed)
    granted = 0
    if allowed and call.operation != "peek":
        grants = [units for units, _ in here.taken]
        if redis is not None:
            grants.append(redis.granted)
        granted = (min if call.partial else max)(grants, default=0)
    if call.operation == "hit" and (not allowed or call.partial):
        here.undo(granted)
    states = tuple([here.states[place] for place in range(len(call.charges))])
    if redis is None:
        moment = max(state.counted_at for state in states) or Clock.time_ns() // 1000
        redis = Decision(allowed, source=here.source, moment=moment)
    return redis._replace(
        allowed=allowed,
        limits=states,
        granted=granted,
        # If a later limit refuses, units taken here have no turn to wait for. Otherwise all waits
        # coincide.
        wait=max([state.wait for state in states if state.enforced], default=0.0),
        revision=call.revision_number,
    )


def _splits_of(call: Call) -> list[int]:
    """Return the positions of the charges with split limits."""
    if call.now is not None:  # A clock of the caller's own is not this process's.
        return []
    return [place for place, charge in enumerate(call.charges) if charge.limit.split is not None]


def _join_splits(call: Call, patience: Patience) -> Generator[Wait, None, None]:
    """Join the registers of the split limits that a call hits. Raises `StoreError`."""
    for place in _splits_of(call):
        if call.operation != "hit":
            continue
        register = heartbeat.use(call.charges[place].limit)
        if register is not None:
            join = partial(heartbeat.join, register, patience)
            # A thread of this loop: that of sync_to_async would be lost in a forked process.
            yield Wait(join, partial(asyncio.to_thread, join))


def _decide_splits(call: Call, here: LocalPart) -> bool:
    """Decide the split limits by this process's parts. Return whether they allow the call."""
    places = _splits_of(call)
    if not places:
        return True
    splits = call._replace(charges=[call.charges[place] for place in places])
    decision = local_counts.decide(splits)
    here.states.update(zip(places, decision.limits, strict=True))
    if call.operation == "hit" and decision.allowed:
        for charge, state in zip(splits.charges, decision.limits, strict=True):
            give_back = partial(_refund_split, splits, charge, state.counted_at)
            here.taken.append((charge.cost, give_back))
    return decision.allowed


def _refund_split(splits: Call, charge: Charge, counted_at: int, units: int) -> None:
    if counted_at:  # Else a shadow limit took nothing.
        refund = splits._replace(charges=[charge._replace(cost=units)], operation="refund")
        local_counts.decide(refund._replace(hit_at=counted_at))


def _is_leased(call: Call, charge: Charge) -> bool:
    # A clock of the caller's own is not the one that leases expire by; a wait of one's own is for
    # Redis to plan.
    return (
        charge.limit.lease is not None
        and call.operation in ("hit", "peek")
        and call.now is None
        and call.max_wait_us is None
    )


def _spend(here: LocalPart, place: int, call: Call) -> Generator[Call, Decision, bool]:
    """Spend a charge from its lease, or take a batch if that pays. Return whether it was spent."""
    charge = here.at_most(call, call.charges[place])
    lease = leases.of(call, charge)
    if call.operation == "peek":
        answer = lease.take(0, max(charge.cost, 1))
    else:
        answer = lease.take(charge.cost, charge.cost)
        size = lease.next_batch_size(charge.cost) if answer is None else 0
        if size:
            yield from _ask_batch(call, charge, lease, size)
            answer = lease.take(charge.cost, charge.cost)
        if answer is None:
            # Too few: see what there is of them all.
            for refund in lease.take_expired(charge.cost):
                with suppress(StoreError):
                    yield refund
                deny_cache.forget([charge.digest])
    if answer is None:
        return False
    here.states[place] = answer
    here.source = "lease"
    if call.operation == "hit":
        here.taken.append((charge.cost, partial(leases.put_back, lease, answer.counted_at)))
    return True


def _ask_batch(
    call: Call, charge: Charge, lease: Lease, size: int
) -> Generator[Call, Decision, None]:
    asked_at = Clock.monotonic()
    try:
        decision = yield call._replace(charges=[charge._replace(cost=size)], partial=True)
    except BaseException:
        lease.ask_failed()
        raise
    lease.add_batch(decision, asked_at)
    leases.hold(lease)


on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), leases.clear)
