"""Failures of commands that requests waited for, counted by kind in the process, for metrics."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Literal, get_args

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..exceptions import StoreError
from ..process.forks import renew_after_fork

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
    if isinstance(error, (TimeoutError, RedisTimeoutError)) or isinstance(
        error.__cause__, (TimeoutError, RedisTimeoutError)
    ):
        return "timeout"
    return "connection"


def as_store_error(error: Exception) -> StoreError:
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
    """Counts failures until they are read."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)  # The parent reports what it counted.

    def _begin(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        with self._lock:
            self._counts[kind] += 1

    def take(self) -> Counter[str]:
        """Return the counts since the last call."""
        with self._lock:
            counts = self._counts
            self._counts = Counter()
        return counts


failures = Failures()
