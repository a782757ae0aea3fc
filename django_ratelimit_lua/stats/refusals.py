"""How often each rule refused, or would have: counted here, written to Redis once a second, at no cost to requests."""

from __future__ import annotations

import datetime
from collections import Counter
from threading import Lock

from ..conf import conf
from ..exceptions import StoreError
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import Patience, get_store, last_patience

FLUSH_SECONDS = 1.0
KEPT_DAYS = 8
FAILED = "failed"
"""Stands beside the modes of rules: how often a rule could not be applied to a request."""


class RefusalCounter:
    """Refusals by day (UTC), mode and rule, until they are written.

    A process that is killed loses what it counted in its last second.
    """

    def __init__(self) -> None:
        self._task = Task("refusals", self.flush, delay=FLUSH_SECONDS, at_exit=self._say_last)
        self._begin()
        renew_after_fork(self._begin)  # The parent writes what it counted.

    def _begin(self) -> None:
        self._counts: Counter[tuple[bytes, str]] = Counter()
        self._lock = Lock()

    def add(self, rule: str, mode: str) -> None:
        """Count one more."""
        key = _key(datetime.datetime.now(datetime.UTC).date())
        with self._lock:
            self._counts[key, f"{mode}:{rule}"] += 1
        self._task.start()

    def clear(self) -> None:
        """Drop what was not written yet; for tests, whose servers come and go."""
        with self._lock:
            self._counts.clear()

    def _say_last(self) -> None:
        if self._counts:
            self.flush(last_patience())

    def flush(self, patience: Patience | None = None) -> None:
        """Write what was counted; where that cannot be done now, it is tried again with the next."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        try:
            for key in {key for key, _ in counts}:
                for (of, field), number in list(counts.items()):
                    if of == key:
                        get_store(background=True).execute(
                            b"HINCRBY", key, field.encode(), b"%d" % number, patience=patience
                        )
                        del counts[of, field]
                get_store(background=True).execute(b"EXPIRE", key, b"%d" % (KEPT_DAYS * 86_400), patience=patience)
        except StoreError:
            with self._lock:
                self._counts.update(counts)


refusal_counter = RefusalCounter()


def _key(day: datetime.date) -> bytes:
    return conf.CACHE_PREFIX + b"{rules}:exceeded:" + day.isoformat().encode()


def refusal_counts(days: int = 7) -> dict[str, dict[str, int]]:
    """By rule and mode, how often its limit was exceeded in the last days, today included; raises `StoreError`."""
    refusal_counter.flush()
    today = datetime.datetime.now(datetime.UTC).date()
    counts: dict[str, dict[str, int]] = {}
    for ago in range(days):
        reply = get_store(background=True).execute(b"HGETALL", _key(today - datetime.timedelta(days=ago)))
        for field, number in zip(reply[::2], reply[1::2], strict=True):
            mode, _, rule = field.decode().partition(":")
            of = counts.setdefault(rule, {})
            of[mode] = of.get(mode, 0) + int(number)
    return counts
