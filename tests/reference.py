"""What each algorithm promises, as plain and exact Python: the reference that the Lua program is
held against.

Times are integer microseconds. `ask` returns the earliest moment a cost could go (None: never) and
the moment from which it would be let in; `take` and `punish` return the moment from which the units
count, by which `give` finds them; the rest does what its name says. Written from the design's
words, not from the Lua code.

A refund returns units where they still count. A bucket remembers only so many hits, and where it
has to put two together it goes by the later of them: `MOST_HITS` and `MOST_HOLES` say how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_ratelimit_lua.limits.ban import Ban
from django_ratelimit_lua.limits.calendar import PERIODS
from django_ratelimit_lua.limits.limit import Limit

SET_BACK = 60_000_000
"""Microseconds: a clock that was set back by more takes what is counted along."""
MOST_HITS, KEPT_HITS = 16, 7
MOST_HOLES = 16


@dataclass
class Bans:
    """The bans of one client under one limit, and its offences, as moments. Without a ban, `until`
    is 0.
    """

    seen: int = 0
    until: int = 0
    count: int = 0
    times: int = 0
    offences: tuple[int, ...] = ()
    is_new = False

    def edit(self, limit: Limit) -> None:
        assert limit.ban is not None
        self.terms = limit.ban

    def follow(self, now: int) -> None:
        """Move all moments if the clock was set back."""
        back = self.seen - now
        if back > SET_BACK:
            self.seen, self.until = now, max(0, self.until - back)
            self.offences = tuple(moment - back for moment in self.offences)
        self.is_new = False

    def length(self, times: int) -> int:
        """Return the length of a ban after so many."""
        lengths = self.terms.lengths_us
        return lengths[times] if times < len(lengths) else lengths[-1]

    def clock(self, now: int) -> int:
        return max(now, self.seen)

    def banned(self, now: int) -> int | None:
        return self.until if self.until > self.clock(now) else None

    def remembered(self, now: int) -> int:
        """Return the number of bans, as far as it is not forgotten."""
        return self.times if self.clock(now) < self.until + self.terms.lengths_us[-1] else 0

    def counting(self, now: int) -> tuple[int, ...]:
        return tuple(
            moment for moment in self.offences if moment + self.terms.window_us > self.clock(now)
        )

    def write(self, now: int) -> None:
        """Store the time as well, unless nothing is left to store."""
        time = self.clock(now)
        kept = [self.until, self.until + self.terms.lengths_us[-1] if self.times else 0]
        kept += [moment + self.terms.window_us for moment in self.offences]
        if max(kept) <= time:
            self.__init__()  # type: ignore[misc]
        else:
            self.seen = time

    def offend(self, now: int) -> None:
        time = self.clock(now)
        if self.banned(now) is not None:
            return
        self.times = self.remembered(now)
        self.offences = (*self.counting(now), time)
        if len(self.offences) >= self.terms.after:
            self.count, self.until = len(self.offences), time + self.length(self.times)
            self.offences, self.is_new = (), True
            self.times += 1
        self.write(now)

    def begin(self, now: int, length: int) -> None:
        self.times = self.remembered(now)
        if not length:
            length, self.times = self.length(self.times), self.times + 1
        self.until, self.count = self.clock(now) + length, 0
        self.offences, self.is_new = (), True
        self.write(now)

    def lift(self, now: int, forgets: bool) -> None:
        self.times = self.remembered(now)
        if self.banned(now) is not None:
            self.until = self.clock(now)
        self.offences = ()
        if forgets:
            self.until = self.times = 0
        self.write(now)

    def report(self, now: int) -> Ban:
        if (until := self.banned(now)) is not None:
            return Ban(until, self.count, self.remembered(now), self.is_new)
        return Ban(0, len(self.counting(now)), self.remembered(now))


class Reference:
    """What all share: a clock that never goes back, and the options that are not the
    algorithm's."""

    bans: Bans | None = None

    def __init__(self, limit: Limit) -> None:
        self.seen = 0
        self.edit(limit)

    def edit(self, limit: Limit) -> None:
        if limit.ban is not None:
            self.bans = self.bans or Bans()
            self.bans.edit(limit)
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


