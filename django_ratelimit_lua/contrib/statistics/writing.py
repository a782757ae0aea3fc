"""Write counts to Redis: for each name, one call of the script a second.

A batch counts exactly once, however often it is sent. Counts that cannot be written are kept, up to
a bound.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...exceptions import StoreError
from ...limits import program
from ...limits.limit import shortened
from ...process.clock import Clock
from ...rules.callsite import known_call_sites
from ...store import Patience, Store, get_store
from .keys import (
    BATCH_KEPT,
    DAY,
    DETAILS_KEPT,
    DROPPED,
    HOUR,
    HOURS_KEPT,
    MAX_NAMES,
    MINUTE,
    MINUTES_KEPT,
    MORE_KEPT,
    OTHER,
    SITE,
    TOP_KEPT,
    TOTALS,
    VERSIONS_KEPT,
    key_of,
    version_of,
)
from .marks import SAMPLE, Sample
from .results import FREE, LABELS, SOURCES
from .space_saving import CAPACITY, Summary

if TYPE_CHECKING:
    from .recorder import Person, Tables

WRITE = program.Program.of(program.source("contrib/statistics/write"))
NOTE = program.Program.of(program.source("contrib/statistics/note"))
MAX_PENDING = 100_000
"""Numbers that are kept while nothing can be written, about. Beyond, requests are only counted as
dropped.
"""
MAX_MARKS = 100_000
"""Marks that a process remembers to have written; the others it may write again."""
STEADY_SECONDS = 60.0
"""Seconds without an error after which none is reported any more, because parts are still written
now and then.
"""
TOP = 100
"""Clients that each process writes of those that used most, and of those that were refused most."""
MAX_SUMMARIES = 50
"""Number of names with a full summary of clients in a process, of up to half a megabyte each.
"""
SMALL_CAPACITY = 64
"""Of the summaries of the others."""
MAX_FAILURES = 10
ROUND_SECONDS = 5.0
"""After this many failures, or this time, the remaining names have their turn a second later."""

Bucket = tuple[bytes, int]
"""The end of a key, and for how many seconds it is kept."""


class Pending:
    """The unwritten counts of one name.

    - `writes`: the fields and their numbers or values, by command (see `write.lua`) and bucket;
    - `number`: the number of the batch, once it has one.
    """

    __slots__ = ("number", "writes")

    def __init__(self) -> None:
        self.writes: dict[tuple[bytes, Bucket], dict[bytes, Any]] = {}
        self.number = 0

    def __len__(self) -> int:
        return sum(map(len, self.writes.values()))

    def to(self, command: bytes, bucket: Bucket) -> dict[bytes, Any]:
        """Return the fields of a command for one key."""
        words = self.writes.get((command, bucket))
        if words is None:
            words = self.writes[command, bucket] = Counter() if command == b"add" else {}
        return words

    def add(self, bucket: Bucket, field: bytes, number: int) -> None:
        """Add to a field of a hash."""
        if number:
            self.to(b"add", bucket)[field] += number

    def merge(self, other: Pending) -> None:
        """Add the pending counts of another name."""
        for (command, bucket), words in other.writes.items():
            self.to(command, bucket).update(words)  # A `Counter` adds.

    def arguments(self, name: str, process: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and arguments of the script."""
        keys = [key_of(name, b"batch:" + process)]
        arguments: list[bytes | int] = [self.number, BATCH_KEPT, SAMPLE]
        for (command, (suffix, kept)), words in self.writes.items():
            keys.append(key_of(name, suffix))
            pairs: Iterable[Sequence[Any]] = words.items()
            if command == b"meet":
                pairs = ((member,) for member in words)
            elif command == b"mark":
                pairs = ((mark, member) for member, mark in words.items())
            parts = [part for pair in pairs for part in pair]
            arguments += [command, kept, len(parts), *parts]
        return keys, _encode(arguments)


def _encode(arguments: Iterable[bytes | int]) -> list[bytes]:
    return [part if isinstance(part, bytes) else b"%d" % part for part in arguments]


