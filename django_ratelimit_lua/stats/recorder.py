"""Every decision, counted in the process: one call at the end of `engine/decide`, whoever asked and whoever decided.

What is counted is written once a second (`writing`), so that counting costs a decision no trip, and a hundredth of
what a trip does. A process that is killed loses its last second of statistics, never a count of a limit.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..conf import conf
from ..exceptions import StoreError
from ..identity.request_state import RequestCount
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit, shortened
from ..limits.rate import LimitError
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import Patience, failures, get_store, last_patience
from .buckets import TIME_BOUNDS, units_bucket
from .keys import HOUR, MINUTE, OTHER, SITE
from .names import Name, is_short, shown
from .results import ALLOWED, BY_MODE, FAILED, FREE, Counted, results_of
from .writing import Writer

logger = logging.getLogger("django_ratelimit_lua")

FLUSH_SECONDS = 1.0
NEAR = 0.8
"""From this share of a limit on, an allowed hit is near it."""
MOST_NAMES = 1000
"""Rules and call sites that a process counts apart; the others are counted as `OTHER`."""
LONGEST_NAME = 200
"""Letters of a name that a database keeps."""
MOST_QUEUED = 64
"""Decisions that wait to be counted; who adds one more counts them. Few, so that they are still in the processor's
caches then, and that what they hold of requests is little."""
MOST_FULL = 10
"""Times that `MOST_PEOPLE` are kept between two writings, where no thread writes."""
MOST_PEOPLE = 20_000
"""Identities that are told apart between two writings."""

_ONLY_MARKS = ""
"""Stands in the place of a result where a request is counted already: by another rate of the same rule."""


Kind = tuple[str, str, str, int, int, int, bool, bool]
"""What hits have in common that are counted together: (name, result, source, time, period, used, is_near, is_alone).

- `name`: the rule or call site; `result`: see `results`; `source`: see `Decision`; `time`: the bucket of times that the
  decision took; `period`: that of the limit, in microseconds (0: none was asked); `used`: the bucket of units that the
  hit found used, or would have used, itself among them (-1: not known); `is_near`: it was allowed near the limit;
  `is_alone`: it was decided alone.
