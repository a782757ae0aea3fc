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
from collections.abc import Collection, Mapping, Sequence
from threading import Lock, RLock
from typing import Any

from ...conf import conf
from ...engine import DecidedCharge
from ...exceptions import StoreError
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...limits.limit import shortened
from ...process.forks import renew_after_fork
from ...rules.status import failed_rules
from ...store import ANNEX, Deadline, failures, flusher, get_store
from .clients import ClientCount
from .counters import (
    ALLOWED,
    FREE,
    OTHER,
    SHADOW,
    TIME_BOUNDS,
    WAIT_BOUNDS,
    results_of,
)
from .writing import Hits, Kind, Tables, Writer

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
MAX_CLIENTS = 10_000
"""Maximum number of clients between two flushes. Further ones are not listed."""
MAX_REQUESTS = 10_000
"""Maximum number of requests that have not ended. If there are more, all are counted at once."""


class RequestCount:
    """How the site counts one request, which may have several decisions: once, at its end.

    - `running`: see `RequestState`. The request has ended when it is empty;
    - `result`: the result that one decision about all its limits would have had (empty: none yet);
    - `is_refused`: whether one of the decisions refused;
    - `waited`: see `RequestState`; None as soon as it is counted.
    """

    __slots__ = ("is_refused", "result", "running", "waited")

    def __init__(self, running: Sequence[object], waited: float | None = None) -> None:
        self.waited = waited
        self.running = running
        self.result = ""
        self.is_refused = False


Decided = tuple[
    Sequence[DecidedCharge], Decision, float, Sequence[DecidedCharge], RequestCount | None
]


