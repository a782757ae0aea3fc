"""What one process counts by itself: its share of limits while Redis cannot be asked, its part of split ones.

The algorithms once more, in memory and in floats; and room for as many identities as there may be. Nothing that counts
is ever forgotten for somebody else. Where there is no room, whoever is new is counted together with others who are, by
limit, as if they were one (a crowd). Who is counted apart again begins with what the crowd was counted, so nobody ever
has more than one share.

Moments are seconds by one clock, and never run backwards.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from threading import Lock
from typing import ClassVar, Self

from ..conf import conf
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from .heartbeat import ProcessShare, heartbeat

MOST = 10_000
"""Identities that are counted apart."""
MOST_CROWDS = 1_000
CROWDS_OF_A_LIMIT = 16
MOST_MOMENTS = 400_000
"""Moments that all windows together remember, of 72 bytes each."""
MOST_RUNS = 16
"""Runs of hits that a token bucket tells apart."""
LOOK_AT = 8
"""Identities that are looked at for one that is not counted any more, where somebody new needs the place."""
FULL_SECONDS = 1.0
"""After which somebody may try again for whom there is no room to count."""
SAME_SECONDS = 1e-5
"""Moments that differ by less are the same one, computed twice."""
Key = tuple[bytes, bytes, bytes]
"""Prefix, identity and limit."""


@dataclass(frozen=True, slots=True)
class OutageShare:
    """One of so many processes', rounded up, and at least the floor."""

    processes: int
    is_generous: ClassVar[bool] = True

    def units(self, whole: int) -> int:
        """Of so many units."""
        return min(whole, max(ceil(whole / self.processes), conf.LOCAL_FLOOR))

    def speed(self, limit: int) -> float:
        """Of so many units per period."""
        return max(limit / self.processes, min(conf.LOCAL_FLOOR, limit))


Share = OutageShare | ProcessShare
"""Which part of a limit is this process's. A generous one gives a large hit more, if it comes alone."""


def share_of(limit: Limit) -> Share:
    """This process's part of a limit that is split, else its share while Redis cannot be asked."""
    return heartbeat.part_of(limit) or OutageShare(heartbeat.count)