@dataclass
class Hit:
    """Units that were taken together, and the moment that they go."""

    moment: int
    units: int


@dataclass
class Past:
    """Hits that are given back as if all had come with the last of them; and when nothing will be
    owed of them.
    """

    first: int
    last: int
    units: int
    due: Fraction


class TokenBucket(Reference):
    """Holds `burst` tokens, refilled at size / period. Kept as what was owed at the last write, and
    under what; and for what is given back, the hits since it was last full, in the order in which
    they were taken.
    """

    written = Fraction(0)
    under: object = None

    def __init__(self, limit: Limit) -> None:
        self.hits: list[Hit] = []
        self.past: Past | None = None
        self.is_open = False
        """Whether the latest hit was the latest write: another at its moment is the same one."""
        super().__init__(limit)

    def shift(self, back: int) -> None:
        super().shift(back)
        for hit in self.hits:
            hit.moment -= back
        if self.past:
            past = self.past
            self.past = Past(past.first - back, past.last - back, past.units, past.due - back)

    def capacity(self) -> int:
        return 0 if self.size == 0 else self.limit.burst or self.size

    def rate(self) -> Fraction:
        return Fraction(self.size, self.period)

    def is_edited(self) -> bool:
        return self.under not in (None, (self.rate(), self.capacity()))

    def owed(self) -> Fraction:
        """At the last write; after an edit in whole tokens, up to a full burst."""
        if not self.is_edited():
            return self.written
        return Fraction(min(math.ceil(self.written), self.capacity()))

    def debt(self, now: int) -> Fraction:
        """Tokens missing now."""
        return max(Fraction(0), self.owed() - self.rate() * (self.clock(now) - self.seen))

    def due(self, now: int) -> Fraction:
        """When nothing will be owed any more."""
        return self.clock(now) + (self.debt(now) / self.rate() if self.size else 0)

    def remember(self, now: int) -> None:
        """Forget the hits of a bucket that is full again; those before an edit are what is owed of
        them.
        """
        if not self.debt(now):
            self.hits, self.past, self.is_open = [], None, False
        elif self.is_edited():
            moments = [hit.moment for hit in self.hits] + ([self.past.last] if self.past else [])
            units = sum(hit.units for hit in self.hits) + (self.past.units if self.past else 0)
            due = self.seen + int(self.owed()) / self.rate()
            self.past = Past(self.first(), max(self.seen, *moments), units, due)
            self.hits, self.is_open = [], False

    def first(self) -> int:
        return min([hit.moment for hit in self.hits] + ([self.past.first] if self.past else []))

    def owes(self, now: int, tokens: Fraction) -> None:
        if tokens <= 0:
            self.hits, self.past, self.is_open = [], None, False
        self.written, self.under = max(tokens, Fraction(0)), (self.rate(), self.capacity())
        if tokens <= 0:
            self.under = None
        self.wrote(now, idle=tokens <= 0)

    def earliest(self, now: int, cost: int) -> int:
        missing = self.debt(now) + cost - self.capacity()
        return self.clock(now) + (math.ceil(missing / self.rate()) if missing > 0 else 0)

    def note(self, now: int, moment: int, cost: int) -> None:
        self.remember(now)
        if self.is_open and self.hits[-1].moment == moment:
            self.hits[-1].units += cost
        else:
            if len(self.hits) >= MOST_HITS:
                self.fold(now)
            self.hits.append(Hit(moment, cost))
        self.is_open = moment == self.clock(now)

    def fold(self, now: int) -> None:
        """The earliest become the past, but what is still to go (and what was taken after that)
        becomes one hit.
        """
        folded = len(self.hits) - KEPT_HITS
        past = self.past or Past(self.first(), 0, 0, Fraction(0))
        past.first = min(past.first, *(hit.moment for hit in self.hits[:folded]))
        ahead: list[Hit] = []
        for hit in self.hits[:folded]:
            if ahead or hit.moment > self.clock(now):
                ahead.append(hit)
            else:
                past.last, past.units = max(past.last, hit.moment), past.units + hit.units
                past.due = max(past.due, hit.moment) + hit.units / self.rate()
        del self.hits[:folded]
        if ahead:
            self.hits.insert(
                0, Hit(max(hit.moment for hit in ahead), sum(hit.units for hit in ahead))
            )
        self.past = past

    def take(self, now: int, at: int, cost: int) -> int:
        # What is owed at the moment it goes, told as of the clock of this write.
        moment = max(at, self.clock(now))
        self.note(now, moment, cost)
        until = self.rate() * (moment - self.clock(now))
        self.owes(now, max(self.debt(now) - until, Fraction(0)) + cost + until)
        return moment

    def give(self, now: int, cost: int, hit_at: int | None = None) -> None:
        debt = self.debt(now)
        self.remember(now)
        self.is_open = False
        left = debt if hit_at is not None else debt - cost
        first = self.first() if self.hits or self.past else 0
        past = self.past or Past(first, 0, 0, Fraction(0))
        before, held = past.units, [past, *self.hits]
        if hit_at is None:
            held.reverse()
        else:
            held = self.owners(held, hit_at) if hit_at >= first else []
        for hit in held:
            back = min(cost, hit.units)
            hit.units, cost = hit.units - back, cost - back
        if not past.units:
            past.due = Fraction(0)
        elif past.units < before:
            past.due = min(past.due, past.last + past.units / self.rate())
        self.hits, due = [hit for hit in self.hits if hit.units], past.due
        for hit in self.hits:
            due = max(due, hit.moment) + hit.units / self.rate()
        if hit_at is not None:
            left = min(debt, (due - self.clock(now)) * self.rate())
        self.owes(now, left if past.units or self.hits else Fraction(0))

    def owners(self, held: list[Past | Hit], hit_at: int) -> list[Past | Hit]:
        """Who may have the units of a hit, one after the other: the past (the first of them), if
        that goes further; what is of that moment, the latest first; and where hits have become one,
        what goes later (all, for what may have been of the past), the least moment first.
        """
        moments = [hit.last if isinstance(hit, Past) else hit.moment for hit in held]

        def rank(place: int) -> tuple[bool, bool, int, int]:
            return (
                place > 0 or moments[0] <= hit_at,
                moments[place] != hit_at,
                moments[place],
                -place,
            )

        least = hit_at if self.past is None or hit_at > moments[0] else 0
        places = [
            place
            for place, moment in enumerate(moments)
            if moment == hit_at or (self.past and moment > least)
        ]
        return [held[place] for place in sorted(places, key=rank)]

    def remaining(self, now: int) -> int:
        return max(0, math.floor(self.capacity() - self.debt(now)))

    def idle(self, now: int) -> int:
        return self.clock(now) + math.ceil(self.debt(now) / self.rate()) if self.debt(now) else now


