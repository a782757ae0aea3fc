"""Write counts to Redis: for each name, one call of the script a second.

A batch counts exactly once, however often it is sent. Counts that cannot be written are kept, up to
a bound.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...exceptions import StoreError
from ...limits import program
from ...limits.limit import shortened
from ...process import Clock
from ...store import Deadline, Store, get_store
from .clients import CAPACITY, Person, Top
from .counters import (
    BATCH_KEPT,
    DAY,
    DROPPED,
    FAILED,
    FREE,
    HOUR,
    HOURS_KEPT,
    MAX_NAMES,
    MINUTE,
    MINUTES_KEPT,
    OTHER,
    SITE,
    SOURCES,
    TOP_KEPT,
    TOTALS,
    VERSIONS_KEPT,
    key_of,
    version_of,
)

WRITE = program.Program.of(program.source("contrib/statistics/write"))
NOTE = program.Program.of(program.source("contrib/statistics/note"))
MAX_PENDING = 100_000
"""Numbers that are kept while nothing can be written, about. Beyond, requests are only counted as
dropped.
"""
MAX_SUMMARIES = 50
"""Number of names with a full summary of clients in a process, of up to half a megabyte each.
"""
SMALL_CAPACITY = 64
"""Of the summaries of the others."""
ROUND_SECONDS = 5.0
"""After this time, the remaining names have their turn a second later."""

Bucket = tuple[bytes, int]
"""The end of a key, and for how many seconds it is kept."""
_TOTALS: Bucket = (TOTALS, HOURS_KEPT)


Kind = tuple[str, str, str, int, bool, bool]
"""What decisions have in common that are counted together: (name, result, source, time, is_near,
is_first).

- `name`: the rule or call site; `result`: see `results`; `source`: see `Decision`; `time`: the
  bucket of times that the decision took;