class Top:
    """The clients with most units, and with most refusals, of one name in one hour.

    - `field`: the field of the hash to which they are written.
    """

    def __init__(self, field: bytes, capacity: int) -> None:
        self.field = field
        self.summaries = {"used": Summary(capacity), "refused": Summary(capacity)}

    def add(self, people: Mapping[bytes, Person], **attributes: str) -> None:
        """Add the counts of clients since the last flush.

        Args:
            people: The clients, by digest.
            attributes: By the name of a summary, the attribute of a client that it counts.
        """
        for word, attribute in attributes.items():
            times = {
                digest: number
                for digest, person in people.items()
                if (number := getattr(person, attribute))
            }
            self.summaries[word].add(times, lambda digest: people[digest].name)

    def written(self) -> bytes:
        """Return both lists as JSON, each with the maximum count of a client that is not in it."""
        lists = {}
        for word, summary in self.summaries.items():
            rows: list[list[Any]] = [
                [one.digest, one.times, one.error, one.name] for one in summary.top(TOP + 1)
            ]
            least = summary.least
            if len(rows) > TOP:
                least = rows.pop()[1]
            lists[word] = [least, rows]
        return json.dumps(lists, separators=(",", ":")).encode()


def why_unwritable() -> StoreError | None:
    """Return why a process cannot write all statistics (None: it can).

    A trial write of each kind is made, which expires within a second.
    """
    writer = Writer()
    writer._process = b"trial"
    writer._number = Clock.time_ns()
    pending = Pending()
    for command, word in ((b"add", 1), (b"meet", b""), (b"mark", 0), (b"say", b"0")):
        pending.to(command, (b"trial:" + command, 1))[b"0"] = word
    writer._pending[SITE] = pending
    writer.write()
    return writer.error


