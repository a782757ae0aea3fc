"""What one process counts by itself: its share of limits while Redis cannot be asked, its part of split ones.

There is room for as many identities as there may be. Nothing that counts is ever forgotten for somebody else. Where
there is no room, whoever is new is counted together with others who are, by limit, as if they were one (a crowd). Who
is counted apart again begins with what the crowd was counted, so nobody ever has more than one share.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from math import ceil
from threading import Lock

from ..conf import conf
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from .counter import Counter, Moments, NoRoom, OutageShare, Share, new_counter
from .heartbeat import heartbeat
from .slots import Key

MOST = 10_000
"""Identities that are counted apart."""
MOST_CROWDS = 1_000
CROWDS_OF_A_LIMIT = 16
MOST_MOMENTS = 400_000
"""Moments that all windows together remember, of 72 bytes each."""
LOOK_AT = 8
"""Identities that are looked at for one that is not counted any more, where somebody new needs the place."""


def share_of(limit: Limit) -> Share:
    """This process's part of a limit that is split, else its share while Redis cannot be asked."""
    return heartbeat.part_of(limit) or OutageShare(heartbeat.count)


class Counters:
    """All counters of this process, and what Redis said last of each identity, with which an outage's share begins."""

    def __init__(self) -> None:
        self._said: BoundedMap[Key, tuple[int, float]] = BoundedMap(MOST)
        self._apart: OrderedDict[Key, Counter] = OrderedDict()
        self._crowds: OrderedDict[Key, Counter] = OrderedDict()
        self._moments = Moments(MOST_MOMENTS)
        self._lock = Lock()
        self._began_us = time.time_ns() // 1000 - round(time.monotonic() * SECOND)
        """What moments of this process's own clock are told from: they are microseconds since 1970, but never set."""
        self.is_owing = False
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        # What is counted stays counted in a child, too; but its parent tells Redis of it.
        self._lock, self.is_owing = Lock(), False
        for counter in self._apart.values():
            counter.owed, counter.is_being_told = 0, False

    def decide(self, call: Call, others_allow: bool = True, *, is_owed: bool = False) -> Decision:
        """Decide a call here: units are taken where every limit, and whatever else is asked, allows.

        `is_owed`: Redis is to be told of them when it is back.
        """
        is_hit, is_owed = call.operation == "hit", is_owed and call.now is None
        with self._lock:
            # Only now, so that it never runs backwards for what is counted; in whole microseconds, as it is told.
            now = round(time.monotonic() * SECOND) / SECOND
            keys = [_key(call, charge) for charge in call.charges]
            by_key = {key: self._find(key, charge.limit, now) for key, charge in zip(keys, call.charges, strict=True)}
            counters = [by_key[key] for key in keys]
            charges = _affordable(call, counters, now) if call.partial and is_hit else call.charges
            verdicts = [_verdict(call, charge, counter, now) for charge, counter in zip(charges, counters, strict=True)]
            allowed = others_allow and all(
                retry == 0.0 or charge.limit.mode != "enforce" for charge, retry in zip(charges, verdicts, strict=True)
            )
            states = []
            for charge, counter, retry in zip(charges, counters, verdicts, strict=True):
                wait, counted_at = counter.wait(now), 0
                if call.operation == "refund":
                    self._give(call, charge, counter, now, is_owed)
                elif charge.cost and (call.operation == "charge" or (is_hit and retry == 0.0 and allowed)):
                    self._take(call, charge, counter, now, is_owed)
                    if is_hit and (charge.limit.split is not None or charge.limit.holds):
                        counted_at = self._began_us + round((now + wait) * SECOND)
                used = ceil(counter.used(now))
                state = LimitState.of(
                    charge.limit, allowed=retry == 0.0, used=used, remaining=max(0, counter.size - used),
                    retry_after=retry, reset_after=counter.reset_after(now), wait=wait if retry == 0.0 else 0.0,
                    counted_at=counted_at,
                )  # fmt: skip
                states.append(state)
                if not counter.is_kept:
                    counter.drop()
        allowed = allowed or call.operation in ("refund", "charge")
        granted = max([charge.cost for charge in charges], default=0) if is_hit and allowed else 0
        longest = max([state.wait for state in states if state.enforced], default=0.0) if allowed else 0.0
        return Decision(allowed, tuple(states), granted, longest)

    def _find(self, key: Key, limit: Limit, now: float) -> Counter:
        """The counter of an identity. One that is new, and its own, is kept as soon as it counts something."""
        counter, share = self._apart.get(key), share_of(limit)
        if counter is None:
            crowd_key = (key[0], key[2], b"%d" % (hash(key[1]) % CROWDS_OF_A_LIMIT))
            crowd = self._crowds.get(crowd_key)
            if _has_room(self._apart, MOST, now):
                counter = new_counter(limit, share, self._moments) if crowd is None else crowd.copy()
                counter.key = key
            elif crowd is not None:
                counter = crowd
            elif _has_room(self._crowds, MOST_CROWDS, now):
                counter = self._crowds[crowd_key] = new_counter(limit, share, self._moments)
                counter.is_kept = True
            else:
                return NoRoom(limit, share)
        if share != counter.share or (limit is not counter.limit and limit != counter.limit):
            counter.resize(limit, share, now)
        # What is held here is known anyway.
        report = None if limit.split is not None or counter.key is None or limit.holds else self._said.get(key)
        # While Redis is being told, nobody knows whether what it says includes that.
        if report is not None and report[1] > counter.heard_at and not counter.is_being_told:
            counter.heard_at = report[1]
            counter.catch_up(now, ceil(report[0] / heartbeat.count), report[1], counter.owes(now))
        return counter

    def _take(self, call: Call, charge: Charge, counter: Counter, now: float, is_owed: bool) -> None:
        if not charge.limit.holds:
            counter.take(now, charge.cost)
        elif call.slot:
            counter.hold(now, call.slot, charge.cost)
        if counter.key is None:
            return
        self._apart[counter.key] = counter
        counter.is_kept = True
        if is_owed and charge.limit.split is None and not charge.limit.holds:
            counter.owed += charge.cost
            self.is_owing = True

    def _give(self, call: Call, charge: Charge, counter: Counter, now: float, is_owed: bool) -> None:
        if charge.limit.holds:
            counter.release(call.slot)
            return
        # Nobody knows whether units of a crowd were this one's; and what Redis counts is not counted here.
        if counter.key is not None and (call.hit_at is None or charge.limit.split is not None):
            counter.give(now, charge.cost, None if call.hit_at is None else (call.hit_at - self._began_us) / SECOND)
            if is_owed:
                counter.owed = max(0, counter.owed - charge.cost)

    def remember(self, call: Call, states: Sequence[LimitState]) -> None:
        """Remember what Redis says is used, where a share may begin with it."""
        now = time.monotonic()
        for (limit, digest, _, _, _), state in zip(call.charges, states, strict=True):
            if (limit.on_store_error or conf.ON_STORE_ERROR) != "local":
                continue
            if not heartbeat.task.is_running:
                heartbeat.start()
            self._said.put((call.prefix, digest, limit.key_part), (state.used, now))

    def forget(self, call: Call) -> None:
        """Forget what is counted of a call's limits. A crowd is not forgotten: others are counted there."""
        with self._lock:
            for charge in call.charges:
                key = _key(call, charge)
                self._said.pop(key)
                if key in self._apart:
                    self._apart.pop(key).drop()

    def clear(self) -> None:
        """Begin with nothing."""
        with self._lock:
            self._said.clear()
            self._apart.clear()
            self._crowds.clear()
            self._moments.count = 0

    def owes_any(self, call: Call) -> bool:
        """Whether Redis is to be told of an identity of the call. Takes no lock."""
        counters = [self._apart.get(_key(call, charge)) for charge in call.charges]
        return any(counter is not None and counter.owed for counter in counters)

    def owing(self) -> list[Counter]:
        """The counters that Redis is to be told of; `is_owing` says whether there are any."""
        now = time.monotonic()
        with self._lock:
            for counter in self._apart.values():
                if counter.owed and not counter.owes(now):
                    counter.owed = 0  # It counts no more.
            owing = [counter for counter in self._apart.values() if counter.owed]
            self.is_owing = bool(owing)
            return owing

    def begin_telling(self, counter: Counter) -> int:
        """The units that Redis is to be told of now. Until that has ended, whether it was answered or not, nobody knows
        if what Redis says includes them."""
        with self._lock:
            counter.is_being_told = True
            return counter.owes(time.monotonic())

    def told(self, counter: Counter, units: int, call: Call, states: Sequence[LimitState]) -> None:
        """Redis has counted so many units, and this is what it says now."""
        with self._lock:
            counter.owed = max(0, counter.owed - units)
            self.remember(call, states)


