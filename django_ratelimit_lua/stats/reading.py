"""What was counted, read again: for the admin's pages, commands, JSON and metrics. Everything here asks Redis and may
raise `StoreError`; what this process has not written yet is written first."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..exceptions import StoreError
from ..store import Patience, get_store, rules_key
from .buckets import TIME_BOUNDS, quantile, units_range
from .keys import DAY, DROPPED, HOUR, HOURS_KEPT, MINUTE, MINUTES_KEPT, OTHER, SITE, TOTALS, key_of, site_key
from .marks import Marks
from .names import Name
from .recorder import recorder
from .results import (
    ADVISED,
    ALLOWED,
    ALLOWED_ADVISING,
    ALLOWED_IN_SHADOW,
    BANNED,
    LABELS,
    REFUSED,
    SHADOW,
    SOURCES,
    refused_of,
)
from .shadow import version_of
from .writing import listed

MOST_LISTED = 100_000
"""More than all lists of two hours have."""
Counts = Counter[str]
"""Requests by result: see `results`."""
_SOURCES = {letter: source for source, letter in SOURCES.items()}


class Span(NamedTuple):
    """A time to look at: from `start` to `end`, in seconds since 1970, in steps of `step` seconds. Where `step` is less
    than an hour, the last 49 hours are known; else the last 91 days. Minutes, hours and days are those of UTC; one that
    is in it in part is in it as a whole."""

    start: int
    end: int
    step: int

    @classmethod
    def last(cls, seconds: int, step: int, now: float | None = None) -> Span:
        """The last so many seconds, up to the end of the step that is going on.

        >>> Span.last(3600, 60, now=7230.0)
        Span(start=3660, end=7260, step=60)
        """
        end = (int(time.time() if now is None else now) // step + 1) * step
        return cls(end - seconds, end, step)

    @property
    def moments(self) -> range:
        """The beginnings of the steps."""
        return range(self.start, self.end, self.step)

    @property
    def by_hours(self) -> list[tuple[bytes, int]]:
        """The hours, where these are still known apart, else the days: as keys end, and when each begins."""
        if self.end <= self.start:
            return []
        if self.start > time.time() - MINUTES_KEPT + HOUR:
            return [(b"hour:%d" % hour, hour * HOUR) for hour in range(self.start // HOUR, -(-self.end // HOUR))]
        return [(b"day:%d" % day, day * DAY) for day in range(self.start // DAY, -(-self.end // DAY))]


class Point(NamedTuple):
    """What was counted in one step: it begins at `moment`, in seconds since 1970."""

    moment: int
    counts: Counts


class Hour(NamedTuple):
    """What was counted in one hour, which begins at `moment`: `people_refused`, about; None: not known any more."""

    moment: int
    counts: Counts
    units: int
    near: int
    people_refused: int | None


@dataclass(frozen=True, slots=True)
class Total:
    """What was counted in a time: requests by result and by source; the `units` that were taken; allowed requests that
    were `near` the limit."""

    counts: Counts = field(default_factory=Counter)
    sources: Counts = field(default_factory=Counter)
    units: int = 0
    near: int = 0

    @property
    def requests(self) -> int:
        """All requests."""
        return sum(self.counts.values())

    @property
    def allowed(self) -> int:
        """Requests that this rule let go, in whatever mode."""
        return sum(self.counts[result] for result in (ALLOWED, ALLOWED_ADVISING, ALLOWED_IN_SHADOW))

    @property
    def refused(self) -> int:
        """Requests that this rule refused, or that were told to the view as limited."""
        return refused_of(self.counts) + self.counts[ADVISED]

    @property
    def would_be_refused(self) -> int:
        """Requests that this rule would have refused, but for shadow mode."""
        return self.counts[SHADOW]


@dataclass(frozen=True, slots=True)
class Detail:
    """Histograms of a time, which begins at `since`: `times` by source, how many decisions by bucket (see
    `TIME_BOUNDS`); `used` by period in microseconds, how many requests found so many units used, themselves among them,
    by bucket (see `units_range`)."""

    since: int
    times: Mapping[str, Counter[int]]
    used: Mapping[int, Counter[int]]

    def time_within(self, share: float) -> float | None:
        """Seconds in which that share of decisions was made, at most."""
        return quantile(share, sum(self.times.values(), Counter()))

    def beyond(self, period_us: int, units: int) -> tuple[int, int]:
        """How many requests found more than so many units used: at least, and at most, as buckets are not exact."""
        least = most = 0
        for bucket, number in self.used.get(period_us, {}).items():
            low, high = units_range(bucket)
            least += number if low > units else 0
            most += number if high > units else 0
        return least, most


class Offender(NamedTuple):
    """One of those who used most, or were refused most: by digest and name (see `names`); so many `times`, at
    most, and at least `times - error`."""

    digest: str
    name: Name
    times: int
    error: int


class Totals(NamedTuple):
    """All that was ever counted, of all processes: `of_names`, by rule or call site, at most `MOST_PLACES` and then
    `OTHER`; `of_all`; both as they are written (see `keys`). `revision`: the number of the rules that are published
    (0: none)."""

    of_names: Mapping[str, Counts]
    of_all: Counts
    revision: int


class History(NamedTuple):
    """What is known of one identity since a moment (in seconds since 1970): the units it `used`, and how often it was
    `refused`, or would have been: at least, and at most; None: it is not among those who are known."""

    since: int
    used: tuple[int, int] | None
    refused: tuple[int, int] | None


class ShadowNumbers(NamedTuple):
    """Requests that a version of a rule has `seen` and would have `refused`, and about how many people (whoever the
    rule counts) these were of."""

    seen: int = 0
    refused: int = 0
    people: int = 0
    refused_people: int = 0


def known_names() -> dict[str, int]:
    """The rules and call sites that were counted in the last ninety days, and in which hour last (seconds since
    1970)."""
    recorder.flush()
    reply = _execute(b"ZRANGE", site_key(b"names"), b"0", b"-1", b"WITHSCORES")
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {name.decode("utf-8", "surrogatepass"): int(float(hour)) * HOUR for name, hour in pairs}


def was_counted(name: str) -> bool:
    """Whether that name was counted in the last ninety days."""
    recorder.flush()
    return bool(_execute(b"ZSCORE", site_key(b"names"), name.encode("utf-8", "surrogatepass")))


class Look(NamedTuple):
    """What was counted of one name in a time that ends now, for lists of many: hour by hour, and together."""

    hours: list[Point]
    total: Total


def looks(names: Sequence[str], hours: int = 24) -> dict[str, Look]:
    """What was counted of each name in the last whole hours and the one that is going on."""
    recorder.flush()
    span = Span.last(hours * HOUR, HOUR)
    days = range(span.start // DAY, -(-span.end // DAY))
    hashes = _hashes([key_of(name, b"hours:%d" % day) for name in names for day in days])
    return {
        name: _look(span, dict(zip(days, hashes[place * len(days) : (place + 1) * len(days)], strict=True)))
        for place, name in enumerate(names)
    }


def lately(names: Sequence[str]) -> tuple[float, dict[str, Counts]]:
    """What was counted of each name in the minute that is going on and the one before; and how many seconds that is."""
    recorder.flush()
    now = time.time()
    minute = int(now) // MINUTE
    fields = {
        number // 60: [letter + b"%02d" % (each % 60) for each in (minute - 1, minute) if each // 60 == number // 60
                       for letter in _LETTERS]
        for number in (minute - 1, minute)
    }  # fmt: skip
    commands = [
        (b"HMGET", key_of(name, b"minutes:%d" % hour), *of) for name in names for hour, of in fields.items()
    ]  # fmt: skip
    replies = _execute_all(commands)
    counts: dict[str, Counts] = {}
    for place, name in enumerate(names):
        found = counts[name] = Counter()
        for at, of in enumerate(fields.values(), start=place * len(fields)):
            for written, count in zip(of, replies[at], strict=False):
                if count is not None and _IS_NUMBER(count):
                    found[written[:1].decode()] += int(count)
    return now - (minute - 1) * MINUTE, counts


def times(names: Sequence[str]) -> dict[str, Counter[int]]:
    """How long decisions of each name took in the hour that is going on and the one before: how many by bucket."""
    recorder.flush()
    hour = int(time.time()) // HOUR
    fields = [b"t%b%d" % (letter.encode(), bucket) for letter in _SOURCES for bucket in range(len(TIME_BOUNDS) + 1)]
    buckets = [int(written[2:]) for written in fields]
    keys = [key_of(name, b"hour:%d" % number) for name in names for number in (hour - 1, hour)]
    replies = _execute_all([(b"HMGET", key, *fields) for key in keys])
    found: dict[str, Counter[int]] = {}
    for place, name in enumerate(names):
        histogram = found[name] = Counter()
        for reply in replies[2 * place : 2 * place + 2]:
            for bucket, count in zip(buckets, reply, strict=False):
                if count is not None and _IS_NUMBER(count):
                    histogram[bucket] += int(count)
    return found


def refused_people(names: Sequence[str], hours: int = 24) -> dict[str, int]:
    """`people_refused` of each name, in the last whole hours and the one that is going on."""
    recorder.flush()
    suffixes = [suffix for suffix, _ in Span.last(hours * HOUR, HOUR).by_hours]
    commands = [(b"PFCOUNT", *[key_of(name, b"refused:" + suffix) for suffix in suffixes]) for name in names]
    return dict(zip(names, _execute_all(commands), strict=True))


def dropped(days: int = 7) -> int:
    """Requests of rules that were counted nowhere in the last days, each once for each rule."""
    recorder.flush()
    first = int(time.time()) // DAY - days
    return sum(number for day, number in _hash(key_of(SITE, DROPPED)).items() if day.isdecimal() and int(day) > first)


def series(name: str, span: Span) -> list[Point]:
    """What was counted of one name, step by step."""
    recorder.flush()
    step, begin = (MINUTE, HOUR) if span.step < HOUR else (HOUR, DAY)
    word = b"minutes:%d" if step == MINUTE else b"hours:%d"
    counts: dict[int, Counts] = {moment: Counter() for moment in span.moments}
    numbers = range(span.start // begin, -(-span.end // begin))
    for number, found in zip(numbers, _hashes([key_of(name, word % number) for number in numbers]), strict=True):
        for result, at, count in _by_time(found):
            moment = number * begin + at * step
            if moment < span.start < moment + step:
                moment = span.start
            moment -= (moment - span.start) % span.step
            if result in _RESULTS and moment in counts:
                counts[moment][result] += count
    return [Point(moment, of) for moment, of in counts.items()]


def total(name: str, span: Span) -> Total:
    """What was counted of one name, in whole hours; the hour that is going on is one of them."""
    recorder.flush()
    days = range(span.start // DAY, -(-span.end // DAY))
    hashes = _hashes([key_of(name, b"hours:%d" % day) for day in days])
    return _look(span, dict(zip(days, hashes, strict=True))).total


def _look(span: Span, days: Mapping[int, Mapping[str, int]]) -> Look:
    """What hashes of hours say, by day."""
    hours: dict[int, Counts] = {hour: Counter() for hour in range(span.start - span.start % HOUR, span.end, HOUR)}
    counts: Counts = Counter()
    sources: Counts = Counter()
    units = near = 0
    for day, numbers in days.items():
        for word, hour_of_day, count in _by_time(numbers):
            hour = day * DAY + hour_of_day * HOUR
            if hour not in hours:
                continue
            if word in _RESULTS:
                counts[word] += count
                hours[hour][word] += count
            elif word == "u":
                units += count
            elif word == "n":
                near += count
            elif word.startswith("S"):
                sources[_SOURCES.get(word[1:], word[1:])] += count
    return Look([Point(hour, of) for hour, of in hours.items()], Total(counts, sources, units, near))


def hours(name: str, days: Iterable[int]) -> Iterator[Hour]:
    """What was counted of one name in each hour of these days (numbered since 1970) in which it was."""
    recorder.flush()
    people_since = time.time() - MINUTES_KEPT
    for day in days:
        by_hour: dict[int, Counts] = {}
        for word, hour, count in _by_time(_hash(key_of(name, b"hours:%d" % day))):
            by_hour.setdefault(day * DAY + hour * HOUR, Counter())[word] += count
        for moment, found in sorted(by_hour.items()):
            people = None
            if moment > people_since:
                people = int(_execute(b"PFCOUNT", key_of(name, b"refused:hour:%d" % (moment // HOUR))))
            counts = Counter({word: count for word, count in found.items() if word in _RESULTS})
            yield Hour(moment, counts, found["u"], found["n"], people)


def durable_names() -> dict[str, int]:
    """The names of limiters whose statistics are to be kept in the database, and until when they said so (seconds
    since 1970); of the last ninety days, as Redis has nothing of the others."""
    recorder.flush()
    reply = _execute(b"ZRANGE", site_key(b"durable"), b"0", b"-1", b"WITHSCORES")
    since = (int(time.time()) - HOURS_KEPT) // HOUR
    pairs = ((name, int(float(hour))) for name, hour in zip(reply[::2], reply[1::2], strict=True))
    return {name.decode("utf-8", "surrogatepass"): (hour + 1) * HOUR for name, hour in pairs if hour >= since}


def detail(name: str, span: Span) -> Detail:
    """The histograms of one name; in whole hours, or days where the time is longer than two."""
    recorder.flush()
    times: dict[str, Counter[int]] = {}
    used: dict[int, Counter[int]] = {}
    for found in _hashes([key_of(name, suffix) for suffix, _ in span.by_hours]):
        for written, count in found.items():
            match = _BUCKET.fullmatch(written)
            if match is None:
                continue
            source, time_bucket, period, units_bucket = match.groups()
            if source:
                times.setdefault(_SOURCES.get(source, source), Counter())[int(time_bucket)] += count
            else:
                used.setdefault(int(period), Counter())[int(units_bucket)] += count
    return Detail(next((began for _, began in span.by_hours), span.start), times, used)


def marks(name: str, period_us: int, span: Span) -> Marks:
    """The most that identities had used, or wanted, of the limit of that period; in whole hours or days."""
    recorder.flush()
    found: dict[bytes, int] = {}
    for suffix, _ in span.by_hours:
        key = key_of(name, b"marks:%d:%b" % (period_us, suffix))
        reply = _execute(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
        for digest, mark in zip(reply[::2], reply[1::2], strict=True):
            found[digest] = max(found.get(digest, 0), int(float(mark)))
    return Marks.of(found)


def people_refused(name: str, span: Span) -> int:
    """About how many identities were refused (a HyperLogLog: 0.8 % off), in whole hours or days."""
    recorder.flush()
    keys = [key_of(name, b"refused:" + suffix) for suffix, _ in span.by_hours]
    return int(_execute(b"PFCOUNT", *keys)) if keys else 0


def top(name: str, span: Span, what: str = "refused", most: int = 50) -> list[Offender]:
    """Who was refused most ("refused", in shadow mode: would have been) or used most units ("used") in the hours of a
    time, the last 24 at most. What each process tells has an error, and who is not on a process's list may have come
    there as often as the last who is: both are in `error`."""
    recorder.flush()
    found: dict[str, list[Any]] = {}
    absent = 0
    for hour in range(max(span.start // HOUR, span.end // HOUR - 24), -(-span.end // HOUR)):
        reply = _execute(b"HGETALL", key_of(name, b"top:%d" % hour))
        for written in reply[1::2]:
            least, rows = listed(written, what)
            absent += least
            for digest, count, error, of in rows:
                entry = found.setdefault(digest, [0, 0, 0, of])
                entry[0] += count
                entry[1] += error
                entry[2] += least
    # Who is not on some lists may have come there, up to the least of each.
    offenders = [
        Offender(digest, of, count + absent - present, error + absent - present)
        for digest, (count, error, present, of) in found.items()
    ]
    return sorted(offenders, key=lambda one: (one.error - one.times, -one.times, one.digest))[:most]


def history(name: str, digest: bytes) -> History:
    """What is known of one identity in the hour that is going on and the one before: of those who used most, and of
    those who were refused most."""
    now = int(time.time()) // HOUR
    span = Span((now - 1) * HOUR, (now + 1) * HOUR, HOUR)

    def of(what: str) -> tuple[int, int] | None:
        found = next((one for one in top(name, span, what, MOST_LISTED) if one.digest == digest.decode()), None)
        return None if found is None else (max(0, found.times - found.error), found.times)

    return History(span.start, of("used"), of("refused"))


def totals(patience: Patience | None = None) -> Totals:
    """What metrics show: numbers that never fall, but where Redis has lost them."""
    recorder.flush(patience)
    places = _execute(b"ZRANGE", site_key(b"places"), b"0", b"-1", patience=patience)
    names = [name.decode("utf-8", "surrogatepass") for name in places]
    of_names = {name: Counter(_hash(key_of(name, TOTALS), patience)) for name in names}
    revision = _execute(b"HGET", rules_key(), b"revision", patience=patience)
    digits = (revision or b"0").partition(b"-")[0]
    of_all = Counter(_hash(key_of(SITE, TOTALS), patience))
    of_names[OTHER] = Counter({field[1:]: number for field, number in of_all.items() if field.startswith("o")})
    return Totals({name: of for name, of in of_names.items() if of}, of_all, int(digits) if digits.isdigit() else 0)


def shadow_numbers(given: Mapping[str, Any]) -> ShadowNumbers:
    """What a rule as it is declared has seen in shadow mode, in the last days in which it was asked."""
    recorder.flush()
    key = key_of(str(given["name"]), b"version:" + version_of(given).encode())
    counts = _hash(key)
    people, refused_people = (int(_execute(b"PFCOUNT", key + word)) for word in (b":people", b":refused"))
    return ShadowNumbers(counts.get("seen", 0), counts.get("refused", 0), people, refused_people)


def refusal_counts(days: int = 7, names: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
    """By rule or call site, how often it refused (`"enforce"`), told the view (`"advise"`), would have refused
    (`"shadow"`) or could not be applied (`"failed"`) in the last days, today (UTC) included.

    `names`: of these alone.
    """
    recorder.flush()
    today, counts = int(time.time()) // DAY, {}
    for name in known_names() if names is None else names:
        found: Counts = Counter()
        for day in range(today - days + 1, today + 1):
            for result, _, count in _by_time(_hash(key_of(name, b"hours:%d" % day))):
                if result in _REFUSALS:
                    found[_REFUSALS[result]] += count
        if found:
            counts[name] = dict(found)
    return counts


_IS_NUMBER = re.compile(rb"-?[0-9]{1,19}").fullmatch
_REFUSALS = {REFUSED: "enforce", BANNED: "enforce", ADVISED: "advise", SHADOW: "shadow", "f": "failed"}
_RESULTS = frozenset(LABELS)
_LETTERS = [letter.encode() for letter in LABELS]
_BUCKET = re.compile("t([a-z])([0-9]{1,3})|U([0-9]{1,16}):([0-9]{1,4})")
_AT_ONCE = 200
"""Commands of one round trip: their replies are made and read in a few milliseconds."""


def _by_time(counts: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """What is counted in minutes or hours: what, the number of the minute or hour, and how often."""
    for written, count in counts.items():
        if written[-2:].isdecimal():
            yield written[:-2], int(written[-2:]), count


def _hash(key: bytes, patience: Patience | None = None) -> dict[str, int]:
    return _counts(_execute(b"HGETALL", key, patience=patience))


def _hashes(keys: Sequence[bytes]) -> list[dict[str, int]]:
    return [_counts(reply) for reply in _execute_all([(b"HGETALL", key) for key in keys])]


def _counts(reply: Sequence[bytes]) -> dict[str, int]:
    pairs = zip(reply[::2], reply[1::2], strict=True)
    # Somebody may have written there by hand.
    return {written.decode(errors="replace"): int(number) for written, number in pairs if _IS_NUMBER(number)}


def _execute_all(commands: Sequence[Sequence[bytes]]) -> list[Any]:
    found: list[Any] = []
    for at in range(0, len(commands), _AT_ONCE):
        some = commands[at : at + _AT_ONCE]
        try:
            found += get_store(background=True).execute_all(some)
        except StoreError as error:
            if not error.was_answered:
                raise
            found += [_execute(*parts) for parts in some]  # One of them was no good.
    return found


def _execute(*parts: bytes, patience: Patience | None = None) -> Any:
    try:
        return get_store(background=True).execute(*parts, patience=patience)
    except StoreError as error:
        if error.was_answered and ("WRONGTYPE" in str(error) or "INVALIDOBJ" in str(error)):
            return 0 if parts[0] == b"PFCOUNT" else []  # Somebody has written there by hand.
        raise
