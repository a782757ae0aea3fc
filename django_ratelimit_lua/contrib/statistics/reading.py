"""Read the counts for the admin's pages, commands, JSON and metrics.

All functions call Redis and may raise `StoreError`. Unwritten counts of this process are written
first.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...operations.curve import Between
from ...store import FLUSH_SECONDS, Patience, get_store
from .buckets import units_range
from .keys import (
    DAY,
    DETAILS_KEPT,
    DROPPED,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    SITE,
    TOP_HOURS,
    TOTALS,
    key_of,
    version_of,
)
from .marks import Marks
from .recorder import recorder
from .space_saving import Estimate

Counts = Counter[str]
"""Requests by result, decisions by source (`S` and its letter, see `results`), units `u`, and
allowed requests that came near the limit `n`.
"""


class Span(NamedTuple):
    """A time span from `start` to `end`, in seconds since 1970, in steps of `step` seconds.

    If `step` is less than an hour, the last 49 hours are available, otherwise the last 91 days.
    Minutes, hours and days are those of UTC. A partial one counts as a whole: so an hour of sixty
    minutes is read exactly, up to the current minute.
    """

    start: int
    end: int
    step: int

    @classmethod
    def last(cls, seconds: int, step: int, now: float | None = None) -> Span:
        """Return the last `seconds` seconds, up to the end of the current step.

        >>> Span.last(3600, 60, now=7230.0)
        Span(start=3660, end=7260, step=60)
        """
        end = (int(now or time.time()) // step + 1) * step
        return cls(end - seconds, end, step)

    def parts(self, seconds: int) -> range:
        """Return the minutes, hours or days of the span, counted from 1970.

        `seconds` is the length of one of them.
        """
        return range(self.start // seconds, -(-self.end // seconds))

    @property
    def is_by_minute(self) -> bool:
        """Return whether all counts of the span are still stored by the minute."""
        return self.step < HOUR and self.start > time.time() - DETAILS_KEPT + MINUTE

    @property
    def details(self) -> list[tuple[bytes, int]]:
        """Return the parts of the span for which details are stored, as (end of the key, moment).

        The parts are minutes, hours or days: the shortest that are still stored. The moment is the
        beginning of the part.
        """
        if self.is_by_minute:
            return [(b"minute:%d" % minute, minute * MINUTE) for minute in self.parts(MINUTE)]
        if self.start > time.time() - MINUTES_KEPT + HOUR:
            return [(b"hour:%d" % hour, hour * HOUR) for hour in self.parts(HOUR)]
        return [(b"day:%d" % day, day * DAY) for day in self.parts(DAY)]


class Point(NamedTuple):
    """The counts of one step, which begins at `moment`, in seconds since 1970."""

    moment: int
    counts: Counts


class Detail(NamedTuple):
    """The histograms of a span, which begins at `since`.

    - `times`: the number of decisions by bucket (see `TIME_BOUNDS`);
    - `used`: a histogram for each period in microseconds. Each request is in the bucket of the
      units that were used after it (see `units_range`).
    """

    since: int
    times: Counter[int]
    used: Mapping[int, Counter[int]]

    def beyond(self, period_us: int, units: int) -> Between:
        """Return bounds of how many requests brought the used units above this number.

        The buckets of large numbers are not exact.
        """
        least = 0
        most = 0
        for bucket, number in self.used.get(period_us, {}).items():
            low, high = units_range(bucket)
            if low > units:
                least += number
            if high > units:
                most += number
        return Between(least, most)


class ShadowNumbers(NamedTuple):
    """The requests that a version of a rule has seen and would have refused in shadow mode.

    - `people`, `refused_people`: the estimated numbers of their identities.
    """

    seen: int
    refused: int
    people: int
    refused_people: int


def known_names() -> dict[str, int]:
    """Return the names that were counted in the last ninety days.

    Returns:
        For each name, the last hour in which it was counted, in seconds since 1970.
    """
    return _hours_of(b"names")


def durable_names() -> dict[str, int]:
    """Return the names of limiters with durable statistics in the time that Redis keeps hours.

    Returns:
        For each name, the end of its last hour, in seconds since 1970.
    """
    ends = {name: hour + HOUR for name, hour in _hours_of(b"durable").items()}
    return {name: end for name, end in ends.items() if end > time.time() - HOURS_KEPT}


def add_up(points: Iterable[Point]) -> Counts:
    """Return the sum of the counts of several steps."""
    whole: Counts = Counter()
    for point in points:
        whole.update(point.counts)
    return whole


def dropped() -> int:
    """Return the number of requests that were not counted in the last seven days.

    A request is included once for each rule.
    """
    first = int(time.time()) // DAY - 7
    (counts,) = _hashes([key_of(SITE, DROPPED)])
    return sum(number for day, number in counts.items() if int(day) > first)


def series(names: Sequence[str], span: Span) -> dict[str, list[Point]]:
    """Return the counts of each name, step by step, from its minutes or its hours.

    The minutes contain sources, units and requests near the limit only for the last hour.
    """
    suffixes = [b"hours:%d"]
    begin = DAY
    length = HOUR
    if span.step < HOUR:
        suffixes = [b"minutes:%d", b"more:%d"] if span.is_by_minute else [b"minutes:%d"]
        begin = HOUR
        length = MINUTE
    parts = [(suffix % number, number) for suffix in suffixes for number in span.parts(begin)]
    hashes = iter(_hashes([key_of(name, suffix) for name in names for suffix, _ in parts]))
    found = {}
    for name in names:
        counted: dict[int, Counts] = {}
        for _, number in parts:
            for written, count in next(hashes).items():
                moment = number * begin + int(written[-2:]) * length
                counted.setdefault(moment, Counter())[written[:-2]] += count
        found[name] = by_step(span, length, counted)
    return found


def details_of(names: Sequence[str], span: Span) -> dict[str, Detail]:
    """Return the histograms of each name, see `Span.details`."""
    parts = span.details
    hashes = iter(_hashes([key_of(name, suffix) for name in names for suffix, _ in parts]))
    details = {}
    for name in names:
        times: Counter[int] = Counter()
        used: dict[int, Counter[int]] = {}
        for _ in parts:
            for written, number in next(hashes).items():
                if written[0] == "t":
                    times[int(written[2:])] += number
                else:
                    period, _, bucket = written[1:].partition(":")
                    used.setdefault(int(period), Counter())[int(bucket)] += number
        details[name] = Detail(parts[0][1], times, used)
    return details


def marks(name: str, period_us: int, span: Span) -> Marks:
    """Return the maximum units that identities used, or requested, under the limit of a period."""
    keys = [key_of(name, b"marks:%d:%b" % (period_us, suffix)) for suffix, _ in span.details]
    found: dict[bytes, int] = {}
    for reply in ask([(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES") for key in keys]):
        for digest, mark in _pairs(reply):
            found[digest] = max(found.get(digest, 0), int(float(mark)))
    return Marks.of(found)


def people_refused(names: Sequence[str], span: Span) -> dict[str, int]:
    """Return the approximate number of refused identities, by the name of the rule or call site.

    They are counted by a HyperLogLog with a standard error of 0.8 %.
    """
    suffixes = [b"refused:" + suffix for suffix, _ in span.details]
    commands = [(b"PFCOUNT", *[key_of(name, suffix) for suffix in suffixes]) for name in names]
    return dict(zip(names, ask(commands), strict=True))


def top(name: str, span: Span, what: str = "refused") -> list[Estimate]:
    """Return the top clients of the minutes of a span, or of its hours, but of 24 hours at most.

    The list of each process is approximate, and a client that is missing from it may have as many
    requests as the last one in it. `error` includes both uncertainties.

    Args:
        name: The rule or call site; `SITE`: the refusals of all of them.
        span: The time.
        what: "refused" (or refusals that shadow mode would have made), or "used" (units).
    """
    lists = lists_of(name, span)
    return merged([written for part in lists for written in part], what)


def lists_of(name: str, span: Span) -> list[list[bytes]]:
    """Return the lists of `writing.Top` for each minute of a span, or for its last 24 hours."""
    if span.is_by_minute:
        suffixes = [b"top:minute:%d" % minute for minute in span.parts(MINUTE)]
    else:
        suffixes = [b"top:%d" % hour for hour in span.parts(HOUR)[-TOP_HOURS:]]
    replies = ask([(b"HGETALL", key_of(name, suffix)) for suffix in suffixes])
    return [reply[1::2] for reply in replies]


def merged(lists: Iterable[bytes], what: str) -> list[Estimate]:
    """Return the clients of several lists of `writing.Top`, those with the highest counts first."""
    found: dict[str, Estimate] = {}
    absent = 0
    for written in lists:
        least, clients = listed(written, what)
        absent += least
        for client in clients:
            whole = found.setdefault(client.digest, Estimate(client.digest, 0, 0, client.name))
            whole.times += client.times - least
            whole.error += client.error - least
    for client in found.values():
        client.times += absent
        client.error += absent
    return sorted(found.values(), key=lambda one: (one.error - one.times, -one.times, one.digest))


def listed(written: bytes, word: str) -> tuple[int, list[Estimate]]:
    """Return the clients in a list of `writing.Top`, and the maximum count of all others.

    >>> listed(b'{"used":[0,[["a",2,1,[["ip","::1"]]]]]}', "used")
    (0, [Estimate(digest='a', times=2, error=1, name=[('ip', '::1')])])
    """
    least, rows = json.loads(written)[word]
    clients = [
        Estimate(digest, times, error, [(kind, value) for kind, value in name])
        for digest, times, error, name in rows
    ]
    return least, clients


def last_hour_of(name: str, digest: bytes, what: str) -> tuple[int, int] | None:
    """Return the bounds of the units or the refusals of one identity in the last sixty minutes.

    None: it is not among the top clients, see `top`.
    """
    for client in top(name, Span.last(HOUR, MINUTE), what):
        if client.digest == digest.decode():
            return client.bounds
    return None


def totals() -> dict[str, Counts]:
    """Return the numbers for metrics of each name and of the site, as `keys` describes them.

    They never fall unless Redis has lost them.
    """
    names = [*known_names(), SITE]
    return dict(zip(names, _hashes([key_of(name, TOTALS) for name in names]), strict=True))


def shadow_numbers(given: Mapping[str, object]) -> ShadowNumbers:
    """Return the requests of this version of a rule in shadow mode, in the last days with any."""
    key = key_of(str(given["name"]), b"version:" + version_of(given).encode())
    (counts,) = _hashes([key])
    people, refused = ask([(b"PFCOUNT", key + word) for word in (b":people", b":refused")])
    return ShadowNumbers(counts["seen"], counts["refused"], people, refused)


_AT_ONCE = 200
"""Commands of one round trip: their replies are made and read in a few milliseconds."""


def _hours_of(suffix: bytes) -> dict[str, int]:
    """Return the names of a sorted set, and the hour of each, in seconds since 1970."""
    (reply,) = ask([(b"ZRANGE", key_of(SITE, suffix), b"0", b"-1", b"WITHSCORES")])
    return {
        name.decode("utf-8", "surrogatepass"): int(float(hour)) * HOUR
        for name, hour in _pairs(reply)
    }


def _pairs(reply: Sequence[object]) -> Iterable[tuple[Any, Any]]:
    return zip(reply[::2], reply[1::2], strict=True)


def by_step(span: Span, length: int, counted: Mapping[int, Counts]) -> list[Point]:
    """Add up counts by the steps of a span.

    Args:
        span: The span. A part that overlaps its beginning counts completely, in the first step.
        length: The seconds of each part.
        counted: The counts of each part, by the moment at which it begins.
    """
    counts: dict[int, Counts] = {moment: Counter() for moment in range(*span)}
    for at, of in counted.items():
        moment = max(at, span.start)
        moment -= (moment - span.start) % span.step
        if at + length > span.start and moment in counts:
            counts[moment] += of
    return [Point(moment, of) for moment, of in counts.items()]


def _hashes(keys: Sequence[bytes]) -> list[Counts]:
    return [
        Counter({field.decode(): int(number) for field, number in _pairs(reply)})
        for reply in ask([(b"HGETALL", key) for key in keys])
    ]


def ask(commands: Sequence[Sequence[bytes]]) -> list[Any]:
    """Return the replies to commands.

    What this process has counted is written first, if Redis accepts it within a second.
    """
    recorder.flush(Patience(FLUSH_SECONDS))
    store = get_store(background=True)
    replies: list[object] = []
    for at in range(0, len(commands), _AT_ONCE):
        replies += store.execute_all(commands[at : at + _AT_ONCE])
    return replies
