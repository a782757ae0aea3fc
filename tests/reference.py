"""What each algorithm promises, as plain and exact Python: the reference that the Lua program is held against.

Times are integer microseconds. `ask` returns the earliest moment a cost could go (None: never) and the moment from
which it would be let in; the rest does what its name says. Written from the design's words, not from the Lua code.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from django_ratelimit_lua.limits.limit import Limit

SET_BACK = 60_000_000
"""Microseconds: a clock that was set back by more takes what is counted along."""


class Reference:
    """What all share: a clock that never goes back, and the options that are not the algorithm's."""

    def __init__(self, limit: Limit) -> None:
        self.seen = 0
        self.edit(limit)

    def edit(self, limit: Limit) -> None:
        self.limit = limit
        self.size, self.period = limit.rate.limit, limit.rate.period_us

    def clock(self, now: int) -> int:
        return max(now, self.seen)

    def wrote(self, now: int, idle: bool = False) -> None:
        """A state that is as good as none is forgotten, and the clock with it."""
        self.seen = 0 if idle else self.clock(now)

    def follow(self, now: int) -> None:
        """Where the clock was set back, go on from there with what is counted."""
        if self.seen - now > SET_BACK:
            self.shift(self.seen - now)

    def shift(self, back: int) -> None:
        self.seen -= back

    def ask(self, now: int, cost: int) -> tuple[int | None, int | None]:
        if cost > self.capacity():
            return None, None
        at = self.earliest(now, cost)
        at = now if at <= self.clock(now) else at
        return at, max(now, at - self.limit.max_wait_us)

    def capacity(self) -> int:
        return self.size


class TokenBucket(Reference):
    """Holds `burst` tokens, refilled at size / period. Kept as what was owed at the last write, and under what."""

    written = Fraction(0)
    under: object = None

    def capacity(self) -> int:
        return 0 if self.size == 0 else self.limit.burst or self.size

    def rate(self) -> Fraction:
        return Fraction(self.size, self.period)

    def owed(self) -> Fraction:
        """At the last write; after an edit in whole tokens, up to a full burst."""
        if self.under == (self.rate(), self.capacity()):
            return self.written
        return Fraction(min(math.ceil(self.written), self.capacity()))

    def debt(self, now: int) -> Fraction:
        """Tokens missing now."""
        return max(Fraction(0), self.owed() - self.rate() * (self.clock(now) - self.seen))

    def owes(self, now: int, tokens: Fraction) -> None:
        self.written, self.under = tokens, (self.rate(), self.capacity())
        self.wrote(now, idle=tokens <= 0)

    def earliest(self, now: int, cost: int) -> int:
        missing = self.debt(now) + cost - self.capacity()
        return self.clock(now) + (math.ceil(missing / self.rate()) if missing > 0 else 0)

    def take(self, now: int, at: int, cost: int) -> None:
        # What is owed at the moment it goes, told as of the clock of this write.
        until = self.rate() * (max(at, self.clock(now)) - self.clock(now))
        self.owes(now, max(self.debt(now) - until, Fraction(0)) + cost + until)

    def punish(self, now: int, cost: int) -> None:
        self.owes(now, min(self.debt(now) + cost, Fraction(self.capacity())))

    def give(self, now: int, cost: int) -> None:
        self.owes(now, max(self.debt(now) - cost, Fraction(0)))

    def remaining(self, now: int) -> int:
        return max(0, math.floor(self.capacity() - self.debt(now)))

    def idle(self, now: int) -> int:
        return self.clock(now) + math.ceil(self.debt(now) / self.rate()) if self.debt(now) else now


class LeakyBucket(TokenBucket):
    """A queue: everyone leaves when all before have been served."""

    def capacity(self) -> int:
        if self.size == 0:
            return 0
        return 1 + (self.size - 1 if self.limit.queue is None else self.limit.queue)

    def ask(self, now: int, cost: int) -> tuple[int | None, int | None]:
        if cost > self.capacity():
            return None, None
        fits = self.earliest(now, cost)
        fits = now if fits <= self.clock(now) else fits
        at = self.idle(now)
        at = now if at <= now else at
        if self.limit.max_wait_us >= 0:
            fits = max(fits, at - self.limit.max_wait_us)
        return at, fits

    def take(self, now: int, at: int, cost: int) -> None:
        if at <= self.idle(now):
            # Turns are counted from exact moments; only the one that leaves is told a whole microsecond.
            self.owes(now, self.debt(now) + cost)
        else:
            super().take(now, at, cost)