class Writer:
    """Keeps counts until they are written.

    One thread at a time uses it.

    - `error`: the last error if some counts could not be written lately.
    """

    error: StoreError | None

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin without counts, for example in a child process."""
        self._process = uuid.uuid4().hex[:16].encode()
        self._number = 0
        self._pending: dict[str, Pending] = {}
        self._batches: dict[str, Pending] = {}  # Sent, and not answered yet.
        self.error = None
        self._refused_at = float("-inf")
        self._begin_hour(0)

    def _begin_hour(self, hour: int) -> None:
        """Drop names that are made at run time, and start the summaries of a new hour."""
        self._hour = hour
        self._known = {SITE: SITE}  # Whether a name counts by itself, or as `OTHER`.
        self._tops: dict[str, Top] = {}
        self._samples: dict[bytes, Sample] = {}  # By key.
        self._begin_minute(0)

    def _begin_minute(self, minute: int) -> None:
        self._minute = minute
        self._minute_tops: dict[str, Top] = {}
        for key in [key for key in self._samples if b":minute:" in key]:
            del self._samples[key]

    @property
    def is_empty(self) -> bool:
        return not self._pending and not self._batches

    def take(self, tables: Tables, failures: Mapping[str, int]) -> None:
        """Keep counts until they are written.

        Args:
            tables: The counts.
            failures: The number of requests for which Redis has failed, by kind.
        """
        if not tables.kinds and not failures:
            return
        totals = (TOTALS, HOURS_KEPT)
        site = self._of(SITE)
        for kind, number in failures.items():
            site.add(totals, b"E" + kind.encode(), number)
        if not tables.kinds:
            return
        if sum(map(len, self._pending.values())) > MAX_PENDING:
            dropped = sum(hits.number for counted, hits in tables.kinds.items() if counted[1])
            site.add((DROPPED, HOURS_KEPT), b"%d" % (int(time.time()) // DAY), dropped)
            return
        at = int(tables.began)
        if at // HOUR != self._hour:
            self._begin_hour(at // HOUR)
        if at // MINUTE != self._minute:
            self._begin_minute(at // MINUTE)
        details = _detail_buckets(b"", at)
        for (
            name,
            result,
            source,
            time_bucket,
            period,
            used,
            is_near,
            is_whole,
        ), hits in tables.kinds.items():
            number = hits.number
            letter = SOURCES.get(source, "").encode()
            took = b"t%b%d" % (letter, time_bucket)
            rule = self._of(name)
            pendings = []
            if result:
                pendings.append(rule)
                units = b"w"
                if result in FREE:
                    units = b"u"
                    self._count(rule, units, at, hits.units)
                rule.add(totals, units, hits.units)
                rule.add(totals, result.encode(), number)
            if is_near:
                self._count(rule, b"n", at, number)
                rule.add(totals, b"n", number)
            if is_whole:
                pendings.append(site)
                site.add(totals, took, number)
                site.add(totals, b"T" + letter, round(hits.seconds * 1e6))
            for pending in pendings:
                self._count(pending, result.encode(), at, number)
                if letter:
                    self._count(pending, b"S%b" % letter, at, number)
                    for bucket in details:
                        pending.add(bucket, took, number)
            if used >= 0:
                for bucket in details:
                    rule.add(bucket, b"U%d:%d" % (period, used), number)
        for (minute, result), number in tables.corrections.items():
            self._count(site, result.encode(), minute * MINUTE, number)
        self._take_people(tables, at)

    def _count(self, pending: Pending, word: bytes, at: int, number: int) -> None:
        """Add a number, which may be negative, to the counts of a moment."""
        minutes = (b"more:%d" % (at // HOUR), MORE_KEPT)
        if word.decode() in LABELS:
            minutes = (b"minutes:%d" % (at // HOUR), MINUTES_KEPT)
        pending.add(minutes, b"%b%02d" % (word, at % HOUR // MINUTE), number)
        hours = (b"hours:%d" % (at // DAY), HOURS_KEPT)
        pending.add(hours, b"%b%02d" % (word, at % DAY // HOUR), number)

    def forget(self) -> None:
        """Drop all clients from memory.

        Lists that were written are kept, because they contain other clients as well.
        """
        self._tops.clear()
        self._minute_tops.clear()
        self._samples.clear()
        for pending in (*self._pending.values(), *self._batches.values()):
            pending.writes = {to: words for to, words in pending.writes.items() if to[0] == b"add"}

    def _take_people(self, tables: Tables, at: int) -> None:
        by_name: dict[str, dict[bytes, Person]] = {}
        marks: dict[tuple[str, int], dict[bytes, int]] = {}
        for (given, period, digest), person in tables.people.items():
            name = self._counted_as(given)
            of = marks.setdefault((name, period), {})
            of[digest] = max(person.mark, of.get(digest, 0))
            if person.allowed or person.refused:
                by_name.setdefault(name, {})[digest] = person
        for (name, period), of in marks.items():
            for bucket in _detail_buckets(b"marks:%d:" % period, at):
                news = self._samples.setdefault(key_of(name, bucket[0]), Sample()).note(of)
                if news:
                    self._of(name).to(b"mark", bucket).update(news)
        if sum(map(len, self._samples.values())) > MAX_MARKS:
            self._samples.clear()
        stopped: dict[bytes, Person] = {}
        for name, people in by_name.items():
            pending = self._of(name)
            clients = {digest: person for digest, person in people.items() if person.is_client}
            refused = {digest: b"" for digest, person in clients.items() if person.refused}
            if refused:
                for bucket in _detail_buckets(b"refused:", at):
                    pending.to(b"meet", bucket).update(refused)
            self._take_shadow(pending, people)
            self._take_top(name, clients, at, used="units", refused="refused")
            for digest, person in clients.items():
                if not person.stopped:
                    continue
                if digest in stopped:
                    person.stopped += stopped[digest].stopped
                stopped[digest] = person
        if stopped:
            self._take_top(SITE, stopped, at, refused="stopped")

    def _take_top(
        self, name: str, clients: Mapping[bytes, Person], at: int, **attributes: str
    ) -> None:
        pending = self._of(name)
        for tops, bucket in (
            (self._minute_tops, (b"top:minute:%d" % (at // MINUTE), DETAILS_KEPT)),
            (self._tops, (b"top:%d" % (at // HOUR), TOP_KEPT)),
        ):
            top = self._top(tops, name)
            top.add(clients, **attributes)
            pending.to(b"say", bucket)[top.field] = top.written()

    def _top(self, tops: dict[str, Top], name: str) -> Top:
        if name not in tops:
            is_large = name == SITE or len(tops) < MAX_SUMMARIES
            self._number += 1
            field = b"%b-%d" % (self._process, self._number)
            tops[name] = Top(field, CAPACITY if is_large else SMALL_CAPACITY)
        return tops[name]

    def _take_shadow(self, pending: Pending, people: Mapping[bytes, Person]) -> None:
        versions: dict[int, bytes] = {}
        for digest, person in people.items():
            rule = person.rule
            if rule is None:
                continue
            if id(rule) not in versions:
                versions[id(rule)] = b"version:" + version_of(rule.given or {}).encode()
            version = versions[id(rule)]
            pending.add((version, VERSIONS_KEPT), b"seen", person.allowed + person.refused)
            pending.add((version, VERSIONS_KEPT), b"refused", person.refused)
            pending.to(b"meet", (version + b":people", VERSIONS_KEPT))[digest] = b""
            if person.refused:
                pending.to(b"meet", (version + b":refused", VERSIONS_KEPT))[digest] = b""

    def _counted_as(self, name: str) -> str:
        name = shortened(name)
        if name in self._known:
            return self._known[name]
        if name not in self._pending and len(self._pending) > MAX_NAMES:
            return OTHER
        return name

    def _of(self, name: str) -> Pending:
        return self._pending.setdefault(self._counted_as(name), Pending())

    def write(self, patience: Patience | None = None) -> bool:
        """Write all counts, and return whether none are left.

        A batch without a reply, which may have been written, is sent again with the same number,
        and counts once. A failure of one name does not delay the others.
        """
        store = get_store(background=True)
        failures = 0
        failed: StoreError | None = None
        try:
            self._note_names(store, patience)
        except StoreError as error:
            failures = 1
            failed = error
        began = Clock.monotonic()
        names = [
            name for name in self._pending if name in self._known and name not in self._batches
        ]
        # First those that have not failed, or not lately; the whole site last.
        for name in sorted([*names, *self._batches], key=lambda name: name == SITE):
            if failures >= MAX_FAILURES or Clock.monotonic() - began > ROUND_SECONDS:
                break
            try:
                while (batch := self._next_batch(name)) is not None:
                    arguments = batch.arguments(name, self._process)
                    for problem in store.run(WRITE, *arguments, patience):
                        self.error = StoreError(problem.decode(errors="replace"))
                        self._refused_at = Clock.monotonic()
                    del self._batches[name]
            except StoreError as error:
                failures += 1
                failed = error
                self._batches[name] = self._batches.pop(name)
        if failed is not None or Clock.monotonic() - self._refused_at > STEADY_SECONDS:
            self.error = failed
        return self.is_empty

    def _next_batch(self, name: str) -> Pending | None:
        """Return the batch that has failed before, or the counts since then as a new one."""
        if name not in self._batches and name in self._pending:
            self._number += 1
            batch = self._batches[name] = self._pending.pop(name)
            batch.number = self._number
        return self._batches.get(name)

    def _note_names(self, store: Store, patience: Patience | None) -> None:
        """Note each name once an hour.

        Names for which there is no room are counted together.
        """
        durable = known_call_sites.durable
        # Durable names come first; the name of all others needs no room, and comes last.
        news = self._pending.keys() - self._known.keys()
        names = sorted(news, key=lambda name: (name not in durable, name == OTHER))
        if not names:
            return
        arguments: list[bytes | int] = [
            int(time.time()) // HOUR,
            HOURS_KEPT // HOUR,
            MAX_NAMES,
            OTHER.encode(),
            len(durable & news),
            *[name.encode("utf-8", "surrogatepass") for name in names],
        ]
        keys = [key_of(SITE, b"names"), key_of(SITE, b"durable")]
        noted = store.run(NOTE, keys, _encode(arguments), patience)
        for name, has_room in zip(names, noted, strict=True):
            self._known[name] = name if has_room else OTHER
            if not has_room:
                self._known[OTHER] = OTHER
                self._of(OTHER).merge(self._pending.pop(name))


def _detail_buckets(prefix: bytes, at: int) -> Sequence[Bucket]:
    """Return the buckets of a moment that are kept by minute, by hour and by day."""
    return (
        (b"%bminute:%d" % (prefix, at // MINUTE), DETAILS_KEPT),
        (b"%bhour:%d" % (prefix, at // HOUR), MINUTES_KEPT),
        (b"%bday:%d" % (prefix, at // DAY), HOURS_KEPT),
    )
