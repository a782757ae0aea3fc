"""Counts every decision in the process.

`engine/decide` calls the recorder once for each decision, whatever requested it and whatever
decided it. Counts are written once a second (`writing`), so counting costs a decision no round
trip, and one percent of its time. A killed process loses its last second of statistics, but no
count of a limit.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock

from ...conf import conf
from ...engine.decided_charge import DecidedCharge
from ...exceptions import StoreError
from ...identity.names import Name, is_short, shown
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...limits.limit import shortened
from ...process.clock import Clock
from ...process.forks import renew_after_fork
from ...rules.rule import Rule
from ...store import FLUSH_SECONDS, Patience, failures, flusher, get_store
from .buckets import TIME_BOUNDS, units_bucket
from .keys import MINUTE, OTHER
from .results import ALLOWED, FAILED, FREE, SHADOW, result_of, results_of
from .writing import Writer

NEAR = 0.8
"""From this share of a limit on, an allowed hit is near it."""
MAX_QUEUED = 64
"""Decisions that wait to be counted; whichever adds one more counts them. Few, so that they are
still in the processor's caches then, and that what they hold of requests is little.
"""
MAX_KINDS = 100_000
"""Maximum number of kinds between two flushes. Further names, which may be made at run time, are
counted as `OTHER`.
"""
MAX_PEOPLE = 10_000
"""Maximum number of clients between two flushes. Further ones are not listed."""

Kind = tuple[str, str, str, int, int, int, bool, bool]
"""What hits have in common that are counted together: (name, result, source, time, period, used,
is_near, is_whole).

- `name`: the rule or call site; `result`: see `results`, empty for a further limit of a rule that
  was counted already; `source`: see `Decision`; `time`: the bucket of times that the decision took
  (-1: there was none); `period`: that of the limit, in microseconds; `used`: the bucket of units
  that the hit found used, or would have used, itself among them (-1: no limit was asked);
- `is_near`: it was allowed near the limit; `is_whole`: the result is also that of the request,
  which is counted once for the site.
