"""Sample the records of a log, so that a flood writes little, whether of one client or of many."""

from __future__ import annotations

import time
from threading import Lock

from ..limits.limit import Limit
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from .counters import Bucket
from .heartbeat import ProcessShare

FOR_EACH = Limit("records about one limit", "10/m", algorithm="token_bucket")
FOR_ALL = Limit("records about all limits", "60/m", algorithm="token_bucket")
"""How many records of one log a process writes."""
AGAIN_SECONDS = 60.0
"""Seconds until another record about the same identity and limit is written."""
_MAX_LIMITS = 1_000
_MAX_IDENTITIES = 10_000


class LogSampler:
    """Decides which records of a log are written. It needs no call to Redis.

    The next record about the same limit contains the number of skipped records.
    """

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)

    def clear(self) -> None:
        self._lock = Lock()
        self._for_all = _bucket(FOR_ALL)
        self._by_limit: BoundedMap[str, _Tally] = BoundedMap(_MAX_LIMITS)
        self._written: BoundedMap[tuple[str, bytes], float] = BoundedMap(_MAX_IDENTITIES)

    def left_out(self, limit: str, identity: bytes, now: float | None = None) -> int | None:
        """Return the number of records about the limit that were skipped before this one.

        None: skip this one, too. `now`: in seconds, by the monotonic clock; `identity`: a digest,
        empty if it is not known.
        """
        if now is None:
            now = time.monotonic()
        with self._lock:
            tally = self._by_limit.get(limit)
            if tally is None:
                tally = _Tally()
                self._by_limit.put(limit, tally)
            buckets = (tally.bucket, self._for_all)
            written = self._written.get((limit, identity)) if identity else None
            if written is not None and now - written < AGAIN_SECONDS:
                tally.left_out += 1
                return None
            if any(bucket.retry_after(now, 1) for bucket in buckets):
                tally.left_out += 1
                return None
            for bucket in buckets:
                bucket.take(now, 1)
            if identity:
                self._written.put((limit, identity), now)
            left_out = tally.left_out
            tally.left_out = 0
            return left_out


class _Tally:
    __slots__ = ("bucket", "left_out")

    def __init__(self) -> None:
        self.bucket = _bucket(FOR_EACH)
        self.left_out = 0


def _bucket(limit: Limit) -> Bucket:
    # The whole limit, because no other process shares it.
    return Bucket(limit, ProcessShare(0, 1))