class LeakyBucket(TokenBucket):
    """A queue: everyone leaves when all before have been served. A turn given back with others
    behind it is a hole.
    """

    def __init__(self, limit: Limit) -> None:
        self.holes: list[tuple[int, int]] = []
        super().__init__(limit)

    def shift(self, back: int) -> None:
        super().shift(back)
        self.holes = [(start - back, end - back) for start, end in self.holes]

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

    def note(self, now: int, moment: int, cost: int) -> None:
        pass

    def remember(self, now: int) -> None:
        pass

    def current_holes(self, now: int) -> list[tuple[int, int]]:
        return self.holes if self.debt(now) and not self.is_edited() else []

    def hole(self, now: int, start: int, end: int) -> None:
        holes, self.holes = self.holes, []
        for hole in holes:
            if start <= hole[1] <= start + 1 and hole[1] > self.clock(now):
                start = hole[0]
            elif hole[0] <= end <= hole[0] + 1:
                end = hole[1]
            elif hole[1] > self.clock(now):
                self.holes.append(hole)
        if len(self.holes) < MOST_HOLES:
            self.holes.append((start, end))

    def owes(self, now: int, tokens: Fraction) -> None:
        self.holes = self.holes if tokens > 0 else []
        super().owes(now, tokens)

    def take(self, now: int, at: int, cost: int) -> int:
        self.holes = self.current_holes(now)
        idle, at = self.idle(now), max(at, self.clock(now))
        if at <= idle:
            # Turns are counted from exact moments; only the one that leaves is told a whole
            # microsecond.
            self.owes(now, self.debt(now) + cost)
            return max(idle, at)
        if at > self.clock(now):
            self.hole(now, max(idle, self.clock(now)), at)
        holes = self.holes
        super().take(now, at, cost)
        self.holes = holes
        return at

    def give(self, now: int, cost: int, hit_at: int | None = None) -> None:
        self.holes, idle, clock = self.current_holes(now), self.idle(now), self.clock(now)
        if hit_at is not None and math.ceil(self.due(now) - cost / self.rate()) != hit_at:
            span = math.ceil(cost / self.rate())
            if 1 / self.rate() >= 2 and clock < hit_at + span < idle:
                self.hole(now, hit_at, hit_at + span)
            self.owes(now, self.debt(now))
            return
        self.owes(now, self.debt(now) - cost)
        while True:
            idle = self.idle(now)
            met = next((hole for hole in self.holes if hole[0] < idle <= hole[1]), None)
            if met is None:
                return
            self.holes.remove(met)
            self.owes(now, (max(met[0], clock) - clock) * self.rate())


