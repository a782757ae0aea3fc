"""Counts in this process: its share of limits in an outage, and its part of split limits.

The counts of 10,000 identities are kept. If there are more, the least recently used is dropped.
Moments are seconds of the monotonic clock.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from threading import Lock

from ..conf import conf
from ..limits.algorithms.concurrency import lasts_us
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..process.forks import renew_after_fork
from .heartbeat import ProcessShare, heartbeat
from .slots import Key, held_slots

MAX_IDENTITIES = 10_000
SEGMENTS = 10
"""Parts of a window. The units of one expire together, a period after the last of them."""
RETRY_SECONDS = 1.0
"""Until a client may try again if the limit is closed, or this process's part of it is 0 at the
moment.
"""
SAME_SECONDS = 1e-5
"""Moments that differ by less are one, computed twice."""


def share_of(limit: Limit) -> ProcessShare:
    """Return this process's part of a split limit. Without one, an equal share."""
    return heartbeat.part_of(limit) or ProcessShare(heartbeat.count - 1, heartbeat.count)


def policy_of(limit: Limit) -> str:
    """Return the policy of a limit while Redis is unavailable."""
    return limit.on_store_error or conf.ON_STORE_ERROR


class Counter:
    """The count of one identity under one limit.

    - `size`: the units of this process's share;
    - `owed`: the admitted units that are still to be reported to Redis;
    - `heard_at`: the moment of the latest reply of Redis that this count includes.
    """

    key: Key
    size = 0
    owed = 0
    heard_at = float("-inf")

    def __init__(self, limit: Limit, share: ProcessShare) -> None:
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: ProcessShare, now: float) -> None:
        """Apply a changed share, or changed numbers of the same limit.

        Units stay counted, but expire no later than units that are taken now.
        """
        self.limit = limit
        self.share = share
        self.size = share.units(self.whole)

    @property
    def whole(self) -> int:
        """Return the units that all processes share."""
        return self.limit.capacity

    def used(self, now: float) -> float:
        raise NotImplementedError

    def retry_after(self, now: float, cost: int) -> float | None:
        """Return the seconds until this number of units fits; None if it never does.

        In an outage, one hit that is larger than the share fits if nothing else is counted.
        """
        used = self.used(now)
        room = self.size
        if not room:
            return RETRY_SECONDS if self.limit.rate.limit else None
        if room < cost <= self.whole and self.limit.split is None and not self.limit.holds:
            room = cost
        over = used + cost - room
        if over <= 0:
            return 0.0
        return None if over > used else self._free_after(now, over)

    def _free_after(self, now: float, units: float) -> float:
        raise NotImplementedError

    def wait(self, now: float) -> float:
        """Return the seconds for which a hit admitted now is held."""
        return 0.0

    def take(self, moment: float, cost: int, slot: bytes = b"") -> None:
        """Count units from that moment on. Slots count until they are released."""
        raise NotImplementedError

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give back the units of the hit that count since `since`. None: the latest units."""
        raise NotImplementedError

    def catch_up(self, now: float, units: int, since: float) -> None:
        """Count at least the units that were counted at an earlier moment, plus the owed ones.

        The maximum is the share.
        """
        earlier = _new_counter(self.limit, self.share)
        earlier.take(since, units)
        missing = min(self.size, earlier.used(now) + self.owes(now)) - self.used(now)
        if missing > 0:
            self.take(since, ceil(missing))

    def reset_after(self, now: float) -> float:
        raise NotImplementedError

    def owes(self, now: float) -> int:
        """Return the units that still count and are to be reported to Redis."""
        return min(self.owed, ceil(self.used(now))) if self.owed else 0


class Window(Counter):
    """The counter of fixed windows, sliding windows and sliding logs. It is a sliding window.

    Units are counted by segments of the period. A segment ends one period after its last hit. So no
    period admits more units than the share.
    """

    def __init__(self, limit: Limit, share: ProcessShare) -> None:
        self._segments: dict[float, tuple[float, int]] = {}
        super().__init__(limit, share)

    def resize(self, limit: Limit, share: ProcessShare, now: float) -> None:
        super().resize(limit, share, now)
        latest = now + limit.rate.period
        self._segments = {
            key: (min(end, latest), units) for key, (end, units) in self._segments.items()
        }

    def _key(self, moment: float) -> float:
        return moment * SEGMENTS // self.limit.rate.period

    def used(self, now: float) -> int:
        used = 0
        for key, (end, units) in list(self._segments.items()):
            if end <= now:
                del self._segments[key]
            else:
                used += units
        return used

    def _free_after(self, now: float, units: float) -> float:
        for end, count in sorted(self._segments.values()):
            units -= count
            if units <= 0:
                return end - now
        return self.reset_after(now)

    def take(self, moment: float, cost: int, slot: bytes = b"") -> None:
        if not cost:
            return
        end, units = self._segments.get(self._key(moment), (0.0, 0))
        end = max(end, moment + self.limit.rate.period)
        self._segments[self._key(moment)] = (end, units + cost)

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        keys = sorted(self._segments, reverse=True)
        if since is not None:
            keys = [self._key(since)]
        for key in keys:
            end, units = self._segments.pop(key, (0.0, 0))
            back = min(units, cost)
            cost -= back
            if units > back:
                self._segments[key] = (end, units - back)

    def reset_after(self, now: float) -> float:
        return max([end - now for end, _ in self._segments.values()], default=0.0)


class Bucket(Counter):
    """The counter of token buckets and leaky buckets: the level of the bucket at a moment.

    Units that have drained since a hit are not refunded: without the hit, the bucket might have
    been empty during that time.
    """

    _level = 0.0
    _at = 0.0
    _speed = 0.0

    def resize(self, limit: Limit, share: ProcessShare, now: float) -> None:
        self.used(now)
        super().resize(limit, share, now)
        self._level = min(self._level, self.whole)
        self._speed = share.speed(limit.rate.limit) / limit.rate.period

    def used(self, now: float) -> float:
        self._level = max(0.0, self._level - max(0.0, now - self._at) * self._speed)
        self._at = max(self._at, now)
        return self._level

    def _free_after(self, now: float, units: float) -> float:
        return units / self._speed

    def wait(self, now: float) -> float:
        if self.limit.kind.waits_anyway:
            return self.reset_after(now)
        return 0.0

    def take(self, moment: float, cost: int, slot: bytes = b"") -> None:
        self._level = self.used(moment) + cost

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        level = self.used(now)
        back = min(cost, level)
        if since is not None and self.limit.kind.waits_anyway:
            # Only the last turn: otherwise the next client would get one of the others'.
            if abs(now + (level - cost) / self._speed - since) >= SAME_SECONDS:
                return
        elif since is not None:
            back = min(back, max(0.0, cost - (now - since) * self._speed))
        self._level = max(0.0, round(level - back, 9))

    def reset_after(self, now: float) -> float:
        return self.used(now) / self._speed if self._speed else 0.0


class Slots(Counter):
    """The slots of one identity that this process holds or has just granted.

    A granted slot counts until its caller holds it, or its time has passed. Renewals report held
    slots to Redis, so slots are never owed.
    """

    def __init__(self, limit: Limit, share: ProcessShare) -> None:
        self._given: dict[bytes, tuple[float, int]] = {}
        super().__init__(limit, share)

    def used(self, now: float) -> float:
        self._given = {slot: given for slot, given in self._given.items() if given[0] > now}
        held = held_slots.of(self.key)
        given = sum(cost for slot, (_, cost) in self._given.items() if slot not in held)
        return given + sum(slot.charge.cost for slot in list(held.values()))

    def _free_after(self, now: float, units: float) -> float:
        return self.reset_after(now)

    def take(self, moment: float, cost: int, slot: bytes = b"") -> None:
        if slot:
            self._given[slot] = (moment + lasts_us(slot) / SECOND, cost)

    def release(self, slot: bytes) -> None:
        self._given.pop(slot, None)

    def reset_after(self, now: float) -> float:
        return conf.SLOT_SECONDS if self.used(now) else 0.0


class Uncounted(Counter):
    """The counter of limits that allow all hits, or no hits, while Redis is unavailable."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._retry_after = RETRY_SECONDS
        if policy_of(limit) == "open":
            self.size = limit.rate.limit
            self._retry_after = 0.0
        elif limit.mode == "shadow":
            self._retry_after = 0.0

    def used(self, now: float) -> float:
        return 0

    def retry_after(self, now: float, cost: int) -> float | None:
        return self._retry_after

    def reset_after(self, now: float) -> float:
        return 0.0


