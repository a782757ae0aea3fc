"""A circuit breaker: after repeated failures nobody asks, so that an outage costs microseconds.

The pattern is Nygard's ("Release It!", 2007): closed, everybody asks; open, nobody does, until a trial succeeds. The
trials are made by a thread of its own, so that no request pays for them, with jittered pauses, so that processes do not
try in step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..process.forks import chance, renew_after_fork, start_thread

FAILURES = 3
"""Failures in a row after which it opens."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds between trials while it is open: half as long again after each, and a quarter more or less by chance."""
GROWTH = 1.5


class Breaker:
    """Whether it is worth asking. `answers`: a trial, which tells whether there is an answer.

    >>> breaker = Breaker(lambda: False)
    >>> for _ in range(FAILURES):
    ...     breaker.failed()
    >>> breaker.may_ask()
    False
    >>> breaker.succeeded()
    >>> breaker.may_ask()
    True
    """

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self.failures = 0
        """Those in a row, up to now."""
        self.is_open = False
        """Whether nobody asks at the moment."""
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._is_tried = False

    def may_ask(self) -> bool:
        """Whether the caller may ask."""
        if not self.is_open:
            return True
        if not self._is_tried:  # A child process, whose parent's threads are not its own; or none could be started.
            self._try()
        return False

    def failed(self) -> None:
        """Note that nobody answered."""
        with self._lock:
            self.failures += 1
            if self.failures < FAILURES or self.is_open:
                return
            self.is_open = True
        self._try()

    def succeeded(self) -> None:
        """Note that there was an answer."""
        if self.failures:
            with self._lock:
                self.failures, self.is_open = 0, False

    def _try(self) -> None:
        with self._lock:
            if self._is_tried or not self.is_open:
                return
            self._is_tried = True
        if start_thread(self._until_answered, "ratelimit-breaker") is None:
            self._is_tried = False  # Whoever comes next starts it.

    def _until_answered(self) -> None:
        pause = FIRST_PAUSE
        try:
            while self.is_open:
                time.sleep(pause * chance.uniform(0.75, 1.25))
                pause = min(pause * GROWTH, LONGEST_PAUSE)
                if self.is_open and self._answers():
                    self.succeeded()
        finally:  # Whatever ended it, the next one is tried for.
            with self._lock:
                self._is_tried = False
        self._try()  # It may have opened while this thread came to its end.