class FixedWindow(Reference):
    """A count per window, anchored at its first hit, at multiples of the period, or where a
    calendar says.
    """

    def __init__(self, limit: Limit) -> None:
        # Start and count of the window; hits before `since` are none of its own.
        self.window: tuple[int, int] | None = None
        self.since = 0
        super().__init__(limit)

    def shift(self, back: int) -> None:
        if self.limit.align in PERIODS:
            return
        super().shift(back)
        self.since -= back
        if self.window:
            self.window = (self.window[0] - back, self.window[1])

    def aligned(self, moment: int) -> tuple[int, int] | None:
        """The window that holds a moment, if it does not start with its own first hit."""
        if self.limit.align is None:
            return None
        if self.limit.align == "clock":
            return moment - moment % self.period, moment - moment % self.period + self.period
        return calendar_window(self.limit.align, self.limit.time_zone, moment)

    def end(self, start: int) -> int:
        window = self.aligned(start)
        return start + self.period if window is None else window[1]

    def current(self, now: int) -> tuple[int, int] | None:
        """The window that counts now."""
        if self.window is None:
            return None
        clock, (start, count) = self.clock(now), self.window
        aligned = self.aligned(clock)
        if aligned is None:
            return self.window if start + self.period > clock else None
        # Hits since this window opened belong to it.
        is_live = start >= aligned[0] or self.seen >= aligned[0]
        return (aligned[0], count) if is_live else None

    def earliest(self, now: int, cost: int) -> int:
        window = self.current(now)
        if window is None or window[1] + cost <= self.size:
            return self.clock(now)
        return self.end(window[0])

    def take(self, now: int, at: int, cost: int) -> int:
        clock, window = self.clock(now), self.current(now)
        if window is None:
            aligned = self.aligned(clock)
            window = (clock if aligned is None else aligned[0], 0)
            self.since = window[0]
        self.window = (window[0], window[1] + cost)
        self.wrote(now)
        return clock

    def punish(self, now: int, cost: int) -> int:
        return self.take(now, now, cost)

    def give(self, now: int, cost: int, hit_at: int | None = None) -> None:
        window = self.current(now)
        if window is not None and (hit_at is None or self.since <= hit_at < self.end(window[0])):
            window = (window[0], window[1] - min(cost, window[1]))
        self.window = window if window and window[1] else None
        self.wrote(now, idle=self.window is None)

    def remaining(self, now: int) -> int:
        window = self.current(now)
        return self.size if window is None else max(0, self.size - window[1])

    def idle(self, now: int) -> int:
        window = self.current(now)
        return now if window is None else self.end(window[0])