def _new_counter(limit: Limit, share: ProcessShare) -> Counter:
    kind: type[Counter] = Window
    if limit.holds:
        kind = Slots
    elif limit.kind.is_bucket:
        kind = Bucket
    return kind(limit, share)


class Counters:
    """All counters of this process, and the last reply of Redis about each identity.

    In an outage, a share begins with the state in that reply.
    """

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        self._counters: OrderedDict[Key, Counter] = OrderedDict()
        self._lock = Lock()
        self._began_us = time.time_ns() // 1000 - round(time.monotonic() * SECOND)
        """The start of this process's own clock: its moments are microseconds since 1970 that no
        change of the system's clock affects.
        """
        self.is_owing = False
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        # Units stay counted in a child, but its parent reports them to Redis.
        self._lock = Lock()
        self.is_owing = False
        for counter in self._counters.values():
            counter.owed = 0

    def decide(self, call: Call, *, in_outage: bool = False) -> Decision:
        """Decide a call in this process. Units are taken if every limit allows the call.

        With `in_outage`, each limit's policy decides, and the admitted units are owed to Redis.
        """
        is_hit = call.operation == "hit"
        is_owed = in_outage and call.now is None
        with self._lock:
            # Read here, so that it never runs backwards for what is counted. In whole microseconds,
            # as it is reported.
            now = round(time.monotonic() * SECOND) / SECOND
            counters = [self._find(call, charge, now, in_outage) for charge in call.charges]
            charges = call.charges
            if call.partial and is_hit:
                charges = _affordable(call, counters, now)
            verdicts = [
                (charge, counter, _verdict(call, charge, counter, now))
                for charge, counter in zip(charges, counters, strict=True)
            ]
            allowed = all(
                retry == 0.0 or charge.limit.mode != "enforce" for charge, _, retry in verdicts
            )
            states = []
            for charge, counter, retry in verdicts:
                wait = counter.wait(now)
                counted_at = 0
                if isinstance(counter, Uncounted):
                    pass
                elif call.operation == "refund":
                    self._give(call, charge, counter, now, is_owed)
                elif charge.cost and (
                    call.operation == "charge" or (is_hit and retry == 0.0 and allowed)
                ):
                    self._take(call, charge, counter, now, is_owed)
                    if is_hit and (charge.limit.split is not None or charge.limit.holds):
                        counted_at = self._began_us + round((now + wait) * SECOND)
                if retry != 0.0:
                    wait = 0.0
                used = ceil(counter.used(now))
                states.append(
                    LimitState.of(
                        charge.limit,
                        allowed=retry == 0.0,
                        used=used,
                        remaining=max(0, counter.size - used),
                        retry_after=retry,
                        reset_after=counter.reset_after(now),
                        wait=wait,
                        counted_at=counted_at,
                    )
                )
        if not allowed and call.operation not in ("refund", "charge"):
            return Decision(False, tuple(states))
        return Decision(
            True,
            tuple(states),
            call._replace(charges=charges).units,
            max([state.wait for state in states if state.enforced], default=0.0),
        )

    def _find(self, call: Call, charge: Charge, now: float, in_outage: bool) -> Counter:
        """Return the counter of an identity. A new counter is kept once it counts something."""
        limit = charge.limit
        key = _key(call, charge)
        if in_outage and policy_of(limit) != "local":
            return Uncounted(limit)
        share = share_of(limit)
        counter = self._counters.get(key)
        if counter is None:
            counter = _new_counter(limit, share)
            counter.key = key
        else:
            self._counters.move_to_end(key)
        if share != counter.share or (limit is not counter.limit and limit != counter.limit):
            counter.resize(limit, share, now)
        if limit.split is None and not limit.holds:
            used, heard_at = self._answers.get(key) or (0, float("-inf"))
            if heard_at > counter.heard_at:
                counter.heard_at = heard_at
                counter.catch_up(now, ceil(used / heartbeat.count), heard_at)
        return counter

    def _take(
        self, call: Call, charge: Charge, counter: Counter, now: float, is_owed: bool
    ) -> None:
        counter.take(now, charge.cost, call.slot)
        if is_owed and charge.limit.split is None and not charge.limit.holds:
            counter.owed += charge.cost
            self.is_owing = True
        self._counters[counter.key] = counter
        while len(self._counters) > MAX_IDENTITIES:
            self._counters.popitem(last=False)

    def _give(
        self, call: Call, charge: Charge, counter: Counter, now: float, is_owed: bool
    ) -> None:
        if isinstance(counter, Slots):
            counter.release(call.slot)
        # Otherwise Redis has counted it, and not this process.
        elif call.hit_at is None or charge.limit.split is not None:
            since = None
            if call.hit_at is not None:
                since = (call.hit_at - self._began_us) / SECOND
            counter.give(now, charge.cost, since)
            if is_owed:
                counter.owed = max(0, counter.owed - charge.cost)

    def remember(self, call: Call, states: Sequence[LimitState]) -> None:
        """Store the used units that Redis has returned, for limits whose policy is "local"."""
        now = time.monotonic()
        for place, (limit, digest, _) in enumerate(call.charges):
            # `policy_of`, inlined: it is on the way of a hit.
            if (limit.on_store_error or conf.ON_STORE_ERROR) != "local":
                continue
            if not heartbeat.task.is_running:
                heartbeat.start()
            answers = self._answers
            answers[call.prefix, digest, limit.key_part] = (states[place].used, now)
            while len(answers) > MAX_IDENTITIES:
                with suppress(KeyError):  # No lock is taken, so others make room, too.
                    answers.popitem(last=False)

    def forget(self, call: Call) -> None:
        """Delete the counts of a call's limits."""
        with self._lock:
            for charge in call.charges:
                key = _key(call, charge)
                self._answers.pop(key, None)
                self._counters.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()
            self._counters.clear()

    def owes_any(self, call: Call) -> bool:
        """Return whether an identity of the call has units to report to Redis. Takes no lock."""
        counters = [self._counters.get(_key(call, charge)) for charge in call.charges]
        return any(counter is not None and counter.owed for counter in counters)

    def owing(self) -> list[Counter]:
        """Return the counters with units to report to Redis, and update `is_owing`."""
        now = time.monotonic()
        with self._lock:
            for counter in self._counters.values():
                counter.owed = counter.owes(now)
            owing = [counter for counter in self._counters.values() if counter.owed]
            self.is_owing = bool(owing)
            return owing

    def mark_reported(
        self, counter: Counter, units: int, call: Call, states: Sequence[LimitState]
    ) -> None:
        """Record that Redis has counted this number of units, and the states that it returned."""
        with self._lock:
            counter.owed = max(0, counter.owed - units)
            self.remember(call, states)


