"""The availability of a server: its failures by kind, and the pause after repeated ones.

During the pause no command is sent, so that an outage costs a request only microseconds. The
pattern is Nygard's ("Release It!", 2007). A background thread makes the trials that end a pause, so
that no request waits for them, at random intervals, so that processes do not try at the same time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, get_args

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..exceptions import StoreError
from ..process.forks import chance, renew_after_fork
from ..process.tasks import Task

FAILURES = 3
"""Failures in a row after which a pause begins."""
FIRST_PAUSE = 0.25
MAX_PAUSE = 1.0
"""Seconds between trials. Each interval is half as long again, with a jitter of a quarter."""
GROWTH = 1.5
Kind = Literal["timeout", "connection", "answered", "paused"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""No answer in time; no connection, or a broken one; an answer that is an error; not sent, after
repeated failures.
"""


class Paused(RedisConnectionError):  # noqa: N818 - named as redis-py names its own
    """No command is sent at the moment."""


def kind_of(error: BaseException) -> Kind:
    """Return the kind of an error.

    >>> (
    ...     kind_of(Paused()),
    ...     kind_of(RedisTimeoutError()),
    ...     kind_of(ResponseError("OOM")),
    ...     kind_of(OSError()),
    ... )
    ('paused', 'timeout', 'answered', 'connection')
    """
    if isinstance(error, Paused):
        return "paused"
    if isinstance(error, ResponseError):
        return "answered"
    # A connection that could not be made in time has a timeout as its cause.
    for each in (error, error.__cause__):
        if isinstance(each, (TimeoutError, RedisTimeoutError)):
            return "timeout"
    return "connection"


def to_store_error(error: Exception) -> StoreError:
    """Convert an error of redis-py or of the operating system to a `StoreError`.

    Without a password, a server rejects a long command before it parses the command, by an error
    of its own. The text has no full stop at the end, because it becomes a part of other sentences.
    """
    text = f"{type(error).__name__}: {error}".rstrip(":. ")
    if "unauthenticated" in text:
        text = f"AuthenticationError: Authentication required ({error})"
    failure = StoreError(text)
    failure.was_answered = isinstance(error, ResponseError)
    return failure


class Failures:
    """Counts failures of commands that requests waited for, until they are read, for metrics."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)  # The parent reports what it counted.

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        with self._lock:
            self._counts[kind] += 1

    def take(self) -> Counter[str]:
        """Reset the counts to zero, and return what they were."""
        with self._lock:
            counts = self._counts
            self._counts = Counter()
        return counts


failures = Failures()


class Availability:
    """Whether commands may be sent to a server.

    - `answers`: makes a trial, and returns whether the server replied;
    - `never_pauses`: whether commands are sent after any number of failures.

    >>> availability = Availability(lambda: False)
    >>> for _ in range(FAILURES):
    ...     availability.record_failure()
    >>> availability.may_send()
    False
    >>> availability.record_reply()
    >>> availability.may_send()
    True
    """

    def __init__(self, answers: Callable[[], bool], *, never_pauses: bool = False) -> None:
        self._answers = answers
        self._never_pauses = never_pauses
        self.failures = 0
        """Failures in a row."""
        self.is_paused = False
        """Whether no command is sent at the moment."""
        self._pause = FIRST_PAUSE
        self._task = Task("availability", self._run_trial, delay=self._lengthen_pause)
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def may_send(self) -> bool:
        """Return whether a command may be sent. During a pause, ensure that trials are made."""
        if not self.is_paused:
            return True
        if not self._task.is_running:  # In a forked child, or if no thread could be started.
            self._task.start()
        return False

    def record_failure(self) -> None:
        """Record that a command failed, other than by a reply that is an error."""
        with self._lock:
            self.failures += 1
            if self.failures < FAILURES or self.is_paused or self._never_pauses:
                return
            self.is_paused = True
            self._pause = FIRST_PAUSE
        self._task.start()

    def record_reply(self) -> None:
        """Record a reply of the server."""
        if self.failures:
            with self._lock:
                self.failures = 0
                self.is_paused = False

    def _run_trial(self) -> float | None:
        """End the pause if the server answers. Return the seconds until the next trial, or None."""
        if self.is_paused and self._answers():
            self.record_reply()
        if not self.is_paused:
            return None
        return self._lengthen_pause()

    def _lengthen_pause(self) -> float:
        """Lengthen the pause for the next trial, and return the seconds until this one."""
        pause = self._pause * chance.uniform(0.75, 1.25)
        self._pause = min(self._pause * GROWTH, MAX_PAUSE)
        return pause
