"""What was counted, on its way to Redis: each part exactly once, in scripts that are short enough for others not to
notice; what cannot be written is kept up to a bound."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..exceptions import StoreError
from ..limits import program
from ..process.bounded_map import BoundedMap
from ..store import Patience, get_store
from .keys import (
    DAY,
    DROPPED,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    MINUTES_KEPT,
    MOST_PLACES,
    OTHER,
    SITE,
    TOLD_KEPT,
    TOP_KEPT,
    TOTALS,
    VERSIONS_KEPT,
    key_of,
    site_key,
)  # fmt: skip
from .marks import SAMPLE, Sample
from .names import Name
from .results import FREE, LABELS, SOURCES
from .shadow import version_of
from .space_saving import CAPACITY, Summary

if TYPE_CHECKING:
    from .recorder import Person, Tables

SCRIPT = program.source("stats/write").encode()
NOTE_SCRIPT, JOIN_SCRIPT = (program.source(f"stats/{name}").encode() for name in ("note", "join"))
MOST_WORDS = 400
"""Words of one script: 200 fields of a hash."""
MOST_PENDING = 50_000
"""Fields that are kept while nothing can be written, and so many members of sets. Counts for which there is no field
are dropped, and how many is counted."""
MOST_SAMPLE = SAMPLE + SAMPLE // 2
"""Marks that there may be under one key: whoever finds more after a writing takes away those beyond the sample."""
MOST_MARKS = 100_000
"""Marks that a process remembers to have written; the others it may write again."""
STEADY_SECONDS = 60.0
"""For which nothing may have been refused before what was is said to be well: parts are written now and then."""
TOP = 100
"""Who used most and was refused most: so many of each process."""
MOST_SUMMARIES = 50
"""Rules of which a process knows who used most by whole summaries: each half a megabyte where very many come."""
MOST_LISTS = 16
"""Lists of one rule and hour that are kept apart, by process. Those of processes that have ended beyond are joined."""
ENDED = b"ended"
SMALL_CAPACITY = 64
"""Of the summaries of the others."""
MOST_KNOWN = 2000
"""Names that all processes together count apart."""
MOST_FAILURES, ROUND_SECONDS = 10, 5.0
"""Where so many names cannot be written, or that takes so long, the others have their turn a second later."""
_RESULTS = frozenset(letter.encode() for letter in LABELS)


@dataclass(slots=True)
class Chunk:
    """What one script writes of one name: its keys and its arguments. `places`: where the requests stand in these that
    are dropped where they are not written; `sent_at`: when it was sent first without an answer (monotonic; 0: never).
    """

    keys: list[bytes]
    arguments: list[bytes]
    places: list[int]
    sent_at: float = 0.0

    def counts(self, places: Iterable[int] | None = None) -> int:
        """How many requests it counts; by what stands at these places alone, as the script numbers them."""
        wanted = self.places if places is None else set(self.places).intersection(places)
        return sum(int(self.arguments[place]) for place in wanted)


class Top:
    """Who used most, and who was refused most, of one rule in one hour; and by what names they are shown. `field`:
    where that is written."""

    def __init__(self, field: bytes, capacity: int = CAPACITY) -> None:
        self.field = field
        self.used: Summary[bytes] = Summary(capacity)
        self.refused: Summary[bytes] = Summary(capacity)
        self.names: dict[bytes, Name] = {}

    def add(self, people: Sequence[Person]) -> None:
        """Count who came between two writings."""
        used: Counter[bytes] = Counter()
        refused: Counter[bytes] = Counter()
        for person in people:
            if person.units:
                used[person.digest] += person.units
            if person.refused:
                refused[person.digest] += person.refused
        dropped = [*self.used.add(used), *self.refused.add(refused)]
        for person in people:
            digest = person.digest
            if digest not in self.names and (digest in self.used or digest in self.refused):
                self.names[digest] = person.name
        for digest in dropped:
            if digest not in self.used and digest not in self.refused:
                self.names.pop(digest, None)

    def written(self) -> bytes:
        """As JSON: for each list how often anybody who is not in it can have come, and who is: digest, how often, the
        error of that, and the name."""
        lists: dict[str, Any] = {}
        for word, summary in (("used", self.used), ("refused", self.refused)):
            rows = summary.top(TOP + 1)
            least = rows[TOP][1].times if len(rows) > TOP else summary.least
            lists[word] = [least, [[digest.decode(), *of, self.names.get(digest, [])] for digest, of in rows[:TOP]]]
        return json.dumps(lists, separators=(",", ":")).encode()


def why_unwritable(patience: Patience | None = None) -> StoreError | None:
    """Why a process could write no statistics, or not all (None: it could). It is tried with something of each kind,
    which is taken away or goes away with the second."""
    writer, pending, store = Writer(), _Pending(), get_store(background=True)
    pending.add(b"trial:add", 1, b"a00", 0)
    pending.meet(b"trial:people", 1, b"0")
    pending.raise_marks(b"trial:marks", 1, {b"0": 0})
    pending.says[b"trial:say", 1] = {b"0": b"0"}
    names = [site_key(b"trial:" + word) for word in (b"names", b"places", b"durable")]
    try:
        store.execute(
            b"EVAL", NOTE_SCRIPT, b"3", *names, b"0", b"0", b"1", b"1", OTHER.encode(), b"1", b"0", patience=patience
        )
        for key in names:
            store.execute(b"DEL", key, patience=patience)
        for chunk in writer._made(SITE, pending):
            chunk.arguments[1] = b"1"  # Nobody sends it again.
            writer._send(store, chunk, patience)
    except StoreError as error:
        return error
    return writer.error


def joined(one: bytes, other: bytes) -> bytes:
    """Two lists as `Top.written` has them, together: who is in one of them may have come to the other as often as the
    last who is there.

    >>> joined(b'{"used":[1,[["a",5,0,[]]]]}', b'{"used":[0,[["a",2,1,[]],["b",3,0,[]]]]}')
    b'{"used":[1,[["a",7,1,[]],["b",4,1,[]]]],"refused":[0,[]]}'
    """
    lists: dict[str, Any] = {}
    for word in ("used", "refused"):
        pair = [listed(written, word) for written in (one, other)]
        rows: dict[str, list[Any]] = {}
        for (_, of), (absent, others) in (pair, pair[::-1]):
            there = {row[0] for row in others}
            for digest, times, error, name in of:
                more = 0 if digest in there else absent
                row = rows.setdefault(digest, [digest, 0, 0, name])
                row[1], row[2] = row[1] + times + more, row[2] + error + more
        ordered = sorted(rows.values(), key=lambda row: -row[1])
        least = max([pair[0][0] + pair[1][0], *[row[1] for row in ordered[TOP : TOP + 1]]])
        lists[word] = [least, ordered[:TOP]]
    return json.dumps(lists, separators=(",", ":")).encode()


def listed(written: bytes, word: str) -> tuple[int, list[list[Any]]]:
    """A list of `Top.written`: how often anybody who is not in it can have come, and who is. Empty where there is none,
    or where it is of another version, or somebody has written there by hand.

    >>> listed(b'{"used":[0,[["a",2,1,[["ip","::1"]]]]]}', "used"), listed(b'{"used":[0,[["a",2,1]]]}', "used")
    ((0, [['a', 2, 1, [('ip', '::1')]]]), (0, []))
    """
    try:
        least, rows = json.loads(written)[word]
        return int(least), [
            [str(row[0]), int(row[1]), int(row[2]), [(str(kind), str(value)) for kind, value in row[3]]] for row in rows
        ]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return 0, []


class _Pending:
    """What is to be written of one name: to each key what is added, who is added, whose marks are raised, and what is
    said."""

    __slots__ = ("adds", "marks", "people", "says")

    def __init__(self) -> None:
        self.adds: defaultdict[tuple[bytes, int], Counter[bytes]] = defaultdict(Counter)
        self.people: dict[tuple[bytes, int], set[bytes]] = {}
        self.marks: dict[tuple[bytes, int], dict[bytes, int]] = {}
        self.says: dict[tuple[bytes, int], dict[bytes, bytes]] = {}

    @property
    def fields(self) -> int:
        """How many numbers there are to be added."""
        return sum(map(len, self.adds.values()))

    @property
    def members(self) -> int:
        """How much there is of whom it is known by name."""
        return sum(len(words) for kind in (self.people, self.marks, self.says) for words in kind.values())

    def add(self, suffix: bytes, kept: int, field: bytes, number: int, *, is_full: bool = False) -> bool:
        """Add to a field; where that is full, to one that is there. Whether it was added."""
        numbers = self.adds[suffix, kept]
        if is_full and field not in numbers:
            return False
        numbers[field] += number
        return True

    def meet(self, suffix: bytes, kept: int, digest: bytes) -> None:
        self.people.setdefault((suffix, kept), set()).add(digest)

    def raise_marks(self, suffix: bytes, kept: int, marks: Mapping[bytes, int]) -> None:
        known = self.marks.setdefault((suffix, kept), {})
        for digest, mark in marks.items():
            known[digest] = max(mark, known.get(digest, 0))

    def take_in(self, other: _Pending) -> None:
        """Add what is pending of another name; who used most there is not told."""
        for (suffix, kept), numbers in other.adds.items():
            for field, number in numbers.items():
                self.add(suffix, kept, field, number)
        for (suffix, kept), digests in other.people.items():
            self.people.setdefault((suffix, kept), set()).update(digests)
        for (suffix, kept), marks in other.marks.items():
            self.raise_marks(suffix, kept, marks)

    def pieces(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """For each key, in pieces that are short enough: its suffix, and what a script is told of it."""
        for (suffix, kept), numbers in self.adds.items():
            words = [word for field, number in numbers.items() for word in (field, b"%d" % number)]
            yield from _cut(suffix, b"add", kept, words)
        for (suffix, kept), digests in self.people.items():
            yield from _cut(suffix, b"people", kept, list(digests))
        for (suffix, kept), marks in self.marks.items():
            words = [word for digest, mark in marks.items() for word in (b"%d" % mark, digest)]
            yield from _cut(suffix, b"marks", kept, words)
        for (suffix, kept), said in self.says.items():
            words = [word for pair in said.items() for word in pair]
            yield from _cut(suffix, b"say", kept, words)


def _cut(suffix: bytes, what: bytes, kept: int, words: list[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    for at in range(0, len(words), MOST_WORDS):
        some = words[at : at + MOST_WORDS]
        yield suffix, [what, b"%d" % kept, b"%d" % len(some), *some]


class Writer:
    """Keeps what was counted until it is written. One thread at a time uses it. `durable`: the names whose statistics
    are to be kept in the database, as limiters say; `error`: of what something could not be written lately (None:
    nothing failed)."""

    error: StoreError | None

    def __init__(self) -> None:
        self._versions: BoundedMap[str, tuple[Any, bytes]] = BoundedMap(1000)
        self.durable: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Begin with nothing, as another process."""
        self._process = uuid.uuid4().hex[:16].encode()
        self._number = 0
        self._pending: dict[str, _Pending] = {}
        self._chunks: dict[str, deque[Chunk]] = {}  # By name, those first that were not written least often.
        self._tops: dict[tuple[str, int], Top] = {}
        self._samples: dict[bytes, Sample] = {}  # By key, of the hour and the day that are going on.
        self._totals: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._noted: dict[str, int] = {}
        self._unknown: set[str] = set()
        self._hour = 0
        self._placed: set[str] = {SITE}  # Who has a place of its own in metrics.
        self.error, self._refused_at = None, float("-inf")

    @property
    def is_empty(self) -> bool:
        """Whether all is written."""
        return not self._pending and not self._chunks and not self._totals

    def take(self, tables: Tables) -> None:
        """Keep what was counted, to be written."""
        is_full = sum(pending.fields for pending in self._pending.values()) > MOST_PENDING
        at = int(tables.began)
        hour, day = at // HOUR, at // DAY
        if hour != self._hour:
            self._hour = hour
            self._forget_names()
            ends = b":hour:%d" % hour, b":day:%d" % day
            self._samples = {key: sample for key, sample in self._samples.items() if key.endswith(ends)}
        minute, hour_of_day = b"%02d" % (at % HOUR // MINUTE), b"%02d" % (at % DAY // HOUR)
        minutes, hours = (b"minutes:%d" % hour, MINUTES_KEPT), (b"hours:%d" % day, HOURS_KEPT)
        details = ((b"hour:%d" % hour, MINUTES_KEPT), (b"day:%d" % day, HOURS_KEPT))
        for (name, result, source, time_bucket, period, used, is_near, is_alone), entry in tables.kinds.items():
            number, units = entry
            name = self._named(name)
            letter = SOURCES.get(source, "").encode()
            self._add_totals(name, result, number, units, is_near=is_near)
            if is_alone or name == SITE:
                self._add_total(SITE, b"t%b%d" % (letter, time_bucket), number)

            def add(name: str, bucket: tuple[bytes, int], field: bytes, number: int) -> bool:
                return self._of(name).add(*bucket, field, number, is_full=is_full)

            for of in (name, SITE) if is_alone else (name,):
                if not result:
                    continue
                add(of, minutes, result.encode() + minute, number)
                if not add(of, hours, result.encode() + hour_of_day, number) and of != SITE:
                    self._drop(number)
                if letter:
                    add(of, hours, b"S" + letter + hour_of_day, number)
                for bucket in details if letter and time_bucket >= 0 else ():
                    add(of, bucket, b"t%b%d" % (letter, time_bucket), number)
            if result in FREE and units:
                add(name, hours, b"u" + hour_of_day, units)
            if result and is_near:
                add(name, hours, b"n" + hour_of_day, number)
            for bucket in details if used >= 0 else ():
                add(name, bucket, b"U%d:%d" % (period, used), number)
        for (minute_since_1970, result), number in tables.corrections.items():
            if number:
                self._correct(minute_since_1970 * MINUTE, result.encode(), number, is_full=is_full)
        for source, seconds in tables.seconds.items():
            self._add_total(SITE, b"T" + SOURCES.get(source, "").encode(), round(seconds * 1e6))
        if sum(pending.members for pending in self._pending.values()) <= MOST_PENDING:
            self._take_people(tables, hour, day)

    def _correct(self, at: int, result: bytes, number: int, *, is_full: bool) -> None:
        """Add to the requests of the whole site that were counted at that moment, or take from them."""
        pending = self._of(SITE)
        for bucket, kept, place in (
            (b"minutes:%d" % (at // HOUR), MINUTES_KEPT, at % HOUR // MINUTE),
            (b"hours:%d" % (at // DAY), HOURS_KEPT, at % DAY // HOUR),
        ):
            pending.add(bucket, kept, b"%b%02d" % (result, place), number, is_full=is_full)

    def take_failures(self, failures: Mapping[str, int]) -> None:
        """Keep how often Redis has failed requests, by kind."""
        for kind, number in failures.items():
            self._add_total(SITE, b"E" + kind.encode(), number)

    def _add_totals(self, name: str, result: str, number: int, units: int, *, is_near: bool) -> None:
        if name != SITE and result:
            self._add_total(name, result.encode(), number)
            if units:
                self._add_total(name, b"u" if result in FREE else b"w", units)
            if is_near:
                self._add_total(name, b"n", number)

    def _drop(self, number: int) -> None:
        """Count requests that are counted nowhere else."""
        if number:
            self._of(SITE).add(DROPPED, HOURS_KEPT, b"%d" % (int(time.time()) // DAY), number)

    def _add_total(self, name: str, field: bytes, number: int) -> None:
        self._totals[name][field] += number

    def _forget_names(self) -> None:
        """Names that are made up at run time leave their places to others; and others have become free in Redis."""
        since = int(time.time()) // MINUTE - HOUR // MINUTE
        self._noted = {name: minute for name, minute in self._noted.items() if minute >= since}
        self._placed.intersection_update({SITE, *self._noted})
        self._unknown.clear()

    def _take_people(self, tables: Tables, hour: int, day: int) -> None:
        by_name: dict[str, list[Person]] = {}
        marks: dict[tuple[str, int], dict[bytes, int]] = {}
        for given, person in tables.people:
            name = self._named(given)
            of = marks.setdefault((name, person.limit.rate.period_us), {})
            of[person.digest] = max(person.mark, of.get(person.digest, 0))
            if person.came:
                by_name.setdefault(name, []).append(person)
        for (name, period), of in marks.items():
            for suffix, kept in (
                (b"marks:%d:hour:%d" % (period, hour), MINUTES_KEPT),
                (b"marks:%d:day:%d" % (period, day), HOURS_KEPT),
            ):
                sample = self._samples.setdefault(key_of(name, suffix), Sample())
                news = {digest: mark for digest, mark in of.items() if sample.raises(digest, mark)}
                if news:
                    self._of(name).raise_marks(suffix, kept, news)
        self._forget_marks()
        for name, people in by_name.items():
            pending = self._of(name)
            for person in people:
                if person.refused and person.is_client:
                    pending.meet(b"refused:hour:%d" % hour, MINUTES_KEPT, person.digest)
                    pending.meet(b"refused:day:%d" % day, HOURS_KEPT, person.digest)
                if person.rule is not None:
                    self._take_shadow(pending, name, person)
            top = self._top(name, hour)
            top.add([person for person in people if person.is_client])
            pending.says[b"top:%d" % hour, TOP_KEPT] = {top.field: top.written()}

    def _forget_marks(self) -> None:
        marks = sum(map(len, self._samples.values()))
        if marks <= MOST_MARKS:
            return
        # First those of samples that are full: few who come are in these.
        for sample in sorted(self._samples.values(), key=lambda sample: not sample.is_full):
            marks -= len(sample)
            sample.forget()
            if marks <= MOST_MARKS // 2:
                return

    def _top(self, name: str, hour: int) -> Top:
        top = self._tops.get((name, hour))
        if top is None:
            # Those of hours that have gone by are written. Of one hour there is one, or its list would be there twice.
            self._tops = {key: of for key, of in self._tops.items() if abs(key[1] - hour) <= 1}
            of_hour = sum(key[1] == hour for key in self._tops)
            capacity = CAPACITY if of_hour < MOST_SUMMARIES else SMALL_CAPACITY
            self._number += 1
            top = self._tops[name, hour] = Top(b"%b-%d" % (self._process, self._number), capacity)
        return top

    def _take_shadow(self, pending: _Pending, name: str, person: Person) -> None:
        suffix = b"version:" + self._version(name, person.rule.given)
        pending.add(suffix, VERSIONS_KEPT, b"seen", person.came)
        pending.add(suffix, VERSIONS_KEPT, b"refused", person.refused)
        pending.meet(suffix + b":people", VERSIONS_KEPT, person.digest)
        if person.refused:
            pending.meet(suffix + b":refused", VERSIONS_KEPT, person.digest)

    def _version(self, name: str, given: Any) -> bytes:
        known = self._versions.get(name)
        if known is None or known[0] is not given:
            known = given, version_of(given or {}).encode()
            self._versions.put(name, known)
        return known[1]

    def _named(self, name: str) -> str:
        return OTHER if name in self._unknown else name

    def _of(self, name: str) -> _Pending:
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = _Pending()
        return pending

    def write(self, patience: Patience | None = None) -> bool:
        """Write all that is kept; whether that succeeded. What may have been written and was not answered is sent
        again with the same number, and counts once. What cannot be written of one name keeps back no other."""
        store, failures = get_store(background=True), 0
        failed: StoreError | None = None
        try:
            self._note_names(store, patience)
        except StoreError as error:
            failures, failed = 1, error
        self._place_totals()
        began = time.monotonic()
        # First those that have not failed; all together last, with what the others drop.
        noted = [name for name in self._pending if name not in self._chunks and (not name or name in self._noted)]
        noted.sort(key=lambda name: name == SITE)
        for name in [*noted, *self._chunks]:
            if failures >= MOST_FAILURES or time.monotonic() - began > ROUND_SECONDS:
                break
            try:
                self._write_name(name, store, patience)
            except StoreError as error:
                failures, failed = failures + 1, error
                self._chunks[name] = self._chunks.pop(name)  # The others first, next time.
        if failed is not None or time.monotonic() - self._refused_at > STEADY_SECONDS:
            self.error = failed
        return self.is_empty

    def end(self, patience: Patience | None = None) -> None:
        """Join the lists of this process, which ends, with others', where there are many: workers may come and go."""
        with suppress(StoreError):
            while self._tops:
                store = get_store(background=True)
                (name, hour), top = self._tops.popitem()
                key = key_of(name, b"top:%d" % hour)
                is_done = store.execute(b"HLEN", key, patience=patience) <= MOST_LISTS
                while not is_done:
                    ended = store.execute(b"HGET", key, ENDED, patience=patience) or b""
                    words = (ENDED, ended, joined(ended, top.written()), top.field)
                    is_done = store.execute(b"EVAL", JOIN_SCRIPT, b"1", key, *words, patience=patience)

    def _write_name(self, name: str, store: Any, patience: Patience | None) -> None:
        for _ in range(2):  # What has failed before, and what has come since.
            if name not in self._chunks:
                if name not in self._pending:
                    return
                self._chunks[name] = deque(self._made(name, self._pending.pop(name)))
            self._write_chunks(self._chunks[name], store, patience)
            del self._chunks[name]

    def _write_chunks(self, chunks: deque[Chunk], store: Any, patience: Patience | None) -> None:
        while chunks:
            chunk = chunks[0]
            if chunk.sent_at and time.monotonic() - chunk.sent_at > TOLD_KEPT - MINUTE:
                # Redis does not know any more whether it has it: rather not at all than twice.
                chunks.popleft()
                self._drop(chunk.counts())
                continue
            crowded = self._send(store, chunk, patience)
            chunks.popleft()
            for key in crowded:
                self._trim(store, key, patience)

    def _made(self, name: str, pending: _Pending) -> Iterator[Chunk]:
        """The chunks of one name, each with as many pieces as fit."""
        keys: list[bytes] = []
        words: list[bytes] = []
        places: list[int] = []
        for suffix, told in pending.pieces():
            if keys and len(words) + len(told) > MOST_WORDS:
                yield self._chunk(name, keys, words, places)
                keys, words, places = [], [], []
            keys.append(key_of(name, suffix))
            first = 3 + len(words) + 3  # Three words go before all, and three before what is added.
            words += told
            if (name and suffix.startswith(b"hours:")) or suffix == DROPPED:
                fields = enumerate(told[3::2])
                places += [first + 2 * at + 1 for at, field in fields if suffix == DROPPED or field[:-2] in _RESULTS]
        if keys:
            yield self._chunk(name, keys, words, places)

    def _chunk(self, name: str, keys: list[bytes], words: list[bytes], places: list[int]) -> Chunk:
        self._number += 1
        told = key_of(name, b"told:" + self._process)
        head = [b"%d" % self._number, b"%d" % TOLD_KEPT, b"%d" % MOST_SAMPLE]
        return Chunk([told, *keys], [*head, *words], places)

    def _send(self, store: Any, chunk: Chunk, patience: Patience | None) -> list[bytes]:
        """Returns the keys of sets that have too many members."""
        try:
            count = b"%d" % len(chunk.keys)
            told = store.execute(b"EVAL", SCRIPT, count, *chunk.keys, *chunk.arguments, patience=patience)
        except StoreError as error:
            if not error.was_answered:
                chunk.sent_at = chunk.sent_at or time.monotonic()
            raise
        for problem in (word for word in told if isinstance(word, bytes)):
            self._refuse(StoreError(problem.decode(errors="replace")))
        numbers = [word for word in told if isinstance(word, int)]
        self._drop(chunk.counts(number for number in numbers if number > 0))
        return [chunk.keys[-number - 1] for number in numbers if number < 0]

    def _refuse(self, error: StoreError) -> None:
        self.error, self._refused_at = error, time.monotonic()

    def _trim(self, store: Any, key: bytes, patience: Patience | None) -> None:
        """Take away marks beyond the sample. One more stays, which says that there were others."""
        try:
            members = sorted(store.execute(b"ZRANGE", key, b"0", b"-1", patience=patience))
            beyond = members[SAMPLE + 1 :]
            for at in range(0, len(beyond), MOST_WORDS):
                store.execute(b"ZREM", key, *beyond[at : at + MOST_WORDS], patience=patience)
        except StoreError as error:
            self._refuse(error)  # Whoever writes there next tries it again.
            return
        if beyond and key in self._samples:
            self._samples[key].end_at(members[SAMPLE])

    def _note_names(self, store: Any, patience: Patience | None) -> None:
        """Note once a minute of each name that it counts. Names for which there is no room are counted together."""
        now = int(time.time())
        hour, minute = now // HOUR, now // MINUTE
        names = [name for name in self._pending if name and self._noted.get(name) != minute]
        names.sort(key=lambda name: name not in self.durable)
        for at in range(0, len(names), MOST_WORDS // 2):
            some = names[at : at + MOST_WORDS // 2]
            given = [name.encode("utf-8", "surrogatepass") for name in some]
            most = (b"%d" % MOST_KNOWN, b"%d" % MOST_PLACES)
            limits = (b"%d" % hour, b"%d" % (HOURS_KEPT // HOUR), *most, OTHER.encode())
            durable = b"%d" % sum(name in self.durable for name in some)
            keys = [site_key(word) for word in (b"names", b"places", b"durable")]
            arguments = (b"3", *keys, *limits, durable, *given)
            noted = store.execute(b"EVAL", NOTE_SCRIPT, *arguments, patience=patience)
            self._noted.update(dict.fromkeys(some, minute))
            for name, place in zip(some, noted, strict=True):
                if place == 2:
                    self._placed.add(name)
                else:
                    self._placed.discard(name)
                if not place:
                    self._unknown.add(name)
                    self._of(OTHER).take_in(self._pending.pop(name))
                    self._noted[OTHER] = minute

    def _place_totals(self) -> None:
        """Put what is to be added to totals where it belongs, once the name is noted: to the name's own,
        where it has a place in metrics, else to those of all others. Both only grow."""
        for name in list(self._totals):
            if name and name not in self._noted:
                continue
            to, mark = (name, b"") if name in self._placed else (SITE, b"o")
            for field, number in self._totals.pop(name).items():
                self._of(to).add(TOTALS, HOURS_KEPT, mark + field, number)