"""


class Person:
    """One identity under one limit, between two writings: how often it `came` and was `refused` (or would have been),
    the `units` it took, and its `mark`: the most that it had used, or wanted. All callers together are no client."""

    __slots__ = ("_identity", "_name", "came", "digest", "is_client", "limit", "mark", "refused", "rule", "units")

    def __init__(self, planned: Counted) -> None:
        identity = planned.identity
        self.limit, self.digest, *_ = planned.charge
        self._identity, self._name = identity, None
        self.is_client = identity is not None
        # Only these have versions that are judged.
        self.rule: Any = planned.rule if self.limit.mode == "shadow" else None
        if not is_short(identity):  # It is kept for a second, and may be as long as a request.
            self._name, self._identity = shown(identity), None
        self.came = self.refused = self.units = self.mark = 0

    @property
    def name(self) -> Name:
        """What is shown of it."""
        return shown(self._identity) if self._name is None else self._name


class Tables(NamedTuple):
    """What was counted from one moment on (seconds since 1970): of each kind how many hits, and the units that they
    took, or wanted where they were refused; how long decisions took together, by source, in seconds; and of which
    people, by name, and more than once where their limits differ.

    `corrections`: by minute since 1970 and result, what is added to the requests of the whole site, as `kinds` have a
    request once for each of its decisions.
    """

    began: float
    kinds: Mapping[Kind, Sequence[int]]
    seconds: Mapping[str, float]
    people: Sequence[tuple[str, Person]]
    corrections: Mapping[tuple[int, str], int] = MappingProxyType({})


Decided = tuple[Sequence[Counted], Decision, float, Sequence[Counted], RequestCount | None]


_BUCKETS = tuple(map(units_bucket, range(4096)))
"""Looked up, not computed, for all but very large limits."""


class _Hits:
    """How many hits of a limit had the same in common, what they took together, and how long."""

    __slots__ = ("number", "seconds", "units")

    def __init__(self) -> None:
        self.number, self.units, self.seconds = 0, 0, 0.0


class _Alone:
    """A limit whose hits are decided alone, as nearly all are: of these, only what is quick is done at once. `hits`: by
    whether it allowed, bucket of units, whether it is near, source, bucket of times."""

    __slots__ = ("hits", "limit", "name", "near", "results")

    def __init__(self, limit: Limit, name: str) -> None:
        self.limit, self.name, self.near = limit, name, NEAR * limit.rate.limit
        self.results = BY_MODE[limit.mode]
        self.hits: dict[tuple[bool, int, bool, str, int], _Hits] = {}


class Companion(Protocol):
    """What is done with each flush, beside it."""

    def step(self) -> bool:
        """Do it; whether to come again. Raises `StoreError`."""

    def say_last(self, patience: Patience) -> None:
        """Do it as the process ends."""


class Recorder:
    """Counts decisions until they are written.

    What a decision pays for is one place in a queue. What is in the queue is counted by whoever finds many
    there, or a second later.
    """

    _due_at = 0.0

    def __init__(self) -> None:
        self._writer = Writer()
        self._companions: list[Companion] = []
        self._is_full_said = False
        meanwhile = "limits are decided all the same, and what was counted is kept, up to a bound"
        self._task = Task("statistics", self._step, meanwhile=meanwhile, delay=FLUSH_SECONDS, at_exit=self._say_last)
        self._begin()
        renew_after_fork(self._begin)  # The parent writes what it counted.

    def _begin(self) -> None:
        self._lock, self._flushing = RLock(), Lock()
        self._forget_names()
        self._queue: deque[Decided] = deque()
        self._is_awaited = False
        self._renew()
        self._writer.begin()

    def _renew(self) -> None:
        self._began = 0.0
        self._alone: dict[int, _Alone] = {}  # By the id of the limit.
        self._kinds: dict[Kind, list[int]] = {}
        self._seconds: dict[str, float] = {}  # Of decisions that are not plain, by source.
        self._corrections: dict[tuple[int, str], int] = {}
        self._people: dict[tuple[str, int, bytes], Person] = {}  # By name, id of the limit and digest.
        self._full: deque[dict[tuple[str, int, bytes], Person]] = deque(maxlen=MOST_FULL)

    @property
    def is_riding(self) -> bool:
        """Whether a thread flushes, once a second."""
        return self._task.is_running

    def ride(self, companion: Companion) -> bool:
        """Have that done with each flush, too, also where no decision is counted; whether a thread does."""
        if companion not in self._companions:
            self._companions.append(companion)
        return self._task.start()  # Also if it runs: it may be about to end.

    def add(
        self,
        planned: Sequence[Counted],
        decision: Decision,
        seconds: float,
        exempt: Sequence[Counted] = (),
        request: RequestCount | None = None,
    ) -> None:
        """Count a decision about hits, in the order of its limits, that took so many seconds. `exempt`: the charges
        that an override has taken out. `request`: the request that other decisions may be about as well; None: this is
        the only one."""
        if not conf.STATISTICS:
            return
        if self._began and not self._task.is_running:
            self._flush_without_thread()
        queue = self._queue
        queue.append((planned, decision, seconds, exempt, request))
        if not self._is_awaited:  # Said by `flush` before it looks at the queue.
            self._began = self._began or time.time()
            self._is_awaited = self._task.start()
        if len(queue) >= MOST_QUEUED:
            self._count_queue()

    def _flush_without_thread(self) -> None:
        """Write once a second during requests, if no thread can be started."""
        now = time.monotonic()
        if now >= self._due_at and not get_store().is_paused:
            self._due_at = now + FLUSH_SECONDS
            self.flush(Patience(conf.TIMEOUT))

    def keep(self, name: str) -> None:
        """Have the statistics of a name kept in the database; of the first `MOST_NAMES` names. Raises `LimitError` for
        a name that a database cannot store."""
        if len(name) > LONGEST_NAME or "\0" in name or name != name.encode(errors="replace").decode():
            right = f"write a name of at most {LONGEST_NAME} letters that a database takes"
            raise LimitError(f"The statistics of {name!r} cannot be durable: {right}")
        durable = self._writer.durable
        if name in durable:
            return
        if len(durable) < MOST_NAMES:
            durable.add(name)
        elif not self._is_full_said:
            self._is_full_said = True
            logger.warning(
                "More than %d names of limiters are durable in this process: the statistics of the others, such as"
                " %.200r, are not kept in the database. Use fewer names, and tell clients apart by identity.",
                MOST_NAMES, name,
            )  # fmt: skip

    def add_failed(self, name: str) -> None:
        """Count that a rule could not be applied to a request."""
        if not conf.STATISTICS:
            return
        with self._lock:
            self._began = self._began or time.time()
            self._count(self._known(name), FAILED, "", -1)
        if not self._is_awaited:
            self._is_awaited = self._task.start()

    def _count_queue(self) -> None:
        with self._lock:
            queue, alone, people, bounds = self._queue, self._alone, self._people, TIME_BOUNDS
            self._began = self._began or time.time()
            minute = int(self._began) // MINUTE
            for _ in range(len(queue)):
                planned, decision, seconds, exempt, request = queue.popleft()
                states, source = decision.limits, decision.source
                time_bucket = bisect_left(bounds, seconds)
                of = None
                # Nearly all are of one limit: what can be done once for many, `_tables` does.
                if len(planned) == len(states) == 1 and source != "fallback" and not exempt:
                    only, state = planned[0], states[0]
                    (limit, digest, cost, _, _), name = only.charge, only.name
                    of = alone.get(id(limit))
                    if of is None or of.name != name:
                        of = self._alone_of(limit, name)
                if of is None or state.block is not None or (state.ban is not None and state.ban.until):
                    result = self._add_several(planned, decision, seconds, time_bucket, exempt)
                    if request is not None and result:
                        self._count_request(request, result, minute, is_refused=not decision.allowed)
                    continue
                allowed, used = state.allowed, state.used
                if request is not None:
                    if request.result:
                        self._count_request(request, of.results[allowed], minute, is_refused=not decision.allowed)
                    else:
                        request.result, request.minute = of.results[allowed], minute
                        request.is_refused = not decision.allowed
                if not (allowed and decision.allowed):
                    used += cost  # It has wanted so much.
                used_bucket = _BUCKETS[used] if 0 <= used < 4096 else units_bucket(used)
                key = allowed, used_bucket, allowed and used >= of.near, source, time_bucket
                hits = of.hits.get(key)
                if hits is None:
                    hits = of.hits[key] = _Hits()
                hits.number += 1
                hits.seconds += seconds
                person = people.get((name, id(limit), digest))
                if person is None:
                    person = self._meet(only, name)
                person.came += 1
                if used > person.mark:
                    person.mark = used
                if allowed:
                    if cost > decision.granted:
                        cost = decision.granted
                    person.units += cost
                else:
                    person.refused += 1
                hits.units += cost

    def _count_request(self, request: RequestCount, result: str, minute: int, *, is_refused: bool) -> None:
        """Note what came of one more decision about a request. The request stays counted once, in the minute of the
        first decision, with the result that one decision about all its limits would have had."""
        if not request.result:
            request.result, request.minute, request.is_refused = result, minute, is_refused
            return
        self._correct(minute, result, -1)  # As each decision is counted by itself.
        if is_refused or (not request.is_refused and request.result != ALLOWED):
            self._correct(request.minute, request.result, -1)
            self._correct(request.minute, result, 1)
            request.result, request.is_refused = result, is_refused

    def _correct(self, minute: int, result: str, number: int) -> None:
        self._corrections[minute, result] = self._corrections.get((minute, result), 0) + number

    def _alone_of(self, limit: Limit, name: str) -> _Alone | None:
        """Where hits of a limit are counted that is decided alone; None: not so quickly."""
        if limit.count_denied or id(limit) in self._alone or self._known(name) != name:
            return None
        found = self._alone[id(limit)] = _Alone(limit, name)
        return found

    def _meet(self, planned: Counted, name: str) -> Person:
        if len(self._people) >= MOST_PEOPLE:
            # Nobody is left out: who comes later begins anew, and both are written.
            self._full.append(self._people.copy())
            self._people.clear()
        person = Person(planned)
        self._people[name, id(person.limit), person.digest] = person
        return person

    def _add_several(
        self,
        planned: Sequence[Counted],
        decision: Decision,
        seconds: float,
        time_bucket: int,
        exempt: Sequence[Counted],
    ) -> str:
        """Returns what came of it as a whole; empty: nothing was asked."""
        results, of_all = results_of(planned, decision, exempt)
        by_name: dict[str, list[tuple[Counted, LimitState]]] = {}
        for charge, state in zip(planned, decision.limits, strict=False):
            by_name.setdefault(charge.name, []).append((charge, state))
        for name, result in results.items():
            self._add(self._known(name), result, by_name.get(name, ()), decision, time_bucket)
        if of_all:
            self._count(SITE, of_all, decision.source, time_bucket)
            self._seconds[decision.source] = self._seconds.get(decision.source, 0.0) + seconds
        return of_all

    def _add(
        self,
        name: str,
        result: str,
        charges: Sequence[tuple[Counted, LimitState]],
        decision: Decision,
        time_bucket: int,
    ) -> None:
        """Count a request once for a rule, and how much it found used, or would have, of each of the rule's limits."""
        asked = [(charge, state) for charge, state in charges if state.block is None]
        if not asked:
            self._count(name, result, decision.source, time_bucket)
            return
        is_free = result in FREE
        is_near = is_free and any(state.used >= NEAR * charge.charge.limit.rate.limit for charge, state in asked)
        cost = max(charge.charge.cost for charge, _ in asked)
        units = min(cost, decision.granted) if is_free else cost
        for charge, state in asked:
            limit, digest, cost, _, _ = charge.charge
            was_counted = limit.count_denied and state.counted_at
            used = state.used if (state.allowed and decision.allowed) or was_counted else state.used + cost
            kind = (
                name, result, decision.source, time_bucket, limit.rate.period_us, units_bucket(used), is_near, False
            )  # fmt: skip
            entry = self._kinds.setdefault(kind, [0, 0])
            entry[0] += 1
            person = self._people.get((name, id(limit), digest)) or self._meet(charge, name)
            person.mark = max(person.mark, used)
            if result:
                entry[1] += units
                person.came += 1
                person.units += units if is_free else 0
                person.refused += not is_free
            result, is_near = _ONLY_MARKS, False

    def _count(self, name: str, result: str, source: str, time_bucket: int) -> None:
        entry = self._kinds.setdefault((name, result, source, time_bucket, 0, -1, False, False), [0, 0])
        entry[0] += 1

    def clear(self) -> None:
        """Drop what was not written yet; for tests, whose servers come and go."""
        with self._lock:
            failures.take()
            self._queue.clear()
            self._is_awaited = False  # The task may have been stopped.
            self._forget_names()
            self._renew()
            self._writer.begin()

    def _say_last(self) -> None:
        patience = last_patience()
        for companion in self._companions:
            companion.say_last(patience)
        began = time.monotonic()
        most = max(0.0, patience.left)
        is_free = self._flushing.acquire(timeout=most)  # Another thread may wait for Redis, for longer than that.
        patience.spend(began, most)
        if not is_free:
            return
        try:
            if self._queue or self._began or failures or not self._writer.is_empty:
                self._flush(patience)
            if self._writer.is_empty:
                self._writer.end(patience)
        finally:
            self._flushing.release()

    @property
    def error(self) -> StoreError | None:
        """Of what something could not be written lately (None: nothing failed)."""
        return self._writer.error

    def _step(self) -> float | None:
        error, comes_again = None, False
        for companion in self._companions:  # First: to write statistics may take seconds.
            try:
                comes_again = companion.step() or comes_again
            except StoreError as raised:
                error = raised
        pause = self.flush()
        error = self.error or error
        if error is not None:
            raise error.with_traceback(None)  # The log says so once, and the list of tasks.
        return FLUSH_SECONDS if comes_again and pause is None else pause

    def flush(self, patience: Patience | None = None) -> float | None:
        """Write what was counted; where that cannot be done now, it is tried again a second later."""
        self._is_awaited = False
        with self._flushing:
            return self._flush(patience)

    def _flush(self, patience: Patience | None) -> float | None:
        with self._lock:
            self._count_queue()
            began, alone, kinds, seconds = self._began, self._alone, self._kinds, self._seconds
            people, corrections = [*self._full, self._people], self._corrections
            self._renew()
        if kinds or alone:
            tables = self._tables(began, alone, kinds, seconds, people)
            self._writer.take(tables._replace(corrections=corrections))
        self._writer.take_failures(failures.take())
        return None if self._writer.write(patience) else FLUSH_SECONDS

    def _tables(
        self,
        began: float,
        alone: Mapping[int, _Alone],
        kinds: Mapping[Kind, list[int]],
        seconds: Mapping[str, float],
        people: Sequence[Mapping[tuple[str, int, bytes], Person]],
    ) -> Tables:
        counts: dict[Kind, list[int]] = {}
        by_source = dict(seconds)
        for of in alone.values():
            results, period = of.results, of.limit.rate.period_us
            for (allowed, used, is_near, source, time_bucket), hits in of.hits.items():
                kind = of.name, results[allowed], source, time_bucket, period, used, is_near, True
                entry = counts.setdefault(kind, [0, 0])
                entry[0] += hits.number
                entry[1] += hits.units
                by_source[source] = by_source.get(source, 0.0) + hits.seconds
        for kind, (number, units) in kinds.items():
            entry = counts.setdefault(kind, [0, 0])
            entry[0] += number
            entry[1] += units
        by_name = [(name, person) for of in people for (name, _, _), person in of.items()]
        return Tables(began, counts, by_source, by_name)

    def _forget_names(self) -> None:
        self._names: set[str] = set()
        self._hour = int(time.time()) // HOUR

    def _known(self, name: str) -> str:
        """The name that a name is counted by."""
        name = shortened(name)
        if not name or name in self._names:
            return name
        if len(self._names) >= MOST_NAMES:
            if int(time.time()) // HOUR == self._hour:
                return OTHER
            self._forget_names()  # Names that are made up at run time leave their places to others.
        self._names.add(name)
        return name


recorder = Recorder()