class Counter:
    """What is counted of one identity's limit, or of a crowd's. `size`: the units of its share."""

    key: Key | None = None
    """Whom it counts apart; None: a crowd."""
    is_kept = is_being_told = False
    owed = 0
    """Units that were admitted and Redis is to be told of."""
    heard_at = float("-inf")
    """The moment of what Redis said that this counts."""

    def __init__(self, limit: Limit, share: Share) -> None:
        self.limit, self.share = limit, share
        self.size = self._most_alone = 0

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        """Go by another share, or the same limit with other numbers; what is counted stays counted. Nobody waits for
        longer than the new limit alone could have anybody wait."""
        self.limit, self.share = limit, share

    def _set_size(self, whole: int) -> None:
        self.size, self._most_alone = self.share.units(whole), whole if self.share.is_generous else 0

    def used(self, now: float) -> float:
        """Units that count now."""
        return 0

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        used = self.used(now)
        over = used + cost - (cost if self.size < cost <= self._most_alone else self.size)
        if not self.size or over > used:
            return None
        return self._free_after(now, over) if over > 0 else 0.0

    def _free_after(self, now: float, units: float) -> float:
        return FULL_SECONDS

    def wait(self, now: float) -> float:
        """Seconds that a hit is held which is admitted now."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        """Count at least `said` units, of that earlier moment, and `more` that count now; no more than the share."""

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        """Give units back: those of a hit that count since that moment; without one, the latest first."""

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""
        return FULL_SECONDS

    def copy(self) -> Self:
        """Another that has counted the same."""
        twin = copy(self)
        twin.is_kept = False
        return twin

    def drop(self) -> None:
        """It is not needed any more."""

    def owes(self, now: float) -> int:
        """Units that Redis is to be told of and that count still."""
        return min(self.owed, ceil(self.used(now))) if self.owed else 0


class NoRoom(Counter):
    """For whom there is no room: refused for a moment, and nothing is counted."""

    def retry_after(self, now: float, cost: int) -> float | None:
        return FULL_SECONDS


class Bucket(Counter):
    """A token bucket or a leaky bucket: how full it is, at a moment.

    A token bucket keeps the hits since it was last empty in runs: since when, from when on they are worked off, and how
    many units. So it can tell how full it would be without one of them. Of more than sixteen runs, two neighbours
    become one, as if all had come with the later: then what is given back counts for longer, never for less long.
    """

    def __init__(self, limit: Limit, share: Share) -> None:
        super().__init__(limit, share)
        self._level, self._at, self._speed = 0.0, 0.0, 0.0
        self._runs: list[tuple[float, float, float]] = []
        self._paces = limit.algorithm == "leaky_bucket"
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        self.used(now)
        rate = limit.rate
        whole = (limit.burst or (rate.limit if limit.queue is None else limit.queue + 1)) if rate.limit else 0
        if limit != self.limit:
            self._level = min(self._level, whole)
        super().resize(limit, share, now)
        self._set_size(whole)
        self._speed = share.speed(rate.limit) / rate.period
        if self._runs:  # What is in it is worked off at another speed from now on.
            self._runs = [(self._runs[0][0], now, self._level)]

    def used(self, now: float) -> float:
        self._level = max(0.0, self._level - (now - self._at) * self._speed)
        self._at = now
        if not self._level:
            self._runs.clear()
        return self._level

    def _free_after(self, now: float, units: float) -> float:
        return units / self._speed

    def wait(self, now: float) -> float:
        return self.used(now) / self._speed if self._paces and self._speed else 0.0

    def take(self, now: float, cost: int) -> None:
        self._level = self.used(now) + cost
        if self._paces or not cost:
            return
        runs = self._runs
        if runs and runs[-1][1] == now:
            first, start, units = runs.pop()
            runs.append((first, start, units + cost))
            return
        runs.append((now, now, cost))
        if len(runs) > MOST_RUNS:
            place = min(range(len(runs) - 1), key=lambda place: runs[place + 1][1] - runs[place][1])
            (first, _, units), (_, start, more) = runs[place : place + 2]
            runs[place : place + 2] = [(first, start, units + more)]

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        left = max(0.0, said - (now - since) * self._speed)
        self.take(now, max(0, ceil(min(self.size, left + more) - self.used(now))))

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        used = self.used(now)
        if not used:
            return
        if self._paces:  # Only the last turn that was told: else, whoever comes next would get one of the others'.
            if since is None or abs(now + (used - cost) / self._speed - since) < SAME_SECONDS:
                self._level = max(0.0, used - cost)
            return
        runs, left, total, level = [], float(cost), 0.0, 0.0
        for first, start, units in reversed(self._runs):
            if left and (since is None or first <= since):
                back = min(units, left)
                units, left = units - back, left - back if since is None else 0.0
            if units:
                runs.append((first, start, units))
                total += units
                level = max(level, total - (now - start) * self._speed)
        self._runs = runs[::-1]
        self._level = min(used, max(0.0, round(level, 9)))

    def reset_after(self, now: float) -> float:
        return self.used(now) / self._speed if self._speed else 0.0

    def copy(self) -> Self:
        twin = super().copy()
        twin._runs = self._runs[:]
        return twin


class Moments:
    """How many moments several windows remember together, and may at most."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most


