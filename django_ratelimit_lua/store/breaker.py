"""A circuit breaker for Redis, so that an outage costs a request only microseconds.

After repeated failures no command is sent. The pattern is Nygard's ("Release It!", 2007): commands
are sent while the breaker is closed, and none while it is open, until a trial succeeds. A
background thread makes the trials, so that no request pays for them, with jittered pauses, so that
processes do not try at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..process.forks import chance, renew_after_fork
from ..process.tasks import Task

FAILURES = 3
"""Failures in a row after which it opens."""
FIRST_PAUSE = 0.25
MAX_PAUSE = 1.0
"""Seconds between trials while it is open. Each pause is half as long again, with a jitter of a
quarter.
"""
GROWTH = 1.5


class Breaker:
    """Whether commands may be sent to a server.

    - `answers`: makes a trial, and returns whether the server replied;
    - `is_idle`: whether the breaker never opens.

    >>> breaker = Breaker(lambda: False)
    >>> for _ in range(FAILURES):
    ...     breaker.failed()
    >>> breaker.may_ask()
    False
    >>> breaker.succeeded()
    >>> breaker.may_ask()
    True
    """

    def __init__(self, answers: Callable[[], bool], *, is_idle: bool = False) -> None:
        self._answers = answers
        self._is_idle = is_idle
        self.failures = 0
        """Failures in a row."""
        self.is_open = False
        """Whether no command is sent at the moment."""
        self._pause = FIRST_PAUSE
        self._task = Task("breaker", self._try, delay=self._next_pause)
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def may_ask(self) -> bool:
        """Return whether a command may be sent."""
        if not self.is_open:
            return True
        if not self._task.is_running:  # In a forked child, or if no thread could be started.
            self._task.start()
        return False

    def failed(self) -> None:
        with self._lock:
            self.failures += 1
            if self.failures < FAILURES or self.is_open or self._is_idle:
                return
            self.is_open = True
            self._pause = FIRST_PAUSE
        self._task.start()

    def succeeded(self) -> None:
        """Record a reply of the server."""
        if self.failures:
            with self._lock:
                self.failures = 0
                self.is_open = False

    def _try(self) -> float | None:
        if self.is_open and self._answers():
            self.succeeded()
        if not self.is_open:
            return None
        return self._next_pause()

    def _next_pause(self) -> float:
        pause = self._pause * chance.uniform(0.75, 1.25)
        self._pause = min(self._pause * GROWTH, MAX_PAUSE)
        return pause
