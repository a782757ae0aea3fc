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
from functools import lru_cache
from typing import Any, NamedTuple

from ...exceptions import StoreError
from ...limits import program
from ...limits.limit import shortened
from ...process import Clock
from ...rules.rule import Rule
from ...store import Deadline, Store, get_store
from .clients import CAPACITY, ClientCount, Top
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

INCREMENT = b"increment"
SET = b"set"
OBSERVE = b"observe"
"""The operations of `write.lua`: on numbers and on values of a hash, and on a HyperLogLog."""
Bucket = tuple[bytes, int]
"""The end of a key, and for how many seconds it is kept."""
_TOTALS: Bucket = (TOTALS, HOURS_KEPT)


class Kind(NamedTuple):
    """What decisions have in common that are counted together.

    - `name`: the rule or call site;
    - `result`, `source`: see `counters` and `Decision`;
    - `time_bucket`: the bucket of the time that the decision took;
    - `is_near`: whether it was allowed near the limit;
    - `is_first`: whether the source and the time are also counted for the site, as they are once
      for each decision.
    """

    name: str
    result: str
    source: str
    time_bucket: int
    is_near: bool
    is_first: bool


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
    - `clients`: the counts of clients, by name and digest;
    - `requests`: the requests of the whole site, by result;
    - `waits`: those whose waiting time is known, by the bucket of that; `waited`: its sum.
    """

    began: float = 0.0
    kinds: dict[Kind, Hits] = field(default_factory=dict)
    clients: dict[tuple[str, bytes], ClientCount] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    waited: float = 0.0


class Pending:
    """The unwritten counts of one name.

    - `writes`: the fields and their numbers or values, by operation and bucket;
    - `number`: the number of the batch, once it has one.
    """

    __slots__ = ("number", "writes")

    def __init__(self) -> None:
        self.writes: dict[tuple[bytes, Bucket], dict[bytes, Any]] = {}
        self.number = 0

    def __len__(self) -> int:
        return sum(map(len, self.writes.values()))

    def fields(self, operation: bytes, bucket: Bucket) -> dict[bytes, Any]:
        """Return the fields that an operation writes to one key."""
        if (operation, bucket) not in self.writes:
            self.writes[operation, bucket] = Counter() if operation == INCREMENT else {}
        return self.writes[operation, bucket]

    def increment(self, bucket: Bucket, field: bytes, number: int) -> None:
        """Add to a field of a hash."""
        if number:
            self.fields(INCREMENT, bucket)[field] += number

    def merge(self, other: Pending) -> None:
        """Add the pending counts of another name."""
        for (operation, bucket), fields in other.writes.items():
            self.fields(operation, bucket).update(fields)  # A `Counter` adds.

    def drop_clients(self) -> None:
        """Drop all writes about single clients."""
        self.writes = {key: fields for key, fields in self.writes.items() if key[0] == INCREMENT}

    def build_arguments(self, name: str, process: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of `write.lua`, and its arguments, for the batch of a process."""
        keys = [key_of(name, b"batch:" + process)]
        arguments: list[bytes | int] = [self.number, BATCH_KEPT]
        for (operation, (suffix, kept)), fields in self.writes.items():
            keys.append(key_of(name, suffix))
            parts = list(fields)
            if operation != OBSERVE:
                parts = [part for pair in fields.items() for part in pair]
            arguments += [operation, kept, len(parts), *parts]
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
        self._recorded = {SITE: SITE}  # The name itself, or `OTHER` if there was no room for it.
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
        site = self._pending_for(SITE)
        for failure, number in failures.items():
            site.increment(_TOTALS, b"E" + failure.encode(), number)
        if sum(map(len, self._pending.values())) > MAX_PENDING:
            dropped = sum(hits.number for hits in tables.kinds.values())
            site.increment((DROPPED, HOURS_KEPT), b"%d" % (int(time.time()) // DAY), dropped)
            return
        at = int(tables.began or time.time())
        if at // HOUR != self._hour:
            self._begin_hour(at // HOUR)
        for name, number in failed_rules.items():
            self._add_result(self._pending_for(name), FAILED, at, number)
        self._take_requests(tables, at)
        self._take_kinds(tables, at)
        self._take_clients(tables, at)

    def _take_requests(self, tables: Tables, at: int) -> None:
        """Add the requests of the whole site, and their waiting times."""
        site = self._pending_for(SITE)
        for result, number in tables.requests.items():
            self._add_result(site, result, at, number)
        waits = (b"waits:%d" % (at // DAY), HOURS_KEPT)
        for bucket, number in tables.waits.items():
            site.increment(_TOTALS, b"q%d" % bucket, number)
            site.increment(waits, b"%d%02d" % (bucket, at % DAY // HOUR), number)
        site.increment(_TOTALS, b"Q", round(tables.waited * 1e6))

    def _take_kinds(self, tables: Tables, at: int) -> None:
        """Add the decisions under each name, and those of the whole site."""
        site = self._pending_for(SITE)
        times = (b"times:%d" % (at // DAY), HOURS_KEPT)
        for kind, hits in tables.kinds.items():
            letter = SOURCES[kind.source]
            rule = self._pending_for(kind.name)
            units_field = b"u" if kind.result in FREE else b"w"
            rule.increment(_TOTALS, units_field, hits.units)
            if kind.is_near:
                rule.increment(_TOTALS, b"n", hits.number)
            self._add_result(rule, kind.result, at, hits.number)
            pendings = [rule]
            if kind.is_first:
                pendings.append(site)
                time_field = b"t%b%d" % (letter.encode(), kind.time_bucket)
                site.increment(_TOTALS, time_field, hits.number)
                site.increment(_TOTALS, b"T" + letter.encode(), round(hits.seconds * 1e6))
            for pending in pendings:
                self._add_result(pending, f"S{letter}", at, hits.number)
                hour_field = b"%d%02d" % (kind.time_bucket, at % DAY // HOUR)
                pending.increment(times, hour_field, hits.number)

    def _add_result(self, pending: Pending, letters: str, at: int, number: int) -> None:
        """Add to a result or a source: in the minute and the hour of a moment, and in total."""
        word = letters.encode()
        pending.increment(_TOTALS, word, number)
        minutes = (b"minutes:%d" % (at // HOUR), MINUTES_KEPT)
        pending.increment(minutes, b"%b%02d" % (word, at % HOUR // MINUTE), number)
        hours = (b"hours:%d" % (at // DAY), HOURS_KEPT)
        pending.increment(hours, b"%b%02d" % (word, at % DAY // HOUR), number)

    def forget(self) -> None:
        """Drop all clients from memory.

        Lists that were written are kept, because they contain other clients as well.
        """
        self._tops.clear()
        for pending in (*self._pending.values(), *self._batches.values()):
            pending.drop_clients()

    def _take_clients(self, tables: Tables, at: int) -> None:
        """Add the clients to the lists of their names, and to those of the whole site."""
        clients_by_name: dict[str, dict[bytes, ClientCount]] = {}
        for (name, digest), client in tables.clients.items():
            clients_by_name.setdefault(self._counted_name(name), {})[digest] = client
        site: dict[bytes, ClientCount] = {}
        for name, counts in clients_by_name.items():
            self._add_shadow_counts(self._pending_for(name), counts)
            clients = {digest: client for digest, client in counts.items() if client.is_client}
            self._update_top(name, clients, at, used="units", refused="refused")
            for digest, client in clients.items():
                other = site.get(digest)
                if other is not None:
                    client.stopped += other.stopped
                    client.units = max(client.units, other.units)
                site[digest] = client
        if site:
            self._update_top(SITE, site, at, used="units", refused="stopped")

    def _update_top(
        self, name: str, clients: Mapping[bytes, ClientCount], at: int, **attributes: str
    ) -> None:
        """Add clients to the lists of a name, see `Top.add`, and replace the stored lists.

        Names beyond the first `MAX_SUMMARIES` have short lists.
        """
        if name not in self._tops:
            is_large = name == SITE or len(self._tops) < MAX_SUMMARIES
            self._number += 1
            field = b"%b-%d" % (self._process, self._number)
            self._tops[name] = Top(field, CAPACITY if is_large else SMALL_CAPACITY)
        top = self._tops[name]
        top.add(clients, **attributes)
        bucket = (b"top:%d" % (at // HOUR), TOP_KEPT)
        self._pending_for(name).fields(SET, bucket)[top.field] = top.to_json()

    def _add_shadow_counts(self, pending: Pending, clients: Mapping[bytes, ClientCount]) -> None:
        """Add the requests under rules in shadow mode to those of the version of their rule."""
        for digest, client in clients.items():
            if client.rule is None:
                continue
            version = b"version:" + _version_of_rule(client.rule).encode()
            pending.increment((version, VERSIONS_KEPT), b"seen", client.allowed + client.refused)
            pending.increment((version, VERSIONS_KEPT), b"refused", client.refused)
            pending.fields(OBSERVE, (version + b":people", VERSIONS_KEPT))[digest] = b""
            if client.refused:
                pending.fields(OBSERVE, (version + b":refused", VERSIONS_KEPT))[digest] = b""

    def _counted_name(self, name: str) -> str:
        """Return the name under which a name is counted: itself, or `OTHER` without room."""
        short_name = shortened(name)
        if short_name in self._recorded:
            return self._recorded[short_name]
        if short_name not in self._pending and len(self._pending) > MAX_NAMES:
            return OTHER
        return short_name

    def _pending_for(self, name: str) -> Pending:
        return self._pending.setdefault(self._counted_name(name), Pending())

    def write(self, deadline: Deadline | None = None) -> bool:
        """Write all counts, and return whether none are left.

        A batch without a reply, which may have been written, is sent again with the same number,
        and counts once. After an error, the other names have their turn, up to a time.
        """
        store = get_store(background=True)
        end = Clock.monotonic() + ROUND_SECONDS
        self.error = None
        try:
            self._record_names(store, deadline)
        except StoreError as error:
            self.error = error
        # First those that have not failed, or not lately; the whole site last.
        names = [name for name in self._pending if name in self._recorded]
        names = [name for name in names if name not in self._batches]
        for name in sorted([*names, *self._batches], key=lambda name: name == SITE):
            if Clock.monotonic() > end:
                break
            try:
                self._write_name(store, name, deadline)
            except StoreError as error:
                self.error = error
                self._batches[name] = self._batches.pop(name)  # Its next turn is the last one.
        return not self._pending and not self._batches

    def _write_name(self, store: Store, name: str, deadline: Deadline | None) -> None:
        """Write the batch that has failed before, and the counts since then as a new one."""
        while name in self._batches or name in self._pending:
            if name not in self._batches:
                self._number += 1
                self._batches[name] = self._pending.pop(name)
                self._batches[name].number = self._number
            keys, arguments = self._batches[name].build_arguments(name, self._process)
            for problem in store.run(WRITE, keys, arguments, deadline):
                self.error = StoreError(problem.decode(errors="replace"))
            del self._batches[name]

    def _record_names(self, store: Store, deadline: Deadline | None) -> None:
        """Record in Redis that names were counted, once an hour.

        Names for which there is no room are counted together.
        """
        # The name of all others needs no room, and comes last.
        names = sorted(self._pending.keys() - self._recorded.keys(), key=lambda name: name == OTHER)
        if not names:
            return
        arguments: list[bytes | int] = [
            int(time.time()) // HOUR,
            HOURS_KEPT // HOUR,
            MAX_NAMES,
            OTHER.encode(),
            *[name.encode("utf-8", "surrogatepass") for name in names],
        ]
        replies = store.run(NOTE, [key_of(SITE, b"names")], _encode(arguments), deadline)
        for name, has_room in zip(names, replies, strict=True):
            if has_room:
                self._recorded[name] = name
            else:
                self._recorded[name] = self._recorded[OTHER] = OTHER
                self._pending_for(OTHER).merge(self._pending.pop(name))


@lru_cache(maxsize=64)
def _version_of_rule(rule: Rule) -> str:
    return version_of(rule.spec)