"""


@dataclass(slots=True)
class Hits:
    """The number of hits of one kind.

    - `units`: the units that they took, or requested if they were refused;
    - `seconds`: the total time of their decisions.
    """

    number: int = 0
    units: int = 0
    seconds: float = 0.0


class Person:
    """The counts of one client under one limit between two flushes.

    - `allowed`, `refused`: its requests, including refusals in shadow mode;
    - `stopped`: the refusals that are also counted for the whole site;
    - `units`: the units that it took;
    - `mark`: the maximum number of units that it used, or requested;
    - `is_client`: false for the count of a limiter without identities.
    """

    __slots__ = (
        "_identity",
        "_name",
        "allowed",
        "is_client",
        "mark",
        "refused",
        "rule",
        "stopped",
        "units",
    )

    def __init__(self, counted: DecidedCharge) -> None:
        identity = counted.identity
        self._identity = identity
        self._name: Name | None = None
        self.is_client = identity is not None
        # Only these have versions that are judged.
        self.rule: Rule | None = counted.rule if counted.charge.limit.mode == "shadow" else None
        if not is_short(identity):  # It is kept for a second, and may be as long as a request.
            self._name = shown(identity)
            self._identity = None
        self.allowed = self.refused = self.stopped = self.units = self.mark = 0

    @property
    def name(self) -> Name:
        if self._name is None:
            return shown(self._identity)
        return self._name


@dataclass(slots=True)
class Tables:
    """The counts since one moment.

    - `began`: the moment, in seconds since 1970 (0: no counts);
    - `people`: the clients, by name, period and digest;
    - `corrections`: by minute since 1970 and result, the number to add to the requests of the whole
      site, because `kinds` count a request once for each of its decisions.
    """

    began: float = 0.0
    kinds: dict[Kind, Hits] = field(default_factory=dict)
    people: dict[tuple[str, int, bytes], Person] = field(default_factory=dict)
    corrections: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class RequestCount:
    """How the whole site counts one request, which may have several decisions.

    - `result`: the result of the decisions so far (empty: none);
    - `is_refused`: whether one of them refused;
    - `minute`: the minute since 1970 in which the request is counted.
    """

    result: str = ""
    is_refused: bool = False
    minute: int = 0


Decided = tuple[
    Sequence[DecidedCharge], Decision, float, Sequence[DecidedCharge], RequestCount | None
]

_BUCKETS = tuple(map(units_bucket, range(4096)))
"""Looked up, not computed, for all but very large limits."""


class Recorder:
    """Counts decisions until they are written.

    A decision costs one append to a queue. The queue is counted by the next decision that finds
    many entries, or a second later.
    """

    _due_at = 0.0

    def __init__(self) -> None:
        self._writer = Writer()
        self._begin()
        renew_after_fork(self._begin)  # The parent writes what it counted.

    def _begin(self) -> None:
        self._lock = RLock()
        self._flushing = Lock()
        self._queue: deque[Decided] = deque()
        self._is_awaited = False
        self._tables = Tables()
        self._writer.begin()

    def add(
        self,
        charges: Sequence[DecidedCharge],
        decision: Decision,
        seconds: float,
        exempt: Sequence[DecidedCharge] = (),
        state: RequestState | None = None,
    ) -> None:
        """Count a decision: see `Extension.on_decision`."""
        request = None
        if state is not None:
            request = state.count = state.count or RequestCount()
        if self._tables.began and not flusher.is_running:
            self._flush_without_thread()
        queue = self._queue
        queue.append((charges, decision, seconds, exempt, request))
        if not self._is_awaited:  # Reset by `flush` before it looks at the queue.
            self._await_flush()
        if len(queue) >= MAX_QUEUED:
            self._count_queue()

    def add_failed(self, name: str) -> None:
        """Count that a rule could not be applied to a request."""
        with self._lock:
            self._await_flush()
            self._hits((name, FAILED, "", -1, 0, -1, False, False)).number += 1

    def _await_flush(self) -> None:
        self._tables.began = self._tables.began or time.time()
        self._is_awaited = flusher.start()

    def _flush_without_thread(self) -> None:
        """Write once a second during requests, if no thread can be started."""
        now = Clock.monotonic()
        if now >= self._due_at and not get_store().is_paused:
            self._due_at = now + FLUSH_SECONDS
            self.flush(Patience(conf.TIMEOUT))

    def _count_queue(self) -> None:
        with self._lock:
            tables = self._tables
            queue = self._queue
            tables.began = tables.began or time.time()
            kinds = tables.kinds
            people = tables.people
            minute = int(tables.began) // MINUTE
            for _ in range(len(queue)):
                charges, decision, seconds, exempt, request = queue.popleft()
                source = decision.source
                is_allowed = decision.allowed
                results: dict[str, str] = {}  # Of the names that are not counted yet.
                near: set[str] | None = None
                whole: str | None
                if len(charges) == 1 and not exempt:  # As nearly all are.
                    whole = absent = result_of(charges[0], source)
                else:
                    results, whole = results_of(charges, decision, exempt)
                    near = _names_near(charges)
                    absent = ""
                is_first = request is None or not request.is_refused
                if request is not None and whole:
                    if request.result:
                        self._count_again(request, whole, minute, is_refused=not is_allowed)
                    else:
                        request.result = whole
                        request.minute = minute
                        request.is_refused = not is_allowed
                time_bucket = bisect_left(TIME_BOUNDS, seconds)
                for counted in charges:
                    state = counted.state
                    if state.block is not None:
                        results.setdefault(counted.name, absent)
                        continue  # No limit was asked.
                    name = counted.name
                    charge = counted.charge
                    limit = charge.limit
                    cost = charge.cost
                    period = limit.rate.period_us
                    used = state.used
                    result = results.pop(name, absent) if results else absent
                    if not (is_allowed and state.allowed) and not (
                        limit.count_denied and state.counted_at
                    ):
                        used += cost  # It has wanted this number.
                    person = people.get((name, period, charge.digest)) or self._meet(
                        counted, period
                    )
                    if used > person.mark:
                        person.mark = used
                    is_near = False
                    if result in FREE:
                        is_near = used >= NEAR * limit.rate.limit if near is None else name in near
                        if cost > decision.granted:
                            cost = decision.granted
                        person.units += cost
                        person.allowed += 1
                    elif result:
                        person.refused += 1
                        if is_first and result == whole and result != SHADOW:
                            person.stopped += 1
                    used_bucket = _BUCKETS[used] if 0 <= used < 4096 else units_bucket(used)
                    is_whole = result == whole
                    if is_whole:
                        whole = None  # It is counted once.
                    kind = (
                        name,
                        result,
                        source,
                        time_bucket,
                        period,
                        used_bucket,
                        is_near,
                        is_whole,
                    )
                    hits = kinds.get(kind) or self._hits(kind)
                    hits.number += 1
                    hits.units += cost
                    hits.seconds += seconds
                while results:
                    name, result = results.popitem()
                    hits = self._hits(
                        (name, result, source, time_bucket, 0, -1, False, result == whole)
                    )
                    hits.number += 1
                    hits.seconds += seconds
                    if result == whole:
                        whole = None

    def _count_again(
        self, request: RequestCount, result: str, minute: int, *, is_refused: bool
    ) -> None:
        """Record the result of one more decision about the same request.

        The request remains counted once, in the minute of the first decision, with the result that
        one decision about all its limits would have had.
        """
        self._correct(minute, result, -1)  # As each decision is counted by itself.
        if is_refused or (not request.is_refused and request.result != ALLOWED):
            self._correct(request.minute, request.result, -1)
            self._correct(request.minute, result, 1)
            request.result = result
            request.is_refused = is_refused

    def _correct(self, minute: int, result: str, number: int) -> None:
        corrections = self._tables.corrections
        corrections[minute, result] = corrections.get((minute, result), 0) + number

    def _hits(self, kind: Kind) -> Hits:
        kinds = self._tables.kinds
        kind = (shortened(kind[0]), *kind[1:])
        if len(kinds) >= MAX_KINDS and kind not in kinds:
            kind = (OTHER, *kind[1:])
        return kinds.setdefault(kind, Hits())

    def _meet(self, counted: DecidedCharge, period: int) -> Person:
        people = self._tables.people
        person = Person(counted)
        if len(people) >= MAX_PEOPLE:
            return person  # Its numbers are dropped.
        return people.setdefault((shortened(counted.name), period, counted.charge.digest), person)

    def forget(self) -> None:
        """Drop unwritten counts of clients, because one of them is to be forgotten.

        Requests remain counted.
        """
        with self._flushing, self._lock:
            self._count_queue()
            self._tables.people.clear()
            self._writer.forget()

    @property
    def error(self) -> StoreError | None:
        """Return the last error if some counts could not be written lately."""
        return self._writer.error

    def flush(self, patience: Patience | None = None) -> bool:
        """Write the counts, unless another thread does that for longer than `patience`.

        Returns:
            Whether some counts are left, which are tried again a second later.
        """
        self._is_awaited = False
        acquire = self._flushing.acquire
        is_free = (
            acquire()
            if patience is None
            else patience.wait(lambda seconds: acquire(timeout=seconds))
        )
        if not is_free:
            return True
        try:
            with self._lock:
                self._count_queue()
                tables = self._tables
                self._tables = Tables()
            self._writer.take(tables, failures.take())
            return not self._writer.write(patience)
        finally:
            self._flushing.release()

    def flush_or_raise(self, last: Patience | None) -> bool:
        """Write the counts, or raise `StoreError`; a `Flush` of the flusher."""
        is_left = self.flush(last)
        if self.error is not None:
            raise self.error
        return is_left


def _names_near(charges: Sequence[DecidedCharge]) -> set[str]:
    return {
        counted.name
        for counted in charges
        if counted.state.used >= NEAR * counted.charge.limit.rate.limit
    }


recorder = Recorder()
flusher.add(recorder.flush_or_raise)
