"""A circuit breaker: after repeated failures nobody asks for a moment, so that an outage costs microseconds.

The pattern is Nygard's ("Release It!", 2007): closed, everybody asks; open, nobody does; then one may try, and closes
it again or opens it for longer. The pauses are jittered, so that processes do not try in step.
"""

from __future__ import annotations

import random
import time
from threading import Lock

FAILURES = 3
"""Failures in a row after which it opens."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 2.0
"""Seconds between attempts while it is open: twice as many after each, and a quarter more or less by chance."""


class Breaker:
    """Whether it is worth asking.

    >>> breaker = Breaker()
    >>> for _ in range(FAILURES):
    ...     breaker.failed()
    >>> breaker.may_ask()
    False
    >>> breaker.succeeded()
    >>> breaker.may_ask()
    True
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether asking is paused."""
        return self._until is not None

    def may_ask(self) -> bool:
        """Whether the caller may ask: everybody, while it is closed; one after each pause, while it is open."""
        if self._until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._until is None or now < self._until:
                return self._until is None
            self._open(now)  # The others go on waiting while this one tries.
            return True

    def failed(self) -> None:
        """Note that nobody answered."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES and self._until is None:
                self._open(time.monotonic())

    def succeeded(self) -> None:
        """Note that there was an answer."""
        if self._failures:
            with self._lock:
                self._failures, self._pause, self._until = 0, FIRST_PAUSE, None

    def _open(self, now: float) -> None:
        self._until = now + self._pause * random.uniform(0.75, 1.25)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
