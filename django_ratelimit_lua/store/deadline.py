"""The deadline of a decision: how long it may still wait for Redis.

The clock alone cannot distinguish a silent server from a thread or an event loop that had no time
to read: in a burst, replies may have arrived that no thread has read yet. So only the time in which
a caller really waited counts. A thread waits in slices, and a slice counts for no more
than its own length: a thread that wakes up late looks again before it gives up. An event loop does
the same with more steps (`asynchronous.Countdown`).

A wait for a free connection lasts as long as the server is silent: each reply to another caller
restarts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

from ..exceptions import StoreError
from ..process import Clock

T = TypeVar("T")

SLICES = 2
"""Slices of a wait. More would make more threads compete for the interpreter when hundreds of them
wait.
"""
GRACE = 0.02
"""Seconds, but at most a fifth of the whole, that are left at least after a connection was made or
rules were loaded.
"""


EXIT_SECONDS = 1.0
"""Seconds for everything that a process writes when it ends."""
PAGE_SECONDS = 0.3
"""Seconds for the calls of one page of the admin."""


class Deadline:
    """The seconds of waiting that are left.

    >>> deadline = Deadline(0.1)
    >>> deadline.left, deadline.is_over
    (0.1, False)
    """

    __slots__ = ("left", "slice", "whole")

    def __init__(self, seconds: float) -> None:
        self.whole = self.left = seconds
        self.slice = seconds / SLICES

    @property
    def is_over(self) -> bool:
        return self.left <= 0.0

    @property
    def next_slice(self) -> float:
        """Return the seconds that one wait may take."""
        return max(0.0, min(self.left, self.slice))

    def spend(self, began: float, max_seconds: float) -> None:
        """Count a wait that began at this moment (monotonic), as at most `max_seconds`."""
        self.left -= min(Clock.monotonic() - began, max_seconds)

    def extend(self) -> None:
        """Leave time for one more reply, because Redis has just replied.

        The caller may have read that reply late.
        """
        self.left = max(self.left, min(GRACE, self.whole / 5))

    def wait(self, attempt: Callable[[float], bool]) -> bool:
        """Call `attempt` with a timeout until it succeeds or no time is left.

        Return whether it succeeded.
        """
        while True:
            began = Clock.monotonic()
            seconds = self.next_slice
            succeeded = attempt(seconds)
            self.spend(began, seconds)
            if succeeded or self.is_over:
                return succeeded

    def share(self, among: int) -> Deadline:
        """Return a part of the time left, for one of several servers that are called in turn.

        `spend_share` counts what was spent of it.
        """
        return Deadline(max(self.left, 0.0) / among)

    def spend_share(self, share: Deadline) -> None:
        """Count the time that a share has spent."""
        self.left -= share.whole - max(share.left, 0.0)

    def shares(self, among: Sequence[T]) -> Iterator[tuple[T, Deadline]]:
        """Yield each of several servers to call in turn, with its share, while time is left.

        The time that a share has spent counts with the next iteration, or with the end of the loop.
        """
        for number, item in enumerate(among):
            share = self.share(len(among) - number)
            if share.is_over:
                return
            try:
                yield item, share
            finally:
                self.spend_share(share)


class LastReply:
    """The time of the latest reply of a server to a caller in this process (monotonic)."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("-inf")


@cache
def exit_deadline() -> Deadline:
    """Return the one deadline for everything that a process writes when it ends."""
    return Deadline(EXIT_SECONDS)


class PageDeadline:
    """One deadline for all calls of Redis that a page of the admin makes.

    A page makes many calls, some of them with the long timeout of the background. If Redis hangs,
    the first call fails after 0.3 s, and the others fail at once.

    - `error`: the last failure.
    """

    def __init__(self) -> None:
        self.error: StoreError | None = None

    def limit(self, deadline: Deadline) -> Deadline:
        """Return the deadline of the next call, limited to that of a page.

        Raises:
            StoreError: A call before it had no reply.
        """
        if self.error is not None and not self.error.was_answered:
            raise StoreError(str(self.error))
        if deadline.left > PAGE_SECONDS:
            return Deadline(PAGE_SECONDS)
        return deadline


_page: ContextVar[PageDeadline | None] = ContextVar("ratelimit_page_deadline", default=None)
current_page = _page.get


@contextmanager
def page_deadline() -> Iterator[PageDeadline]:
    """Apply one deadline to all calls of this thread until the block ends."""
    page = PageDeadline()
    token = _page.set(page)
    try:
        yield page
    finally:
        _page.reset(token)
