"""A circuit breaker: after repeated failures nobody asks, so that an outage costs microseconds.

The pattern is Nygard's ("Release It!", 2007): closed, everybody asks; open, nobody does, until a trial succeeds. The
trials are made by a thread of its own, so that no request pays for them, with jittered pauses, so that processes do not
try in step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..process.forks import chance, renew_after_fork
from ..process.tasks import Task

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
        self._pause = FIRST_PAUSE
        self._task = Task("breaker", self._try, delay=self._next_pause)
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def may_ask(self) -> bool:
        """Whether the caller may ask."""
        if not self.is_open:
            return True
        if not self._task.is_running:  # A child, whose parent's threads are not its own; or none could be started.
            self._task.start()
        return False

    def failed(self) -> None:
        with self._lock:
            self.failures += 1
            if self.failures < FAILURES or self.is_open:
                return
            self.is_open, self._pause = True, FIRST_PAUSE
        self._task.start()

    def succeeded(self) -> None:
        """Note that there was an answer."""
        if self.failures:
            with self._lock:
                self.failures, self.is_open = 0, False

    def _try(self) -> float | None:
        if self.is_open and self._answers():
            self.succeeded()
        return self._next_pause() if self.is_open else None

    def _next_pause(self) -> float:
        pause = self._pause * chance.uniform(0.75, 1.25)
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE)
        return pause