def _key(call: Call, charge: Charge) -> Key:
    return call.prefix, charge.digest, charge.limit.key_part


def _affordable(call: Call, counters: Sequence[Counter], now: float) -> list[Charge]:
    """Return the charges of a partial hit, reduced to the units that are available."""
    room = [
        int(counter.size - counter.used(now))
        for charge, counter in zip(call.charges, counters, strict=True)
        if charge.limit.mode == "enforce" and not isinstance(counter, Uncounted)
    ]
    return [charge._replace(cost=max(1, min([charge.cost, *room]))) for charge in call.charges]


def _verdict(call: Call, charge: Charge, counter: Counter, now: float) -> float | None:
    """Return the seconds until this charge is admitted; None if it never is."""
    if call.debt and charge.limit.kind.allows_debt:
        return counter.retry_after(now, 0)
    retry = counter.retry_after(now, max(charge.cost, 1))
    # A caller that waits for a slot asks again.
    if charge.limit.holds or not charge.limit.kind.waits_anyway:
        return retry
    if retry and charge.limit.wants_more and call.max_wait_us is not None:
        retry = 0.0  # A caller that sets its own maximum wait may wait in a queue of any length.
    longest = call.max_wait_us_of(charge.limit)
    if retry == 0.0 and longest >= 0:
        retry = max(0.0, counter.wait(now) - longest / SECOND)
    return retry


counters = Counters()
