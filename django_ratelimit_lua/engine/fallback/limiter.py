"""What this process decides by itself: its share of a limit.

For when Redis cannot be asked: of N units that P processes share, each admits N / P, rounded up, and at least
`RATELIMIT_LOCAL_FLOOR`. So together they admit at most N + P - 1 units where one Redis admits N, or P times the floor
if that is more. A share begins with what Redis said last of the identity, if that is remembered. One hit that costs
more than a share, but no more than the limit, is admitted where nothing else is counted. What this process has admitted
stays in its share as long as the limit counts it: also in the next outage, and whatever Redis was told.

When Redis is back, a thread tells it what was admitted meanwhile and counts still. Until that was answered, and for a
moment, until the other processes have told as well, each goes by both: by Redis, and by its share.

And for limits that are split: each process has exactly its part, together they have the whole. When an instance comes,
the parts of the others shrink with their next heartbeat; until then, and for what they have admitted of a period that
has begun, the sum may be more than N: by the newcomer's part at most.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from math import ceil
from threading import Lock
from typing import Any

from ...conf import conf
from ...exceptions import StoreError
from ...limits.call import Call, Charge
from ...limits.decision import Decision, LimitState
from ...limits.limit import Limit
from ...limits.rate import SECOND
from ...process.bounded_map import BoundedMap
from ...process.forks import renew_after_fork, start_thread
from ...signals import store_up
from ...store import Patience, get_store
from ..heartbeat import heartbeat
from .counters import Bucket, Counter, Full, Moments, Window
from .shares import Share, share_of

logger = logging.getLogger("django_ratelimit_lua")

MOST = 10_000
"""Identities that are counted apart."""
MOST_CROWDS = 1_000
"""Limits whose other identities are counted together."""
MOST_MOMENTS = 400_000
"""Moments that all windows together remember, of 72 bytes each."""
STRIPES = 16
"""Parts that what is counted is kept in, each with a lock of its own."""
LOOK_AT = 8
"""Identities that are looked at for one that is not counted any more, where somebody new needs the place."""
BACK_SECONDS = 1.5
"""Within which all processes come back when Redis does: their breakers try at least so often."""
TELL_SECONDS = 0.2
"""Between two attempts to tell Redis what was admitted without it, a quarter more or less by chance."""
MOST_ERRORS = 10
"""Errors that Redis answers in one such attempt: it is full, say. The next one begins with others."""
Key = tuple[bytes, bytes, bytes]
"""Prefix, identity and limit."""


@dataclass(slots=True)
class Count:
    """What is counted of an identity, or of a crowd, and by which share of which limit."""

    limit: Limit
    share: Share
    counter: Counter
    is_kept: bool = False
    is_crowd: bool = False
    admitted: int = 0
    """Units that Redis is to be told of."""
    is_being_told: bool = False
    heard_at: float = float("-inf")
    """The moment of what Redis said that this counts."""

    def go_by(self, limit: Limit, now: float) -> None:
        """Go by the limit and the share that hold now; what is counted stays counted."""
        share = share_of(limit)
        if share != self.share or (limit is not self.limit and limit != self.limit):
            self.counter.resize(limit, share, now)
            self.limit, self.share = limit, share


class Stripe:
    """A part of what is counted: identities, each for itself as long as there is room.

    Nothing that counts is ever forgotten for somebody else. Where there is no room, whoever is new is counted together
    with all others who are, as if they were one, by limit. Who is counted apart again begins with what these are
    counted, so nobody ever has more than one share. Not thread-safe: whoever comes holds `lock`.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self._counts: OrderedDict[Key, Count] = OrderedDict()
        self._crowds: OrderedDict[tuple[bytes, bytes], Count] = OrderedDict()
        self._moments = Moments(MOST_MOMENTS // STRIPES)

    def find(self, key: Key, limit: Limit, now: float) -> Count | None:
        """The count of an identity that is counted apart."""
        count = self._counts.get(key)
        if count is not None:
            count.go_by(limit, now)
        return count

    def begin(self, key: Key, limit: Limit, now: float) -> Count:
        """The count of an identity that is not. Not kept yet."""
        crowd = self._crowds.get((key[0], key[2]))
        if crowd is not None:
            crowd.go_by(limit, now)
        if self._has_room(self._counts, MOST, now):
            if crowd is not None and crowd.counter.used(now):
                count = Count(limit, crowd.share, crowd.counter.copy())
            else:
                count = self._new(limit)
            return count
        if crowd is not None:
            return crowd
        share = share_of(limit)
        if not self._has_room(self._crowds, MOST_CROWDS, now):
            return Count(limit, share, Full(), is_crowd=True)
        return self._new(limit, is_crowd=True)

    def keep(self, key: Key, count: Count) -> None:
        """Units were taken: this is what is counted of an identity from now on."""
        if not count.is_kept:
            count.is_kept = True
            if not count.is_crowd:
                self._counts[key] = count
            elif not isinstance(count.counter, Full):
                self._crowds[key[0], key[2]] = count

    def forget(self, key: Key) -> None:
        """Forget what is counted of an identity. A crowd is not: others are counted there."""
        count = self._counts.pop(key, None)
        if count is not None:
            count.counter.drop()

    def clear(self) -> None:
        """Forget all."""
        self._counts.clear()
        self._crowds.clear()
        self._moments.count = 0

    def kept(self) -> Iterator[tuple[Key, Count]]:
        """Whatever is counted apart."""
        return iter(self._counts.items())

    def owes(self, key: Key) -> bool:
        """Whether Redis is to be told of an identity. Needs no lock."""
        count = self._counts.get(key)
        return count is not None and count.admitted > 0

    def _new(self, limit: Limit, *, is_crowd: bool = False) -> Count:
        share = share_of(limit)
        is_bucket = limit.algorithm in ("token_bucket", "leaky_bucket")
        counter = Bucket(limit, share) if is_bucket else Window(limit, share, self._moments)
        return Count(limit, share, counter, is_crowd=is_crowd)

    @staticmethod
    def _has_room(counts: OrderedDict[Any, Count], most: int, now: float) -> bool:
        """Whether there is room for one more; made by forgetting who is not counted any more."""
        if len(counts) < most // STRIPES:
            return True
        for _ in range(LOOK_AT):
            key, count = next(iter(counts.items()))
            if not count.counter.used(now):
                counts.pop(key).counter.drop()
                return True
            counts.move_to_end(key)
        return False


class FallbackLimiter:
    """The shares of this process, and what Redis said last of each identity."""

    def __init__(self) -> None:
        self._said: BoundedMap[Key, tuple[int, float]] = BoundedMap(MOST)
        self._stripes = tuple(Stripe() for _ in range(STRIPES))
        self._waits_until = float("-inf")
        self._began_us = time.time_ns() // 1000 - round(time.monotonic() * SECOND)
        """What moments of this process's own clock are told from: they are microseconds since 1970, but never set."""
        self._owes = self._is_telling = False
        self._lock_of_telling = Lock()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        # What is counted stays counted in a child, too; but its parent tells Redis of it.
        self._owes = self._is_telling = False
        self._lock_of_telling = Lock()
        for stripe in self._stripes:
            stripe.lock = Lock()
            for _, count in stripe.kept():
                count.admitted, count.is_being_told = 0, False

    def is_waiting(self, call: Call) -> bool:
        """Whether Redis is asked, and may not know yet what was admitted without it."""
        if time.monotonic() >= self._waits_until and not self._owes:
            return False
        if get_store().is_paused:
            return False
        keys = [_key(call, charge) for charge in call.charges]
        return time.monotonic() < self._waits_until or any(self._stripe(key).owes(key) for key in keys)

    def on_store_down(self) -> None:
        """Redis could not be asked for a decision."""
        self._waits_until = time.monotonic() + BACK_SECONDS

    def remember_usage(self, call: Call, states: Sequence[LimitState]) -> None:
        """Remember what Redis says is used."""
        now = time.monotonic()
        for charge, state in zip(call.charges, states, strict=True):
            self._said.put(_key(call, charge), (state.used, now))

    def clear(self) -> None:
        """Begin with nothing."""
        for stripe in self._stripes:
            with stripe.lock:
                stripe.clear()
        self._waits_until = float("-inf")

    def on_store_up(self) -> None:
        """Redis answers again."""
        self._waits_until = time.monotonic() + BACK_SECONDS
        if self._owes:
            self._start_telling()

    def _start_telling(self) -> None:
        with self._lock_of_telling:  # Where no thread can be started, whoever is admitted next tries again.
            self._is_telling = self._is_telling or start_thread(self._tell_until_known, "ratelimit-local") is not None

    def _tell_until_known(self) -> None:
        # Not only when a request was answered: a process that has none, or refuses all by itself, has to tell as well.
        while True:
            time.sleep(TELL_SECONDS * random.uniform(0.75, 1.25))
            try:
                if not get_store().is_paused:
                    self._tell()
            except Exception:  # Whoever is admitted next begins anew.
                logger.exception("Redis cannot be told what was admitted without it")
                self._is_telling = False
                return
            with self._lock_of_telling:
                if not self._owes:
                    self._is_telling = False
                    return

    def _tell(self) -> None:
        """Tell Redis of everybody it is to be told of."""
        now = time.monotonic()
        self._owes = False  # Whoever is admitted from now on says so again.
        untold: list[tuple[Key, Count]] = []
        for stripe in self._stripes:
            with stripe.lock:
                for key, count in stripe.kept():
                    if count.admitted and not _owed(count, now):
                        count.admitted = 0  # It counts no more.
                    if count.admitted:
                        untold.append((key, count))
        random.shuffle(untold)  # One whose answer is an error, again and again, is not always before the others.
        answers, errors = False, 0
        for key, count in untold:
            try:
                if not answers:  # A silent Redis might count, when it wakes up, what it was sent while it was silent.
                    get_store(background=True).decide(self._told(key, count, 0), Patience(conf.TIMEOUT))
                    answers = True
                self._tell_of(key, count)
            except StoreError as error:
                self._owes = True
                errors += 1
                if not error.was_answered or errors >= MOST_ERRORS:
                    return

    def _told(self, key: Key, count: Count, units: int) -> Call:
        clock = time.time_ns() // 1000 if conf.CLOCK == "client" else None
        return Call([Charge(count.limit, key[1], max(units, 1))], "charge" if units else "peek", key[0], clock)

    def _tell_of(self, key: Key, count: Count) -> None:
        stripe = self._stripe(key)
        with stripe.lock:
            units = _owed(count, time.monotonic())
            count.is_being_told = True
        try:
            if units:
                call = self._told(key, count, units)
                decision = get_store(background=True).decide(call)
                with stripe.lock:
                    count.admitted = max(0, count.admitted - units)
                    self.remember_usage(call, decision.limits)
        finally:
            count.is_being_told = False

    def forget(self, call: Call) -> None:
        """Forget what is counted of a call's limits."""
        for charge in call.charges:
            key = _key(call, charge)
            stripe = self._stripe(key)
            with stripe.lock:
                stripe.forget(key)

    def decide(self, call: Call, others_allow: bool = True, *, to_be_told: bool = True) -> Decision:
        """Decide a call here: units are taken where every limit, and whatever else is asked, allows.

        `to_be_told`: Redis is to be told of them when it is back.
        """
        keys = [_key(call, charge) for charge in call.charges]
        with self._locked(keys):
            # Only now, so that it never runs backwards for what is counted; in whole microseconds, as it is told.
            now = round(time.monotonic() * SECOND) / SECOND
            found = {key: self._find(key, charge.limit, now) for key, charge in zip(keys, call.charges, strict=True)}
            counts = [found[key] for key in keys]
            counters = [count.counter for count in counts]
            charges = call.charges
            if call.partial and call.operation == "hit":
                room = [
                    int(counter.size - counter.used(now))
                    for charge, counter in zip(charges, counters, strict=True)
                    if charge.limit.mode == "enforce"
                ]
                charges = [replace(charge, cost=max(1, min([charge.cost, *room]))) for charge in charges]
            verdicts = [_verdict(call, charge, counter, now) for charge, counter in zip(charges, counters, strict=True)]
            allowed = others_allow and all(
                retry == 0.0 or charge.limit.mode != "enforce" for charge, retry in zip(charges, verdicts, strict=True)
            )
            waits = [counter.wait(now) for counter in counters]
            is_told, owes = to_be_told and call.now is None, False
            counted_at: dict[Key, int] = {}
            for key, charge, count, retry in zip(keys, charges, counts, verdicts, strict=True):
                if call.operation == "refund":
                    # Nobody knows whether units of a crowd were this one's; and what Redis counts is not counted here.
                    if not count.is_crowd and (call.hit_at is None or charge.limit.split is not None):
                        since = None if call.hit_at is None else (call.hit_at - self._began_us) / SECOND
                        count.counter.give(now, charge.cost, since)
                        count.admitted = max(0, count.admitted - charge.cost) if is_told else count.admitted
                elif charge.cost and (
                    call.operation == "charge" or (call.operation == "hit" and retry == 0.0 and allowed)
                ):
                    counted_at[key] = self._began_us + round((now + count.counter.wait(now)) * SECOND)
                    count.counter.take(now, charge.cost)
                    count.admitted += charge.cost if is_told and charge.limit.split is None else 0
                    self._stripe(key).keep(key, count)
                    owes = owes or (count.admitted > 0 and not count.is_crowd)
            moments = [counted_at.get(key, 0) if call.operation == "hit" else 0 for key in keys]
            states = tuple(map(_state, charges, counters, [now] * len(charges), verdicts, waits, moments))
            for count in counts:
                if not count.is_kept:
                    count.counter.drop()
            self._owes = self._owes or owes
        if owes:
            self._start_telling()
        allowed = allowed or call.operation in ("refund", "charge")
        taken = call.operation == "hit" and allowed
        wait = max((state.wait for state in states if state.enforced), default=0.0) if allowed else 0.0
        return Decision(allowed, states, max((one.cost for one in charges), default=0) if taken else 0, wait)

    def _stripe(self, key: Key) -> Stripe:
        return self._stripes[hash(key[1]) % STRIPES]

    def _locked(self, keys: Sequence[Key]) -> AbstractContextManager[object]:
        places = {hash(key[1]) % STRIPES for key in keys}
        if len(places) == 1:
            return self._stripes[places.pop()].lock
        stack = ExitStack()
        for place in sorted(places):  # In one order for all, so that no two wait for each other.
            stack.enter_context(self._stripes[place].lock)
        return stack

    def _find(self, key: Key, limit: Limit, now: float) -> Count:
        stripe = self._stripe(key)
        count = stripe.find(key, limit, now) or stripe.begin(key, limit, now)
        said = self._said.get(key) if limit.split is None and not count.is_crowd else None
        # While Redis is being told, nobody knows whether what it says includes that.
        if said is not None and said[1] > count.heard_at and not count.is_being_told:
            count.heard_at = said[1]
            count.counter.catch_up(now, ceil(said[0] / heartbeat.count), said[1], _owed(count, now))
        return count


def _key(call: Call, charge: Charge) -> Key:
    return call.prefix, charge.digest, charge.limit.key_part


def _owed(count: Count, now: float) -> int:
    """Units that Redis is to be told of and that count still."""
    return min(count.admitted, ceil(count.counter.used(now))) if count.admitted else 0


def _verdict(call: Call, charge: Charge, counter: Counter, now: float) -> float | None:
    """Seconds until such a hit is admitted; None: never."""
    retry = counter.retry_after(now, max(charge.cost, 1))
    longest = call.max_wait_us_of(charge.limit)
    if retry and charge.limit.wants_more and call.max_wait_us is not None and charge.limit.align is None:
        retry = 0.0  # Whoever says how long to wait does so in a queue of any length.
    if retry == 0.0 and charge.limit.algorithm == "leaky_bucket" and longest >= 0:
        retry = max(0.0, counter.wait(now) - longest / SECOND)
    return retry


def _state(
    charge: Charge, counter: Counter, now: float, retry: float | None, wait: float, counted_at: int
) -> LimitState:
    limit, used = charge.limit, ceil(counter.used(now))
    return LimitState.of(
        limit,
        allowed=retry == 0.0,
        used=used,
        remaining=max(0, counter.size - used),
        retry_after=retry,
        reset_after=counter.reset_after(now),
        wait=wait if retry == 0.0 else 0.0,
        counted_at=counted_at if limit.split is not None else 0,
    )


fallback_limiter = FallbackLimiter()


def _answers_again(**kwargs: object) -> None:
    fallback_limiter.on_store_up()


store_up.connect(_answers_again, dispatch_uid="django_ratelimit_lua.engine.fallback.limiter")
