"""Read the counts for the admin's pages, commands and metrics.

All functions call Redis and may raise `StoreError`. Unwritten counts of this process are written
first.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...exceptions import StoreError
from ...store import Deadline, get_store
from .clients import Estimate
from .counters import (
    DAY,
    DROPPED,
    HOUR,
    MINUTE,
    SITE,
    SOURCES,
    TOTALS,
    key_of,
    version_of,
)
from .recorder import recorder

Counts = Counter[str]
"""Requests by result, and decisions by source (`S` and its letter, see `counters`)."""
MAX_COMMANDS = 200
"""Commands of one round trip: their replies are made and read in a few milliseconds."""
WRITE_SECONDS = 0.2
"""How long the counts of this process are written before others are read."""


class Span(NamedTuple):
    """A time span from `start` to `end`, in seconds since 1970, in steps of `step` seconds.

    If `step` is less than an hour, the last 49 hours are available, otherwise the last 91 days.
    Minutes, hours and days are those of UTC. A partial one counts as a whole: so an hour of sixty
    minutes is read exactly, up to the current minute.
    """

    start: int
    end: int
    step: int

    def parts(self, seconds: int) -> range:
        """Return the minutes, hours or days of the span, counted from 1970.

        `seconds` is the length of one of them.
        """
        return range(self.start // seconds, -(-self.end // seconds))


class Point(NamedTuple):
    """The counts of one step, which begins at `moment`, in seconds since 1970."""

    moment: int
    counts: Counts


class Outage(NamedTuple):
    """A time from `start` to `end` in which Redis was unavailable for some process.

    - `decisions`: the number of decisions that were made without Redis.
    """

    start: int
    end: int
    decisions: int


class ShadowNumbers(NamedTuple):
    """The requests that a version of a rule has seen and would have refused in shadow mode.

    - `people`, `refused_people`: the estimated numbers of their identities.
    """

    seen: int
    refused: int
    people: int
    refused_people: int


def read_names() -> dict[str, int]:
    """Return the names that were counted in the last ninety days.

    Returns:
        For each name, the last hour in which it was counted, in seconds since 1970.
    """
    (reply,) = execute_all([(b"ZRANGE", key_of(SITE, b"names"), b"0", b"-1", b"WITHSCORES")])
    return {
        name.decode("utf-8", "surrogatepass"): int(float(hour)) * HOUR
        for name, hour in _iterate_pairs(reply)
    }


def add_up(points: Iterable[Point]) -> Counts:
    """Return the sum of the counts of several steps."""
    whole: Counts = Counter()
    for point in points:
        whole.update(point.counts)
    return whole


def count_dropped() -> int:
    """Return the number of requests that were not counted in the last seven days.

    A request is included once for each rule.
    """
    first = int(time.time()) // DAY - 7
    (counts,) = _read_hashes([key_of(SITE, DROPPED)])
    return sum(number for day, number in counts.items() if int(day) > first)


def read_series(
    names: Sequence[str], span: Span, suffix: bytes = b"hours:%d"
) -> dict[str, list[Point]]:
    """Return the counts of each name, step by step, from its minutes or its hours.

    Args:
        names: The names.
        span: The span.
        suffix: The end of the keys with hours, for counts of another kind.
    """
    if span.step < HOUR:
        pattern, key_seconds, field_seconds = b"minutes:%d", HOUR, MINUTE
    else:
        pattern, key_seconds, field_seconds = suffix, DAY, HOUR
    parts = span.parts(key_seconds)
    keys = [key_of(name, pattern % part) for name in names for part in parts]
    hashes = dict(zip(keys, _read_hashes(keys), strict=True))
    series = {}
    for name in names:
        by_moment: defaultdict[int, Counts] = defaultdict(Counter)
        for part in parts:
            for field, count in hashes[key_of(name, pattern % part)].items():
                # The last two digits of a field are its minute or its hour.
                moment = part * key_seconds + int(field[-2:]) * field_seconds
                by_moment[moment][field[:-2]] += count
        series[name] = group_by_step(span, field_seconds, by_moment)
    return series


def group_by_step(span: Span, length: int, counted: Mapping[int, Counts]) -> list[Point]:
    """Add up counts by the steps of a span.

    Args:
        span: The span. A part that overlaps its beginning counts completely, in the first step.
        length: The seconds of each part.
        counted: The counts of each part, by the moment at which it begins.
    """
    steps: dict[int, Counts] = {moment: Counter() for moment in range(*span)}
    for begin, counts in counted.items():
        moment = max(begin, span.start)
        step = moment - (moment - span.start) % span.step
        if begin + length > span.start and step in steps:
            steps[step] += counts
    return [Point(moment, counts) for moment, counts in steps.items()]


def read_histogram(name: str, span: Span, suffix: bytes = b"times:%d") -> dict[int, int]:
    """Return the histogram of decision times, by whole hours, or that of another suffix."""
    hours = span._replace(start=span.start // HOUR * HOUR, step=HOUR)
    counts = add_up(read_series([name], hours, suffix)[name])
    return {int(bucket): number for bucket, number in counts.items()}


def find_outages(points: Iterable[Point]) -> list[Outage]:
    """Return the times in which decisions were made without Redis, from the site's minutes.

    Minutes without decisions do not end an outage. A minute in which only some of the decisions
    were made without Redis is included, but no outage ends after now.

    >>> counts = [{"Sr": 5}, {"Sr": 2, "Sf": 3}, {}, {"Sf": 4}, {"Sr": 6}]
    >>> find_outages([Point(60 * at, Counter(each)) for at, each in enumerate(counts)])
    [Outage(start=60, end=240, decisions=7)]
    """
    fallback = f"S{SOURCES['fallback']}"
    outages: list[Outage] = []
    is_lasting = False
    for start, counts in points:
        end = min(start + MINUTE, int(time.time()))
        decisions = counts[fallback]
        if decisions and is_lasting:
            outages[-1] = Outage(outages[-1].start, end, outages[-1].decisions + decisions)
        elif decisions:
            outages.append(Outage(start, end, decisions))
        if any(letters.startswith("S") for letters in counts):
            is_lasting = decisions > 0
    return outages


def read_client_lists(name: str, hours: Iterable[int]) -> list[bytes]:
    """Return the lists of clients of some hours, for `merged`."""
    replies = execute_all([(b"HGETALL", key_of(name, b"top:%d" % hour)) for hour in hours])
    return [written for reply in replies for written in reply[1::2]]


def read_top_clients(name: str, hours: Iterable[int], what: str) -> list[Estimate]:
    """Return the top clients of some hours, which are numbered since 1970.

    The list of each process is approximate, and a client that is missing from it may have as many
    requests as the last one in it. `error` includes both uncertainties.

    Args:
        name: The rule or call site; `SITE`: all of them, each refused request once, and the units
            under the limit that took most.
        hours: The hours; the last 24 are available.
        what: "refused" (or refusals that shadow mode would have made), or "used" (units).
    """
    return merge_client_lists(read_client_lists(name, hours), what)


def merge_client_lists(lists: Iterable[bytes], what: str) -> list[Estimate]:
    """Return the clients of several lists of `clients.Top`, those with the highest counts first.

    >>> merge_client_lists([b'{"used":[0,[["a",2,1,[["ip","::1"]]]]]}'], "used")
    [Estimate(digest='a', times=2, error=1, name=[('ip', '::1')])]
    """
    clients: dict[str, Estimate] = {}
    # A client may have up to `least` in each list from which it is missing.
    sum_of_least = 0
    for text in lists:
        least, rows = json.loads(text)[what]
        sum_of_least += least
        for digest, times, error, name in rows:
            label = [(kind, value) for kind, value in name]
            client = clients.setdefault(digest, Estimate(digest, 0, 0, label))
            client.times += times - least
            client.error += error - least
    for client in clients.values():
        client.times += sum_of_least
        client.error += sum_of_least
    return sorted(
        clients.values(), key=lambda client: (-client.bounds[0], -client.times, client.digest)
    )


def read_totals() -> dict[str, Counts]:
    """Return the numbers for metrics of each name and of the site, as `counters` describes them.

    They never fall unless Redis has lost them.
    """
    names = [*read_names(), SITE]
    return dict(zip(names, _read_hashes([key_of(name, TOTALS) for name in names]), strict=True))


def read_shadow_numbers(spec: Mapping[str, object]) -> ShadowNumbers:
    """Return the requests of this version of a rule in shadow mode, in the last days with any."""
    key = key_of(str(spec["name"]), b"version:" + version_of(spec).encode())
    (counts,) = _read_hashes([key])
    commands = [(b"PFCOUNT", key + b":people"), (b"PFCOUNT", key + b":refused")]
    people, refused_people = execute_all(commands)
    return ShadowNumbers(counts["seen"], counts["refused"], people, refused_people)


def _iterate_pairs(reply: Any) -> Any:
    """Return the pairs of a flat list, such as fields with their values."""
    return zip(reply[::2], reply[1::2], strict=True)


def _read_hashes(keys: Sequence[bytes]) -> list[Counts]:
    """Return the numbers in each hash, by field."""
    return [
        Counter({field.decode(): int(number) for field, number in _iterate_pairs(reply)})
        for reply in execute_all([(b"HGETALL", key) for key in keys])
    ]


def execute_all(commands: Sequence[Sequence[bytes]]) -> list[Any]:
    """Return the replies to commands, after this process has tried to write its counts."""
    with suppress(StoreError):
        recorder.flush(Deadline(WRITE_SECONDS))
    store = get_store(background=True)
    replies: list[object] = []
    for first in range(0, len(commands), MAX_COMMANDS):
        replies += store.execute_all(commands[first : first + MAX_COMMANDS])
    return replies