class FixedWindow(Reference):
    """A count per window, anchored at its first hit or at multiples of the period."""

    start, count = 0, 0

    def shift(self, back: int) -> None:
        super().shift(back)
        self.start -= back

    def aligned(self, moment: int) -> int | None:
        return moment - moment % self.period if self.limit.align == "clock" else None

    def current(self, now: int) -> tuple[int, int]:
        """Start and count of the window that counts now (a later one, if that is the last one reserved in)."""
        clock = self.clock(now)
        opens = self.aligned(clock)
        if self.start > clock:
            return self.start, self.count
        if self.count == 0:
            return (clock if opens is None else opens), 0
        if opens is not None:
            return opens, self.count if max(self.seen, self.start) >= opens else 0
        return (self.start, self.count) if clock < self.start + self.period else (clock, 0)

    def end(self, start: int) -> int:
        return start + self.period if self.limit.align is None else start - start % self.period + self.period

    def earliest(self, now: int, cost: int) -> int:
        start, count = self.current(now)
        if count + cost > self.size:
            return self.end(start)
        return max(start, self.clock(now))

    def take(self, now: int, at: int, cost: int) -> None:
        at = max(at, self.clock(now))
        start, count = self.current(now)
        if at >= self.end(start) or (count == 0 and at >= start):
            opens = self.aligned(at)
            start, count = (at if opens is None else opens), 0
        self.start, self.count = start, count + cost
        self.wrote(now)

    def punish(self, now: int, cost: int) -> None:
        self.take(now, now, cost)

    def give(self, now: int, cost: int) -> None:
        self.start, count = self.current(now)
        self.count = max(0, count - cost)
        idle = self.count == 0 and self.start <= self.clock(now)
        self.start = 0 if idle else self.start
        self.wrote(now, idle)

    def remaining(self, now: int) -> int:
        start, count = self.current(now)
        return 0 if start > self.clock(now) else max(0, self.size - count)

    def idle(self, now: int) -> int:
        start, count = self.current(now)
        return self.end(start) if count else start if start > self.clock(now) else now


class SlidingLog(Reference):
    """Exact: a unit counts for one period from the moment it goes. Kept as (moment, units, clock of the write)."""

    def __init__(self, limit: Limit) -> None:
        self.units: list[tuple[int, int, int]] = []
        super().__init__(limit)

    def shift(self, back: int) -> None:
        super().shift(back)
        self.units = [(at - back, count, clock - back) for at, count, clock in self.units]

    def live(self, moment: int) -> list[tuple[int, int, int]]:
        return [unit for unit in self.units if unit[0] + self.period > moment]

    def used(self, moment: int) -> int:
        return sum(count for _, count, _ in self.live(moment))

    def last(self) -> int:
        return self.units[-1][0] if self.units else 0

    def keep(self, now: int, units: list[tuple[int, int, int]]) -> None:
        clock = self.clock(now)
        self.units = units
        self.units = self.live(clock)
        self.seen = self.units[-1][2] if self.units else 0

    def earliest(self, now: int, cost: int) -> int:
        moment = max(self.clock(now), self.last())
        candidates = [moment] + [at + self.period for at, _, _ in self.units if at + self.period > moment]
        return next(at for at in candidates if self.used(at) + cost <= self.size)

    def take(self, now: int, at: int, cost: int) -> None:
        clock = self.clock(now)
        self.keep(now, [*self.units, (max(at, clock, self.last()), cost, clock)])

    def punish(self, now: int, cost: int) -> None:
        self.take(now, now, min(cost, self.size))
        excess = self.used(self.clock(now)) - self.size
        while excess > 0:
            at, count, clock = self.units.pop(0)
            if count > excess:
                self.units.insert(0, (at, count - excess, clock))
            excess -= count

    def give(self, now: int, cost: int) -> None:
        units = self.live(self.clock(now))
        while units and cost > 0:
            at, count, clock = units.pop()
            if count > cost:
                units.append((at, count - cost, clock))
            cost -= count
        self.keep(now, units)

    def remaining(self, now: int) -> int:
        return 0 if self.last() > self.clock(now) else max(0, self.size - self.used(self.clock(now)))

    def idle(self, now: int) -> int:
        return self.last() + self.period if self.live(self.clock(now)) else now