- `is_near`: it was allowed near the limit;
- `is_first`: the source and the time are also counted for the site, once for each decision.
"""


@dataclass(slots=True)
class Hits:
    """The number of decisions of one kind.

    - `units`: the units that they took, or requested if they were refused;
    - `seconds`: their total time.
    """

    number: int = 0
    units: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Tables:
    """The counts since one moment.

    - `began`: the moment, in seconds since 1970 (0: no counts);
    - `people`: the clients, by name and digest;
    - `requests`: the requests of the whole site, by result;
    - `waits`: those whose waiting time is known, by the bucket of that; `waited`: its sum.
    """

    began: float = 0.0
    kinds: dict[Kind, Hits] = field(default_factory=dict)
    people: dict[tuple[str, bytes], Person] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    waited: float = 0.0


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
        arguments: list[bytes | int] = [self.number, BATCH_KEPT]
        for (command, (suffix, kept)), words in self.writes.items():
            keys.append(key_of(name, suffix))
            parts = [*words]
            if command != b"meet":
                parts = [part for pair in words.items() for part in pair]
            arguments += [command, kept, len(parts), *parts]
        return keys, _encode(arguments)


def _encode(arguments: Iterable[bytes | int]) -> list[bytes]:
    return [part if isinstance(part, bytes) else b"%d" % part for part in arguments]


class Writer:
    """Keeps counts until they are written.

    One thread at a time uses it.

    - `error`: the last error if some counts could not be written by the last attempt.
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
        self._begin_hour(0)

    def _begin_hour(self, hour: int) -> None:
        """Drop names that are made at run time, and start the summaries of a new hour."""
        self._hour = hour
        self._known = {SITE: SITE}  # Whether a name counts by itself, or as `OTHER`.
        self._tops: dict[str, Top] = {}

    def take(
        self, tables: Tables, failures: Mapping[str, int], failed_rules: Mapping[str, int]
    ) -> None:
        """Keep counts until they are written.

        Args:
            tables: The counts.
            failures: The number of requests for which Redis has failed, by kind.
            failed_rules: How often each rule could not be applied to a request.
        """
        if not (tables.began or failures or failed_rules):
            return
        site = self._of(SITE)
        for failure, number in failures.items():
            site.add(_TOTALS, b"E" + failure.encode(), number)
        if sum(map(len, self._pending.values())) > MAX_PENDING:
            dropped = sum(hits.number for hits in tables.kinds.values())
            site.add((DROPPED, HOURS_KEPT), b"%d" % (int(time.time()) // DAY), dropped)
            return
        at = int(tables.began or time.time())
        if at // HOUR != self._hour:
            self._begin_hour(at // HOUR)
        for name, number in failed_rules.items():
            self._count(self._of(name), FAILED, at, number)
        for result, number in tables.requests.items():
            self._count(site, result, at, number)
        waits = (b"waits:%d" % (at // DAY), HOURS_KEPT)
        for bucket, number in tables.waits.items():
            site.add(_TOTALS, b"q%d" % bucket, number)
            site.add(waits, b"%d%02d" % (bucket, at % DAY // HOUR), number)
        site.add(_TOTALS, b"Q", round(tables.waited * 1e6))
        times = (b"times:%d" % (at // DAY), HOURS_KEPT)
        for counted, hits in tables.kinds.items():
            name, result, source, time_bucket, is_near, is_first = counted
            number = hits.number
            letter = SOURCES[source]
            rule = self._of(name)
            rule.add(_TOTALS, b"u" if result in FREE else b"w", hits.units)
            if is_near:
                rule.add(_TOTALS, b"n", number)
            self._count(rule, result, at, number)
            pendings = [rule]
            if is_first:
                pendings.append(site)
                took = b"t%b%d" % (letter.encode(), time_bucket)
                site.add(_TOTALS, took, number)
                site.add(_TOTALS, b"T" + letter.encode(), round(hits.seconds * 1e6))
            for pending in pendings:
                self._count(pending, f"S{letter}", at, number)
                pending.add(times, b"%d%02d" % (time_bucket, at % DAY // HOUR), number)
        self._take_people(tables, at)

    def _count(self, pending: Pending, word: str, at: int, number: int) -> None:
        """Add a number to the counts of a moment, and to the totals."""
        pending.add(_TOTALS, word.encode(), number)
        minutes = (b"minutes:%d" % (at // HOUR), MINUTES_KEPT)
        pending.add(minutes, b"%b%02d" % (word.encode(), at % HOUR // MINUTE), number)
        hours = (b"hours:%d" % (at // DAY), HOURS_KEPT)
        pending.add(hours, b"%b%02d" % (word.encode(), at % DAY // HOUR), number)

    def forget(self) -> None:
        """Drop all clients from memory.

        Lists that were written are kept, because they contain other clients as well.
        """
        self._tops.clear()
        for pending in (*self._pending.values(), *self._batches.values()):
            pending.writes = {to: words for to, words in pending.writes.items() if to[0] == b"add"}

    def _take_people(self, tables: Tables, at: int) -> None:
        by_name: dict[str, dict[bytes, Person]] = {}
        for (name, digest), person in tables.people.items():
            by_name.setdefault(self._counted_as(name), {})[digest] = person
        site: dict[bytes, Person] = {}
        for name, people in by_name.items():
            self._take_shadow(self._of(name), people)
            clients = {digest: person for digest, person in people.items() if person.is_client}
            self._take_top(name, clients, at, used="units", refused="refused")
            for digest, person in clients.items():
                other = site.get(digest)
                if other is not None:
                    person.stopped += other.stopped
                    person.units = max(person.units, other.units)
                site[digest] = person
        if site:
            self._take_top(SITE, site, at, used="units", refused="stopped")

    def _take_top(
        self, name: str, clients: Mapping[bytes, Person], at: int, **attributes: str
    ) -> None:
        if name not in self._tops:
            is_large = name == SITE or len(self._tops) < MAX_SUMMARIES
            self._number += 1
            field = b"%b-%d" % (self._process, self._number)
            self._tops[name] = Top(field, CAPACITY if is_large else SMALL_CAPACITY)
        top = self._tops[name]
        top.add(clients, **attributes)
        bucket = (b"top:%d" % (at // HOUR), TOP_KEPT)
        self._of(name).to(b"say", bucket)[top.field] = top.written()

    def _take_shadow(self, pending: Pending, people: Mapping[bytes, Person]) -> None:
        versions: dict[int, bytes] = {}
        for digest, person in people.items():
            rule = person.rule
            if rule is None:
                continue
            if id(rule) not in versions:
                versions[id(rule)] = b"version:" + version_of(rule.spec).encode()
            version = versions[id(rule)]
            pending.add((version, VERSIONS_KEPT), b"seen", person.allowed + person.refused)
            pending.add((version, VERSIONS_KEPT), b"refused", person.refused)
            pending.to(b"meet", (version + b":people", VERSIONS_KEPT))[digest] = b""
            if person.refused:
                pending.to(b"meet", (version + b":refused", VERSIONS_KEPT))[digest] = b""

    def _counted_as(self, name: str) -> str:
        name = shortened(name)
        if name not in self._known and name not in self._pending and len(self._pending) > MAX_NAMES:
            return OTHER
        return self._known.get(name, name)

    def _of(self, name: str) -> Pending:
        return self._pending.setdefault(self._counted_as(name), Pending())

    def write(self, deadline: Deadline | None = None) -> bool:
        """Write all counts, and return whether none are left.

        A batch without a reply, which may have been written, is sent again with the same number,
        and counts once. After an error, the other names have their turn, up to a time.
        """
        store = get_store(background=True)
        end = Clock.monotonic() + ROUND_SECONDS
        self.error = None
        try:
            self._note_names(store, deadline)
        except StoreError as error:
            self.error = error
        names = [*(self._pending.keys() & self._known.keys() - self._batches.keys())]
        # First those that have not failed, or not lately; the whole site last.
        for name in sorted([*names, *self._batches], key=lambda name: name == SITE):
            if Clock.monotonic() > end:
                break
            try:
                self._write_name(store, name, deadline)
            except StoreError as error:
                self.error = error
                self._batches[name] = self._batches.pop(name)
        return not self._pending and not self._batches

    def _write_name(self, store: Store, name: str, deadline: Deadline | None) -> None:
        """Write the batch that has failed before, and the counts since then as a new one."""
        while name in self._batches or name in self._pending:
            if name not in self._batches:
                self._number += 1
                self._batches[name] = self._pending.pop(name)
                self._batches[name].number = self._number
            arguments = self._batches[name].arguments(name, self._process)
            for problem in store.run(WRITE, *arguments, deadline):
                self.error = StoreError(problem.decode(errors="replace"))
            del self._batches[name]

    def _note_names(self, store: Store, deadline: Deadline | None) -> None:
        """Note each name once an hour.

        Names for which there is no room are counted together.
        """
        # The name of all others needs no room, and comes last.
        names = sorted(self._pending.keys() - self._known.keys(), key=lambda name: name == OTHER)
        if not names:
            return
        arguments: list[bytes | int] = [
            int(time.time()) // HOUR,
            HOURS_KEPT // HOUR,
            MAX_NAMES,
            OTHER.encode(),
            *[name.encode("utf-8", "surrogatepass") for name in names],
        ]
        noted = store.run(NOTE, [key_of(SITE, b"names")], _encode(arguments), deadline)
        for name, has_room in zip(names, noted, strict=True):
            self._known[name] = name if has_room else OTHER
            if not has_room:
                self._known[OTHER] = OTHER
                self._of(OTHER).merge(self._pending.pop(name))