class Recorder:
    """Counts decisions until they are written.

    A decision costs one append to a queue. The queue is counted by the next decision that finds
    many entries, or a second later.
    """

    def __init__(self) -> None:
        self._writer = Writer()
        self._begin()
        renew_after_fork(self._begin)  # The parent writes what it counted.

    def _begin(self) -> None:
        self._lock = RLock()
        self._flushing = Lock()
        self._queue: deque[Decided] = deque()
        self._requests: list[RequestCount] = []
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
            request = state.count
            if request is None:
                request = state.count = RequestCount(state.running, state.waited)
        queue = self._queue
        queue.append((charges, decision, seconds, exempt, request))
        if not self._is_awaited:  # Reset by `flush` before it looks at the queue.
            self._tables.began = self._tables.began or time.time()
            self._is_awaited = flusher.start()
        if len(queue) >= MAX_QUEUED:
            self._count_queue()

    def _count_queue(self) -> None:
        """Count the decisions of the queue."""
        with self._lock:
            self._tables.began = self._tables.began or time.time()
            for _ in range(len(self._queue)):
                self._count_decision(self._queue.popleft())

    def _count_decision(self, entry: Decided) -> None:
        """Count a decision for its request, for each rule or call site, and for each client."""
        charges, decision, seconds, exempt, request = entry
        results, whole = results_of(charges, decision, exempt)
        # Only the first refusal of a request stops a client.
        refusal = whole
        if whole == SHADOW or (request is not None and request.is_refused):
            refusal = ""
        tables = self._tables
        if request is None:
            tables.requests[whole] += 1
        else:
            self._add_to_request(request, whole, is_refused=not decision.allowed)
        time_bucket = bisect_left(TIME_BOUNDS, seconds)
        is_first = True
        for decided in charges:
            name = decided.name
            # A rule with several rates counts once, and a block is not decided by a limit.
            if name not in results or decided.state.block is not None:
                continue
            result = results.pop(name)
            _, digest, units = decided.charge
            client = tables.clients.get((name, digest)) or self._add_client(decided)
            is_near = False
            if result in FREE:
                is_near = _is_near_limit(name, charges)
                if units > decision.granted:
                    units = decision.granted
                client.units += units
                client.allowed += 1
            else:
                client.refused += 1
                if result == refusal:
                    client.stopped += 1
                    refusal = ""
            # Looked up as a plain tuple, because making a `Kind` costs more than the rest.
            kind = (name, result, decision.source, time_bucket, is_near, is_first)
            hits = tables.kinds.get(kind) or self._add_kind(*kind)  # type: ignore[call-overload]
            hits.number += 1
            hits.units += units
            hits.seconds += seconds
            is_first = False
        for name, result in results.items():  # Blocked or exempt.
            hits = self._add_kind(name, result, decision.source, time_bucket, False, is_first)
            hits.number += 1
            hits.seconds += seconds
            is_first = False

    def _add_to_request(self, request: RequestCount, result: str, *, is_refused: bool) -> None:
        """Add a decision to its request, which is counted when it has ended."""
        if request.waited is not None:
            self._tables.waits[bisect_left(WAIT_BOUNDS, request.waited)] += 1
            self._tables.waited += request.waited
            request.waited = None  # It is counted once.
        if not result:
            return
        if not request.result:
            self._requests.append(request)
            if len(self._requests) > MAX_REQUESTS:
                self._count_requests(even_running=True)
        if is_refused or not (request.is_refused or request.result == ALLOWED):
            request.result = result
            request.is_refused = is_refused

    def _count_requests(self, *, even_running: bool = False) -> None:
        """Count the requests that have ended, or all of them."""
        tables = self._tables
        running = []
        for request in self._requests:
            if request.running and not even_running:
                running.append(request)
            else:
                tables.began = tables.began or time.time()
                tables.requests[request.result] += 1
        self._requests = running

    def _add_kind(self, name: str, *fields: Any) -> Hits:
        """Return the decisions of a `Kind` with these fields, within the bound on kinds."""
        kinds = self._tables.kinds
        kind = Kind(shortened(name), *fields)
        if len(kinds) >= MAX_KINDS and kind not in kinds:
            kind = kind._replace(name=OTHER)
        return kinds.setdefault(kind, Hits())

    def _add_client(self, decided: DecidedCharge) -> ClientCount:
        """Add the count of a client, which is not kept beyond the bound on their number."""
        clients = self._tables.clients
        client = ClientCount(decided)
        if len(clients) < MAX_CLIENTS:
            client = clients.setdefault((shortened(decided.name), decided.charge.digest), client)
        return client

    def forget(self) -> None:
        """Drop unwritten counts of clients, because one of them is to be forgotten.

        Requests remain counted.
        """
        with self._flushing, self._lock:
            self._count_queue()
            self._tables.clients.clear()
            self._writer.forget()

    @property
    def error(self) -> StoreError | None:
        """Return the last error if some counts could not be written lately."""
        return self._writer.error

    def flush(self, deadline: Deadline | None = None) -> bool:
        """Write the counts, unless another thread does that for longer than `deadline`.

        A request is counted when the middleware and all decorators have returned. A request
        without them, as with DRF's throttles, is counted with its first decision; further ones in
        the same second change its result.

        Returns:
            Whether some counts are left, which are tried again a second later.

        Raises:
            StoreError: Some counts could not be written. They are kept.
        """
        self._is_awaited = False
        if deadline is None:
            self._flushing.acquire()
        elif not deadline.wait(lambda seconds: self._flushing.acquire(timeout=seconds)):
            return True
        try:
            with self._lock:
                self._count_queue()
                self._count_requests()
                tables = self._tables
                self._tables = Tables()
                is_running = bool(self._requests)
            self._writer.take(tables, failures.take(), failed_rules.take())
            is_written = self._writer.write(deadline)
        finally:
            self._flushing.release()
        if self.error is not None:
            raise self.error
        return is_running or not is_written


def _is_near_limit(name: str, charges: Sequence[DecidedCharge]) -> bool:
    """Return whether the limit of one of a rule's charges is nearly used up."""
    for decided in charges:
        near = NEAR * decided.charge.limit.rate.limit
        if decided.state.used >= near and decided.name == name:
            return True
    return False


recorder = Recorder()
flusher.add(recorder.flush)


def forget_clients(digests: Collection[bytes]) -> Mapping[str, int]:
    """Erase the statistics of one identity, which are the lists of top clients that contain it.

    All processes drop their unwritten counts of clients. Other clients of such a list are missing
    from it as well, for 24 hours at most. Requests remain counted. The HyperLogLogs of rules in
    shadow mode remain as well: no digest can be read from them.

    Args:
        digests: The digests of the identity under each secret.

    Returns:
        The number of erased items, by kind.

    Raises:
        StoreError: Redis is unavailable.
    """
    recorder.forget()
    store = get_store(background=True)
    store.execute(b"PUBLISH", store.channel(conf.CACHE_PREFIX), ANNEX + b" statistics")
    lists = 0
    for key in store.find_keys(conf.CACHE_PREFIX + b"{stats:", b"*:top:*"):
        pairs = iter(store.execute(b"HGETALL", key))
        for process, written in zip(pairs, pairs, strict=True):
            if any(digest in written for digest in digests):
                lists += store.execute(b"HDEL", key, process)
    return {"lists of clients, with the other clients in them": lists}
