"""The exact promise of each algorithm in plain Python, to compare the Lua program with.

Times are integer microseconds. A model knows one limit of one client.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_ratelimit_lua.limits.ban import Ban, BanTerms
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import PERIODS

MINUTE = 60_000_000
"""Hits that lie further ahead of a clock that was set back are forgotten."""


class Model:
    """One limit of one client."""

    bans: Bans | None = None

    def __init__(self, limit: Limit) -> None:
        self.edit(limit)

    def edit(self, limit: Limit) -> None:
        """Put other numbers in force. What was used stays used."""
        if limit.ban is not None:
            self.bans = self.bans or Bans(limit.ban)
            self.bans.terms = limit.ban
        self.limit = limit
        self.capacity = limit.capacity
        self.period = limit.rate.period_us

    def meet(self, now: int) -> None:
        """Notice whether the clock was set back."""

    def used(self, now: int) -> int:
        """Return the units that count."""
        raise NotImplementedError

    def free_at(self, now: int) -> int:
        """Return the moment from which no unit counts."""
        raise NotImplementedError

    def fits_at(self, now: int, cost: int) -> int:
        """Return the moment from which a cost fits that is not above the capacity."""
        raise NotImplementedError

    def ask(self, now: int, cost: int) -> tuple[int | None, int]:
        """Return when a hit is accepted (None: never), and when it goes."""
        if cost > self.capacity:
            return None, now
        at = self.fits_at(now, cost)
        return at, at

    def price(self, cost: int, mode: str) -> int:
        """Return the units that have to fit. A cost of 0 asks what a cost of 1 would."""
        return max(cost, 1)

    def take(self, now: int, cost: int, at: int) -> int:
        """Count the units of a hit, and return the moment by which a refund finds them."""
        raise NotImplementedError

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        """Return the units of a hit (None: the latest) that still count."""
        raise NotImplementedError


class TokenBucket(Model):
    """Owes the units that were taken, and pays them at the rate."""

    written = Fraction(0)
    at = 0
    counted_by: Limit | None = None

    @staticmethod
    def rate(limit: Limit) -> Fraction:
        """Return the units that are paid in a microsecond."""
        return Fraction(limit.rate.limit or 1, limit.rate.period_us)

    @staticmethod
    def unit(limit: Limit) -> int:
        """Return the microseconds of a moment."""
        return limit.numbers(0)[-1]

    def moment(self, now: int) -> int:
        """Return the moment of a time, which may be a whole millisecond."""
        return now - now % self.unit(self.limit)

    def later(self, now: int, units: Fraction) -> int:
        """Return the moment at which a number of units has been paid."""
        if units <= 0:
            return now
        unit = self.unit(self.limit)
        return self.moment(now) + math.ceil(units / self.rate(self.limit) / unit) * unit

    def debt(self, now: int) -> Fraction:
        """Return the units owed. After an edit, whole units, at most a full burst."""
        if self.counted_by is None:
            return Fraction(0)
        debt, at = self.written, self.at
        if self.terms(self.counted_by) != self.terms(self.limit):
            debt = Fraction(min(math.ceil(debt), self.capacity))
            at -= at % self.unit(self.limit)
        paid = max(self.moment(now) - at, 0) * self.rate(self.limit)
        return max(debt - paid, Fraction(0))

    def terms(self, limit: Limit) -> tuple[object, ...]:
        return self.rate(limit), limit.capacity, self.unit(limit)

    def price(self, cost: int, mode: str) -> int:
        """With a debt, a bucket only has to owe no more than it holds."""
        return 0 if mode == "debt" and self.capacity else max(cost, 1)

    def owe(self, now: int, debt: Fraction) -> None:
        most = Fraction(2**53 - 1, self.limit.numbers(0)[2])
        self.written, self.at, self.counted_by = min(debt, most), self.moment(now), self.limit

    def meet(self, now: int) -> None:
        if now < self.at:
            self.owe(now, self.debt(now))

    def used(self, now: int) -> int:
        return math.ceil(self.debt(now))

    def free_at(self, now: int) -> int:
        return self.later(now, self.debt(now))

    def fits_at(self, now: int, cost: int) -> int:
        return self.later(now, self.debt(now) + cost - self.capacity)

    def ask(self, now: int, cost: int) -> tuple[int | None, int]:
        if cost > self.capacity:
            return None, now
        at = self.fits_at(now, cost)
        return max(at - self.limit.max_wait_us, now), at

    def take(self, now: int, cost: int, at: int) -> int:
        unit = self.unit(self.limit)
        ahead = math.ceil(Fraction(at - self.moment(now), unit)) * unit if at > now else 0
        self.owe(now, max(self.debt(now), ahead * self.rate(self.limit)) + cost)
        return at

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        self.owe(now, max(self.debt(now) - cost, Fraction(0)))


class LeakyBucket(TokenBucket):
    """A queue: a call goes when all before it have gone."""

    def price(self, cost: int, mode: str) -> int:
        return max(cost, 1)

    def ask(self, now: int, cost: int) -> tuple[int | None, int]:
        if cost > self.capacity:
            return None, now
        turn = self.free_at(now)
        accepts = self.fits_at(now, cost)
        if self.limit.max_wait_us >= 0:
            accepts = max(accepts, turn - self.limit.max_wait_us)
        return accepts, turn

    def take(self, now: int, cost: int, at: int) -> int:
        turn = self.free_at(now)
        if at > turn:
            return super().take(now, cost, at)
        self.owe(now, self.debt(now) + cost)
        return turn

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        left = self.debt(now) - cost
        unit = self.unit(self.limit)
        turn = self.moment(now) + math.ceil(left / self.rate(self.limit) / unit) * unit
        if hit_at is None or hit_at == turn:
            self.owe(now, max(left, Fraction(0)))


class SlidingWindow(Model):
    """Segments of hits, each with the moment of its last hit and its units, oldest first."""

    def __init__(self, limit: Limit) -> None:
        self.segments: list[tuple[int, int]] = []
        super().__init__(limit)

    @property
    def length(self) -> int:
        return self.period // (self.limit.segments or 10)

    def meet(self, now: int) -> None:
        if self.segments and self.segments[-1][0] > now + MINUTE:
            self.segments = []
        self.segments = [(min(last, now), units) for last, units in self.segments]

    def live(self, now: int) -> list[tuple[int, int]]:
        return [segment for segment in self.segments if segment[0] + self.period > now]

    def used(self, now: int) -> int:
        return sum(units for _, units in self.live(now))

    def free_at(self, now: int) -> int:
        return self.live(now)[-1][0] + self.period if self.used(now) else now

    def fits_at(self, now: int, cost: int) -> int:
        ends = [now, *(last + self.period for last, _ in self.live(now))]
        return next(end for end in ends if self.used(end) + cost <= self.capacity)

    def take(self, now: int, cost: int, at: int) -> int:
        self.segments = self.live(now)
        if self.segments and self.segments[-1][0] >= now - now % self.length:
            cost += self.segments.pop()[1]
        self.segments.append((now, cost))
        return now

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        if not self.used(now):
            return
        segments = self.live(now)
        hit_at = min(hit_at or now, segments[-1][0])
        place = next(place for place, (last, _) in enumerate(segments) if last >= hit_at)
        last, units = segments[place]
        if hit_at >= last - last % self.length:
            segments[place] = (last, max(units - cost, 0))
            self.segments = segments


class SlidingLog(Model):
    """The moment of each unit, oldest first."""

    def __init__(self, limit: Limit) -> None:
        self.moments: list[int] = []
        super().__init__(limit)

    def meet(self, now: int) -> None:
        if self.moments and self.moments[-1] > now + MINUTE:
            self.moments = []
        self.moments = [min(moment, now) for moment in self.moments]

    def live(self, now: int) -> list[int]:
        return [moment for moment in self.moments if moment + self.period > now]

    def used(self, now: int) -> int:
        return len(self.live(now))

    def free_at(self, now: int) -> int:
        return self.live(now)[-1] + self.period if self.used(now) else now

    def fits_at(self, now: int, cost: int) -> int:
        ends = [now, *(moment + self.period for moment in self.live(now))]
        return next(end for end in ends if self.used(end) + cost <= self.capacity)

    def take(self, now: int, cost: int, at: int) -> int:
        added = [now] * min(cost, self.capacity)
        self.moments = (self.live(now) + added)[-self.capacity :] if self.capacity else []
        return now

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        hit_at = hit_at or (self.moments[-1] if self.moments else 0)
        for _ in range(min(cost, self.moments.count(hit_at))):
            self.moments.remove(hit_at)


class FixedWindow(Model):
    """The units of one window, and the moments of its first and its last hit."""

    first = last = units = ends = 0

    def meet(self, now: int) -> None:
        if self.last > now + MINUTE:
            self.units = 0
        self.first, self.last = min(self.first, now), min(self.last, now)

    def window(self, now: int) -> tuple[int, int]:
        """Return the start and the end of the window that holds this moment."""
        if self.limit.align in PERIODS:
            return calendar_window(str(self.limit.align), self.limit.time_zone, now)
        if self.limit.align == "clock":
            return now - now % self.period, now - now % self.period + self.period
        if self.units and self.first + self.period > now:
            return self.first, self.first + self.period
        return now, now + self.period

    def used(self, now: int) -> int:
        if self.limit.align is None:
            return self.units if self.first + self.period > now else 0
        return self.units if self.last >= self.window(now)[0] else 0

    def free_at(self, now: int) -> int:
        return self.window(now)[1] if self.used(now) else now

    def fits_at(self, now: int, cost: int) -> int:
        return now if self.used(now) + cost <= self.capacity else self.window(now)[1]

    def take(self, now: int, cost: int, at: int) -> int:
        if not self.used(now):
            self.first, self.units = now, 0
        self.units, self.last = self.units + cost, now
        return now

    def refund(self, now: int, cost: int, hit_at: int | None) -> None:
        if self.used(now) and (hit_at or now) >= self.first:
            self.units = max(self.units - cost, 0)


def calendar_window(align: str, time_zone: str, moment: int) -> tuple[int, int]:
    """Return the day, week or month that holds a moment, found day by day."""
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


MODELS: dict[str, type[Model]] = {
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
}


class Bans:
    """Bans of one client under one limit: refusals in a window that begins with the first."""

    def __init__(self, terms: BanTerms) -> None:
        self.terms = terms
        self.at = self.ends = self.since = self.offences = self.times = 0

    def meet(self, now: int) -> None:
        """Notice whether the clock was set back."""
        ahead = self.at - now
        if ahead > MINUTE:
            self.ends = self.since = self.offences = self.times = 0
        elif ahead > 0:
            self.ends = max(self.ends - ahead, 0)
            self.since = min(self.since, now)
        self.at = min(self.at, now)

    def seen(self, now: int) -> Ban:
        """Return what a decision reports."""
        if self.ends > now:
            return Ban(self.ends, self.offences, self.times)
        offences = self.offences if self.since + self.terms.window_us > now else 0
        times = self.times if self.ends + self.terms.lengths_us[-1] > now else 0
        return Ban(0, offences, times)

    def write(self, now: int) -> None:
        """Forget what has ended."""
        seen = self.seen(now)
        self.at, self.offences, self.times = now, seen.offences, seen.times

    def begin(self, now: int, length: int) -> None:
        """Ban for a length, or if it is 0, for as long as the next ban would last."""
        if not length:
            self.times += 1
            length = self.terms.lengths_us[min(self.times, len(self.terms.lengths_us)) - 1]
        self.ends, self.since = now + length, 0

    def offend(self, now: int) -> bool:
        """Count an offence, and return whether it leads to a ban."""
        self.write(now)
        if not self.offences:
            self.since = now
        self.offences += 1
        if self.offences < self.terms.after:
            return False
        self.begin(now, 0)
        return True

    def ban(self, now: int, length: int) -> None:
        """Ban by hand."""
        self.write(now)
        self.offences = 0
        self.begin(now, length)

    def unban(self, now: int, *, forgets: bool) -> None:
        """Lift a ban."""
        self.write(now)
        self.ends, self.offences = min(self.ends, now), 0
        if forgets:
            self.ends = self.times = 0


class Answer(NamedTuple):
    """The numbers of one limit, in microseconds from now; and its ban."""

    used: int
    remaining: int
    retry_after: int | None
    reset_after: int
    wait: int
    counted_at: int
    ban: Ban | None = None


class Answers(NamedTuple):
    """The result of one call."""

    allowed: bool
    granted: int
    wait: int
    limits: list[Answer]


def decide(
    models: Sequence[Model],
    operation: str,
    now: int,
    cost: int,
    mode: str = "",
    hit_at: int | None = None,
) -> Answers:
    """Decide a call about these limits, which all have the same cost: all or nothing."""
    has_bans = operation not in ("charge", "refund")
    bans = [model.bans if has_bans else None for model in models]
    for model, ban in zip(models, bans, strict=True):
        model.meet(now)
        if ban is not None:
            ban.meet(now)
    units = 0 if operation in ("ban", "unban") else cost
    enforced = [model.limit.mode == "enforce" for model in models]
    if mode == "partial" and any(enforced):
        left = [model.capacity - model.used(now) for model in models]
        units = max(min([cost, *itertools.compress(left, enforced)]), 1)
    asked = [model.ask(now, model.price(units, mode)) for model in models]
    fits = [accepts is not None and accepts <= now for accepts, _ in asked]
    banned = [ban is not None and ban.ends > now for ban in bans]
    is_banned = any(itertools.compress(banned, enforced))
    allowed = all(itertools.compress(fits, enforced)) and not is_banned
    leaves = max([now, *itertools.compress([at for _, at in asked], enforced)])
    if operation == "charge":
        allowed, leaves = True, now
    granted = units if allowed and operation in ("hit", "charge") else 0
    answers: list[Answer] = []
    is_free = True
    for place, model in enumerate(models):
        accepts, at = asked[place]
        ban, counted_at, is_new = bans[place], 0, False
        takes = operation == "charge" or (operation == "hit" and allowed and fits[place])
        if operation == "refund":
            model.refund(now, cost, hit_at)
        elif takes and units:
            counted_at = model.take(now, units, leaves)
        elif operation == "hit" and units and model.limit.count_denied and not is_banned:
            counted_at = model.take(now, units, now)
        if operation in ("charge", "refund") or (counted_at and not takes):
            accepts, at = model.ask(now, model.price(units, mode))
        if ban is not None and operation == "hit":
            if units and not (is_banned or banned[place] or fits[place]):
                is_new = ban.offend(now)
        elif ban is not None and operation == "ban":
            ban.ban(now, cost)
            is_new = True
        elif ban is not None and operation == "unban":
            ban.unban(now, forgets=cost == 1)
        is_free = is_free and (not enforced[place] or (accepts is not None and accepts <= now))
        answer = Answer(
            model.used(now),
            max(model.capacity - model.used(now), 0),
            None if accepts is None else max(accepts - now, 0),
            max(model.free_at(now) - now, 0),
            at - now,
            counted_at,
        )
        if ban is not None:
            seen = ban.seen(now)
            is_free = is_free and not (enforced[place] and seen.until)
            answer = with_ban(answer, seen._replace(is_new=is_new), now)
        answers.append(answer)
    if operation in ("refund", "ban", "unban"):
        allowed = is_free
    return Answers(allowed, granted, leaves - now, answers)


def with_ban(answer: Answer, ban: Ban, now: int) -> Answer:
    """Return the answer of a limit, changed by the ban of its client."""
    if not ban.until:
        return answer._replace(ban=ban)
    left = ban.until - now
    retry_after = None if answer.retry_after is None else max(answer.retry_after, left)
    return answer._replace(
        remaining=0,
        retry_after=retry_after,
        reset_after=max(answer.reset_after, left),
        wait=max(answer.wait, left),
        ban=ban,
    )