class Window(Counter):
    """A fixed or sliding window, or a log: units, and until when they count.

    Moments are in the order in which they end, each with the sum of all units up to it, so that nothing is ever summed
    up: a decision costs the same whatever is counted. Where all windows together remember too many moments, units are
    put to the latest one and count as long as that: longer, never shorter.
    """

    def __init__(self, limit: Limit, share: Share, moments: Moments) -> None:
        super().__init__(limit, share)
        self._moments = moments
        self._ends: list[float] = []
        self._sums: list[int] = []
        self._opened = 0.0  # When the fixed window began that counts.
        self._first = self._lapsed = 0  # Where the first moment is that counts, and the sum up to it.
        self.resize(limit, share, 0.0)

    def resize(self, limit: Limit, share: Share, now: float) -> None:
        is_other = limit != self.limit
        super().resize(limit, share, now)
        self._set_size(limit.rate.limit)
        self._period = limit.rate.period
        self._segment = self._period / (limit.segments or 10) if limit.algorithm == "sliding_window" else 0.0
        self._together = limit.algorithm == "fixed_window"
        if is_other:
            latest = now + (self._bounds()[1] if self._together else self._period + self._segment)
            too_late = bisect_right(self._ends, latest, self._first)
            self._ends[too_late:] = [latest] * (len(self._ends) - too_late)

    def used(self, now: float) -> int:
        if not self._sums:
            return 0
        first = bisect_right(self._ends, now, self._first)
        if first > self._first:
            self._lapsed = self._sums[first - 1]
            self._first = first
            if first * 2 > len(self._sums):  # As many are moved as have lapsed since the last time.
                self._forget(0, first)
                self._first = 0
        return self._sums[-1] - self._lapsed if self._sums else 0

    def _forget(self, first: int, last: int) -> None:
        del self._ends[first:last], self._sums[first:last]
        self._moments.count -= last - first

    def _free_after(self, now: float, units: float) -> float:
        return self._ends[bisect_left(self._sums, self._lapsed + units, self._first)] - now

    def take(self, now: float, cost: int) -> None:
        used = self.used(now)
        if self._together and not used:
            self._opened = now
        if cost:
            # An open window ends when it ends, however often it is hit.
            self._count(self._ends[-1] if self._together and used else self._end(now, now), cost, used)

    def catch_up(self, now: float, said: int, since: float, more: int) -> None:
        end, used = self._end(since, now), self.used(now)
        missing = min(self.size, (said if end > now else 0) + more) - used
        if missing > 0:
            self._count(max(end, now), missing, used)

    def _count(self, end: float, units: int, used: int) -> None:
        """Count units until then; with the latest ones, as long as either counts, where they have no moment of their
        own: longer, never shorter."""
        if not self._sums:
            self._lapsed = 0
        if used and (self._together or self._ends[-1] >= end or self._moments.count >= self._moments.most):
            self._ends[-1] = max(self._ends[-1], end)
            self._sums[-1] += units
        else:
            self._ends.append(end)
            self._sums.append(self._lapsed + used + units)
            self._moments.count += 1

    def _bounds(self) -> tuple[float, float]:
        """Seconds since a window began that is aligned, and seconds that it has left; one that is not begins now."""
        clock = time.time_ns() // 1000
        _, period, align, _, begin, end, _, _ = self.limit.numbers(clock)
        if align == 0:
            return 0.0, self._period
        if align == 1:
            begin, end = clock - clock % period, clock - clock % period + period
        return (clock - begin) / SECOND, (end - clock) / SECOND

    def _end(self, since: float, now: float) -> float:
        """Until when units count that count since then; of a fixed window, if they open it."""
        if self._together and self.limit.align is not None:
            ago, left = self._bounds()
            return now + left if since >= now - ago else since
        return (since // self._segment + 1) * self._segment + self._period if self._segment else since + self._period

    def give(self, now: float, cost: int, since: float | None = None) -> None:
        used = self.used(now)
        if since is not None:
            self._give_of(now, cost, since)
            return
        left = max(0, used - cost)
        if left == used:
            return
        place = bisect_left(self._sums, self._lapsed + left, self._first) if left else self._first - 1
        if left:
            self._sums[place] = self._lapsed + left
        self._forget(place + 1, len(self._sums))

    def _give_of(self, now: float, cost: int, since: float) -> None:
        """Give back units of the moment that has those which count since then; where it is over, there are none."""
        if self._together:
            end = self._ends[-1] if self._ends and since >= self._opened else now
        else:
            end = self._end(since, now)
        place = bisect_left(self._ends, end, self._first) if end > now else len(self._ends)
        if place == len(self._ends):
            return
        before = self._sums[place - 1] if place > self._first else self._lapsed
        back = min(cost, self._sums[place] - before)
        # Those after it: as many as have come since.
        self._sums[place:] = [units - back for units in self._sums[place:]]
        if self._sums[place] == before:
            self._forget(place, place + 1)

    def reset_after(self, now: float) -> float:
        return self._ends[-1] - now if self.used(now) else 0.0

    def copy(self) -> Self:
        twin = super().copy()
        twin._ends, twin._sums = self._ends[:], self._sums[:]
        self._moments.count += len(self._sums)
        return twin

    def drop(self) -> None:
        self._forget(0, len(self._sums))
        self._first = self._lapsed = 0


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
            found = {key: self._find(key, charge.limit, now) for key, charge in zip(keys, call.charges, strict=True)}
            counters = [found[key] for key in keys]
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
                    self._take(charge, counter, now, is_owed)
                    if is_hit and charge.limit.split is not None:
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
                counter = self._new(limit, share) if crowd is None else crowd.copy()
                counter.key = key
            elif crowd is not None:
                counter = crowd
            elif _has_room(self._crowds, MOST_CROWDS, now):
                counter = self._crowds[crowd_key] = self._new(limit, share)
                counter.is_kept = True
            else:
                return NoRoom(limit, share)
        if share != counter.share or (limit is not counter.limit and limit != counter.limit):
            counter.resize(limit, share, now)
        said = self._said.get(key) if limit.split is None and counter.key is not None else None
        # While Redis is being told, nobody knows whether what it says includes that.
        if said is not None and said[1] > counter.heard_at and not counter.is_being_told:
            counter.heard_at = said[1]
            counter.catch_up(now, ceil(said[0] / heartbeat.count), said[1], counter.owes(now))
        return counter

    def _new(self, limit: Limit, share: Share) -> Counter:
        if limit.algorithm in ("token_bucket", "leaky_bucket"):
            return Bucket(limit, share)
        return Window(limit, share, self._moments)

    def _take(self, charge: Charge, counter: Counter, now: float, is_owed: bool) -> None:
        counter.take(now, charge.cost)
        if counter.key is None:
            return
        self._apart[counter.key] = counter
        counter.is_kept = True
        if is_owed and charge.limit.split is None:
            counter.owed += charge.cost
            self.is_owing = True

    def _give(self, call: Call, charge: Charge, counter: Counter, now: float, is_owed: bool) -> None:
        # Nobody knows whether units of a crowd were this one's; and what Redis counts is not counted here.
        if counter.key is not None and (call.hit_at is None or charge.limit.split is not None):
            counter.give(now, charge.cost, None if call.hit_at is None else (call.hit_at - self._began_us) / SECOND)
            if is_owed:
                counter.owed = max(0, counter.owed - charge.cost)

    def remember(self, call: Call, states: Sequence[LimitState]) -> None:
        """Remember what Redis says is used, where a share may begin with it."""
        now = time.monotonic()
        for charge, state in zip(call.charges, states, strict=True):
            if (charge.limit.on_store_error or conf.ON_STORE_ERROR) != "local":
                continue
            if not heartbeat.task.is_running:
                heartbeat.start()
            self._said.put((call.prefix, charge.digest, charge.limit.key_part), (state.used, now))

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
    retry = counter.retry_after(now, max(charge.cost, 1))
    longest = call.max_wait_us_of(charge.limit)
    if retry and charge.limit.wants_more and call.max_wait_us is not None and charge.limit.align is None:
        retry = 0.0  # Whoever says how long to wait does so in a queue of any length.
    if retry == 0.0 and charge.limit.algorithm == "leaky_bucket" and longest >= 0:
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
