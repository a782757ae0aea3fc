"""How long the store may keep a decision waiting.

A deadline that is a moment of the clock cannot tell a store that is silent from a thread or an event loop that has no
time to listen: in a burst the replies are there, and nobody has come to read them. So what counts is time in which we
did listen. A thread waits in slices, and whatever a slice takes, no more counts than its length: a thread that comes
late to its slice's end (others had the interpreter) listens again before it gives up. Where a slice was not in vain,
the system tells how late the thread came (`blocking`). An event loop has a clock that stands still while it is busy
with something else (`asynchronous.Watch`).

Waiting for a connection, while others have them all, counts as long as the store is silent: a reply to anybody is a
sign of life, and the wait begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SLICES = 2
"""A slice is a part of the whole, so that who comes late listens again before it gives up; and no smaller part, because
each slice is another thread that wants the interpreter, while hundreds do."""
GRACE = 0.02
"""Seconds, or a fifth of the whole: what is left at least where a connection was made, or rules were loaded."""


LAST_PATIENCE = 1.0
"""Seconds for all that a process still has to write when it ends."""


class Patience:
    """The seconds that are left."""

    __slots__ = ("left", "slice", "whole")

    def __init__(self, seconds: float) -> None:
        self.whole = self.left = seconds
        self.slice = seconds / SLICES

    @property
    def is_over(self) -> bool:
        return self.left <= 0.0

    def spend(self, began: float, most: float) -> None:
        """Count a wait since that moment of the monotonic clock that was meant to last at most so long."""
        took = time.monotonic() - began
        self.left -= most if took > most else took

    def was_answered(self) -> None:
        """Leave time for one answer more: Redis has answered, however late whoever asked came to hear of it."""
        self.left = max(self.left, min(GRACE, self.whole / 5))

    def wait(self, attempt: Callable[[float], bool]) -> bool:
        """Try, for so many seconds each time, until it succeeds or nothing is left; whether it succeeded."""
        while True:
            began, most = time.monotonic(), max(0.0, min(self.left, self.slice))
            succeeded = attempt(most)
            self.spend(began, most)
            if succeeded or self.is_over:
                return succeeded

    def share(self, among: int) -> Patience:
        """A part of what is left, for one of several that are asked one after the other; see `take_back`."""
        return Patience(max(self.left, 0.0) / among)

    def take_back(self, share: Patience) -> None:
        """Count what a share has spent."""
        self.left -= share.whole - share.left

    def shares(self, among: Sequence[T]) -> Iterator[tuple[T, Patience]]:
        """Each of several that are asked one after the other, with its share, while anything is left. What it has
        spent counts when the next one's turn comes, or with the end of the loop."""
        for number, item in enumerate(among):
            share = self.share(len(among) - number)
            if share.is_over:
                return
            try:
                yield item, share
            finally:
                self.take_back(share)


class Pulse:
    """When a server has answered anybody in this process last."""

    __slots__ = ("heard_at",)

    def __init__(self) -> None:
        self.heard_at = float("-inf")


_last: Patience | None = None


def last_patience() -> Patience:
    """What is left of the time for all that a process still has to write when it ends; it begins with the first."""
    global _last
    if _last is None:
        _last = Patience(LAST_PATIENCE)
    return _last