def calendar_window(align: str, time_zone: str, moment: int) -> tuple[int, int]:
    """The day, week or month that holds a moment: searched second by second around local
    midnights."""
    zone = ZoneInfo(time_zone)
    day = datetime.fromtimestamp(moment // 1_000_000, UTC).astimezone(zone).date()

    def starts(day: date) -> bool:
        return align == "day" or (day.weekday() == 0 if align == "week" else day.day == 1)

    def midnight(day: date) -> int:
        return round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * 1_000_000

    first = day
    while not starts(first):
        first -= timedelta(days=1)
    after = day + timedelta(days=1)
    while not starts(after):
        after += timedelta(days=1)
    return midnight(first), midnight(after)


class SlidingLog(Reference):
    """Exact: a unit counts for one period from its moment. Kept as (moment, units)."""

    def __init__(self, limit: Limit) -> None:
        self.units: list[tuple[int, int]] = []
        super().__init__(limit)

    def shift(self, back: int) -> None:
        super().shift(back)
        self.units = [(at - back, count) for at, count in self.units]

    def live(self, moment: int) -> list[tuple[int, int]]:
        return [unit for unit in self.units if unit[0] + self.period > moment]

    def used(self, moment: int) -> int:
        return sum(count for _, count in self.live(moment))

    def keep(self, now: int, units: list[tuple[int, int]]) -> None:
        self.units = units
        self.units = self.live(self.clock(now))
        self.seen = self.units[-1][0] if self.units else 0

    def earliest(self, now: int, cost: int) -> int:
        moment = self.clock(now)
        candidates = [at + self.period for at, _ in self.units]
        candidates = [moment] + [at for at in candidates if at > moment]
        return next(at for at in candidates if self.used(at) + cost <= self.size)

    def take(self, now: int, at: int, cost: int) -> int:
        clock = self.clock(now)
        self.keep(now, [*self.units, (clock, cost)])
        return clock

    def punish(self, now: int, cost: int) -> int:
        moment = self.take(now, now, min(cost, self.size))
        excess = self.used(self.clock(now)) - self.size
        while excess > 0:
            at, count = self.units.pop(0)
            if count > excess:
                self.units.insert(0, (at, count - excess))
            excess -= count
        return moment

    def give(self, now: int, cost: int, hit_at: int | None = None) -> None:
        units = []
        # The latest first.
        for at, count in self.live(self.clock(now))[::-1]:
            back = min(cost, count) if hit_at in (None, at) else 0
            cost -= back
            units += [(at, count - back)] if count > back else []
        self.keep(now, units[::-1])

    def remaining(self, now: int) -> int:
        return max(0, self.size - self.used(self.clock(now)))

    def idle(self, now: int) -> int:
        live = self.live(self.clock(now))
        return live[-1][0] + self.period if live else now


class SlidingWindow(Reference):
    """Counted in segments: the units of a segment count until its last hit is a period old. Kept as
    (last hit, units) of each segment, which an edit leaves as they are. Hits before `since` belong
    to none of them.
    """

    def __init__(self, limit: Limit) -> None:
        self.segments: list[tuple[int, int]] = []
        self.since = 0
        super().__init__(limit)

    def length(self) -> int:
        return self.period // (self.limit.segments or 10)

    def shift(self, back: int) -> None:
        super().shift(back)
        self.since -= back
        self.segments = [(last - back, units) for last, units in self.segments]

    def live(self, moment: int) -> list[tuple[int, int]]:
        return [(last, units) for last, units in self.segments if last + self.period > moment]

    def used(self, moment: int) -> int:
        return sum(units for _, units in self.live(moment))

    def keep(self, now: int, segments: list[tuple[int, int]]) -> None:
        gone = [last + 1 for last, _ in self.segments if last + self.period <= self.clock(now)]
        self.since = max([self.since, *gone])
        self.segments = segments
        self.wrote(now, idle=not segments)

    def earliest(self, now: int, cost: int) -> int:
        moment = self.clock(now)
        candidates = [moment] + [last + self.period for last, _ in self.live(moment)]
        return next(at for at in sorted(candidates) if self.used(at) + cost <= self.size)

    def take(self, now: int, at: int, cost: int) -> int:
        at = self.clock(now)
        segments = self.live(at)
        if not segments:
            self.segments, self.since = [], at
        if segments and segments[-1][0] // self.length() == at // self.length():
            segments[-1] = (at, segments[-1][1] + cost)
        else:
            segments.append((at, cost))
        self.keep(now, segments)
        return at

    def punish(self, now: int, cost: int) -> int:
        return self.take(now, now, cost)

    def give(self, now: int, cost: int, hit_at: int | None = None) -> None:
        segments = self.live(self.clock(now))
        self.keep(now, segments)
        places = list(range(len(segments)))[::-1]
        if hit_at is not None:
            places = [place for place in places if self.since <= hit_at <= segments[place][0]][-1:]
        for place in places:
            last, units = segments[place]
            back = min(cost, units)
            cost -= back
            segments[place] = (last, units - back)
        self.keep(now, [segment for segment in segments if segment[1]])

    def remaining(self, now: int) -> int:
        return max(0, self.size - self.used(self.clock(now)))

    def idle(self, now: int) -> int:
        live = self.live(self.clock(now))
        return live[-1][0] + self.period if live else now


REFERENCES = {
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
}


class Answer(NamedTuple):
    """What one limit is expected to say; times in microseconds, `retry` None for never, `counted` 0
    for not.
    """

    allowed: bool
    remaining: int
    retry: int | None
    reset: int
    wait: int
    counted: int
    ban: Ban | None = None


def decide(
    limits: list[Reference],
    operation: str,
    now: int,
    cost: int,
    partial: bool = False,
    hit_at: int | None = None,
    debt: bool = False,
) -> tuple[bool, int, list[Answer]]:
    """One call: whether it is allowed, the units granted, and each limit's answer. With `debt`,
    token buckets that owe no more than they hold grant any cost.
    """
    has_bans = operation not in ("refund", "charge")
    for limit in limits:
        limit.follow(now)
        if has_bans and limit.bans:
            limit.bans.follow(now)
            if operation == "ban":
                limit.bans.begin(now, cost)
            elif operation == "unban":
                limit.bans.lift(now, cost == 1)
    if operation in ("ban", "unban"):
        operation, cost = "peek", 0
    bans = {limit: limit.bans for limit in limits if limit.bans and has_bans and limit.limit.ban}
    enforced = [limit for limit in limits if limit.limit.mode == "enforce"]
    held = {limit for limit, ban in bans.items() if ban.banned(now) is not None}
    is_banned = any(limit in enforced for limit in held)

    def ask(limit: Reference, cost: int) -> tuple[int | None, int | None]:
        may_owe = debt and type(limit) is TokenBucket and limit.capacity() > 0
        at, accepts = limit.ask(now, 0 if may_owe else cost)
        until = bans[limit].banned(now) if limit in bans else None
        return (
            (at, accepts)
            if until is None or at is None
            else (max(at, until), max(accepts or 0, until))
        )

    if partial and enforced and operation != "refund":
        rooms = [
            limit.remaining(now) if (ask(limit, 1)[1] or now + 1) <= now else 0
            for limit in enforced
        ]
        cost = max(1, min([cost, *rooms]))
    asked = [ask(limit, cost or 1) for limit in limits]
    fine = [accepts is not None and accepts <= now for _, accepts in asked]
    allowed = operation == "refund" or all(
        ok for ok, limit in zip(fine, limits, strict=True) if limit in enforced
    )
    if operation == "hit" and cost:
        for limit, ok in zip(limits, fine, strict=True):
            if limit in bans and not is_banned and not ok:
                bans[limit].offend(now)
        asked = [ask(limit, cost) for limit in limits]
    departs = max(
        [now]
        + [at for (at, _), limit in zip(asked, limits, strict=True) if limit in enforced and at]
    )
    answers = []
    for limit, (at, accepts), ok in zip(limits, asked, fine, strict=True):
        counted = 0
        if operation == "refund":
            limit.give(now, cost, hit_at)
            at, accepts, ok = now, now, True
        elif operation == "hit" and cost and allowed and ok:
            counted = limit.take(now, max(at or 0, departs), cost)
        elif (
            operation == "hit"
            and cost
            and limit.limit.count_denied
            and not is_banned
            and limit not in held
        ):
            counted = limit.punish(now, cost)
            at, accepts = ask(limit, cost)
        retry = None if accepts is None else max(0, accepts - now)
        ban = bans[limit].report(now) if limit in bans else None
        remaining, idle = limit.remaining(now), limit.idle(now)
        if ban is not None and ban.until:
            remaining, idle = 0, max(idle, ban.until)
        answers.append(
            Answer(
                ok,
                remaining,
                retry,
                max(0, idle - now),
                0 if at is None else at - now,
                counted,
                ban,
            )
        )
    return allowed, cost if allowed and operation == "hit" else 0, answers