class SlidingWindow(Reference):
    """Counted in segments: a unit counts until its whole segment is a period old. Kept as {segment's end: units}."""

    last = 0

    def __init__(self, limit: Limit) -> None:
        self.segments: dict[int, int] = {}
        super().__init__(limit)

    def shift(self, back: int) -> None:
        back -= back % (self.period // (self.limit.segments or 10))
        super().shift(back)
        self.last -= back
        self.segments = {end - back: units for end, units in self.segments.items()}

    def end(self, at: int) -> int:
        length = self.period // (self.limit.segments or 10)
        return at - at % length + length

    def live(self, moment: int) -> dict[int, int]:
        # Nothing went after the last moment, so no segment need end later than the one that would hold it now.
        latest = self.end(max(self.last, self.seen))
        segments: dict[int, int] = {}
        for end, units in self.segments.items():
            if min(end, latest) + self.period > moment:
                segments[min(end, latest)] = segments.get(min(end, latest), 0) + units
        return segments

    def used(self, moment: int) -> int:
        return sum(self.live(moment).values())

    def keep(self, now: int, segments: dict[int, int], last: int) -> None:
        self.segments, self.last = segments, last
        self.wrote(now, idle=not segments)
        if not segments:
            self.last = 0

    def earliest(self, now: int, cost: int) -> int:
        moment = max(self.clock(now), self.last)
        candidates = [moment] + [end + self.period for end in self.live(moment)]
        return next(at for at in sorted(candidates) if self.used(at) + cost <= self.size)

    def take(self, now: int, at: int, cost: int) -> None:
        at = max(at, self.clock(now), self.last)
        segments = self.live(self.clock(now))
        segments[self.end(at)] = segments.get(self.end(at), 0) + cost
        self.keep(now, segments, at)

    def punish(self, now: int, cost: int) -> None:
        self.take(now, now, cost)

    def give(self, now: int, cost: int) -> None:
        segments, last = self.live(self.clock(now)), self.last
        while segments and cost > 0:
            end, units = max(segments.items())
            segments[end] = units - cost
            cost -= units
            if segments[end] <= 0:
                del segments[end]
                last = min(last, max(segments, default=0))
        self.keep(now, segments, last)

    def remaining(self, now: int) -> int:
        return 0 if self.last > self.clock(now) else max(0, self.size - self.used(self.clock(now)))

    def idle(self, now: int) -> int:
        live = self.live(self.clock(now))
        return max(live) + self.period if live else now


REFERENCES = {
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
}


class Answer(NamedTuple):
    """What one limit is expected to say; times in microseconds, `retry` None for never."""

    allowed: bool
    remaining: int
    retry: int | None
    reset: int
    wait: int


def decide(
    limits: list[Reference], operation: str, now: int, cost: int, partial: bool = False
) -> tuple[bool, int, list[Answer]]:
    """One call: whether it is allowed, the units granted, and each limit's answer."""
    for limit in limits:
        limit.follow(now)
    enforced = [limit for limit in limits if limit.limit.mode == "enforce"]
    if partial and enforced and operation != "refund":
        rooms = [limit.remaining(now) if (limit.ask(now, 1)[1] or now + 1) <= now else 0 for limit in enforced]
        cost = max(1, min([cost, *rooms]))
    asked = [limit.ask(now, cost or 1) for limit in limits]
    fine = [accepts is not None and accepts <= now for _, accepts in asked]
    allowed = operation == "refund" or all(ok for ok, limit in zip(fine, limits, strict=True) if limit in enforced)
    departs = max([now] + [at for (at, _), limit in zip(asked, limits, strict=True) if limit in enforced and at])
    answers = []
    for limit, (at, accepts), ok in zip(limits, asked, fine, strict=True):
        if operation == "refund":
            limit.give(now, cost)
            at, accepts, ok = now, now, True
        elif operation == "hit" and cost and allowed and ok:
            limit.take(now, max(at or 0, departs), cost)
        elif operation == "hit" and cost and limit.limit.count_denied:
            limit.punish(now, cost)
            at, accepts = limit.ask(now, cost)
        retry = None if accepts is None else max(0, accepts - now)
        reset = max(0, limit.idle(now) - now)
        answers.append(Answer(ok, limit.remaining(now), retry, reset, 0 if at is None else at - now))
    return allowed, cost if allowed and operation == "hit" else 0, answers
