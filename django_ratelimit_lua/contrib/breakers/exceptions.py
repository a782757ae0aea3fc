"""The exception that a stopped call raises."""

from __future__ import annotations


class CircuitOpen(Exception):  # noqa: N818 - what is the matter, not what went wrong
    """A breaker has stopped a call.

    Attributes:
        breaker: The name of the breaker.
        retry_after: Seconds until it may let a call through. None: an operator has forced it open
            without an end.
        reason: "open", "half-open" or "forced".

    >>> raise CircuitOpen("payments", 2.5)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.contrib.breakers.exceptions.CircuitOpen: the breaker payments stopped ...
    """

    def __init__(
        self, breaker: str, retry_after: float | None = None, reason: str = "open"
    ) -> None:
        self.breaker = breaker
        self.retry_after = retry_after
        self.reason = reason
        super().__init__(breaker, retry_after, reason)  # From which a task queue makes it again.

    def __str__(self) -> str:
        when = "no end is known"
        if self.retry_after is not None:
            when = f"retry in {self.retry_after:.6g} s"
        return f"the breaker {self.breaker} stopped the call ({self.reason}): {when}"