def _key(call: Call, charge: Charge) -> Key:
    return call.prefix, charge.digest, charge.limit.key_part


def _affordable(call: Call, counters: Sequence[Counter], now: float) -> list[Charge]:
    """A partial hit's charges, of as many units as there are."""
    room = [
        int(counter.size - counter.used(now))
        for charge, counter in zip(call.charges, counters, strict=True)
        if charge.limit.mode == "enforce"
    ]
    return [charge._replace(cost=max(1, min([charge.cost, *room]))) for charge in call.charges]


def _verdict(call: Call, charge: Charge, counter: Counter, now: float) -> float | None:
    """Seconds until such a hit is admitted; None: never."""
    may_owe = call.debt and charge.limit.algorithm == "token_bucket"
    retry = counter.retry_after(now, 0 if may_owe else max(charge.cost, 1))
    longest = call.max_wait_us_of(charge.limit)
    if charge.limit.holds:
        return retry  # Whoever waits for a slot asks again.
    if charge.limit.algorithm == "leaky_bucket":
        if retry and charge.limit.wants_more and call.max_wait_us is not None:
            retry = 0.0  # Whoever says how long to wait does so in a queue of any length.
        if retry == 0.0 and longest >= 0:
            retry = max(0.0, counter.wait(now) - longest / SECOND)
    return retry


def _has_room(counters: OrderedDict[Key, Counter], most: int, now: float) -> bool:
    """Whether there is room for one more; made by forgetting who is not counted any more."""
    if len(counters) < most:
        return True
    for _ in range(LOOK_AT):
        key, counter = next(iter(counters.items()))
        if not counter.used(now):
            counters.pop(key).drop()
            return True
        counters.move_to_end(key)
    return False


counters = Counters()
