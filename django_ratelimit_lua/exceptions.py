"""What this package raises."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied

from .limits.decision import Decision
from .limits.rate import LimitError

__all__ = ["CircuitOpen", "LimitError", "Ratelimited", "StoreError"]


class Ratelimited(PermissionDenied):
    """A request or call was refused; `decision` says by which limit and for how long.

    A subclass of Django's `PermissionDenied`, as django-ratelimit's is: raised out of a view without anything that
    handles it, it becomes a 403.

    What `RATELIMIT_VIEW` is called with, and what is raised of `RATELIMIT_EXCEPTION_CLASS`, has as text, each of them
    perhaps empty: `message`, what the rule has to say; `when`, when to try again, or why not, in the client's language;
    and `reference`, by which support finds out what refused. Its `status` is 429, or 403 where a block says so;
    `remedy` says to staff who are refused by a rule in the admin what switches it off.
    """

    message = ""
    when = ""
    reference = ""
    remedy = ""
    status = 429

    def __init__(self, decision: Decision | None = None) -> None:
        self.decision = Decision(allowed=False) if decision is None else decision
        super().__init__(_said(self.decision))

    def __reduce__(self) -> tuple[Any, ...]:
        # As it was made: a task queue sends it on, and what is made of it there is to have the decision too.
        told = {
            name: vars(self)[name]
            for name in ("message", "when", "reference", "remedy", "status")
            if name in vars(self)
        }
        return type(self), (self.decision,), told


def _said(decision: Decision) -> str:
    if not decision.limits:
        return "Rate limit exceeded"
    limits, retry = ", ".join(decision.denied_by) or "the limit", decision.retry_after
    return f"{limits}: " + ("never" if retry is None else f"retry in {retry:.6g} s")


class CircuitOpen(Exception):  # noqa: N818 - what is the matter, not what went wrong
    """A breaker does not let a call through: `breaker` is its name, `retry_after` the seconds until it may (None: an
    operator has switched it off without an end), `reason` is "open", "half-open", "ramp", "forced" or "brown-out".

    >>> raise CircuitOpen("payments", 2.5)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.exceptions.CircuitOpen: payments is not asked: open, retry in 2.5 s
    """

    def __init__(self, breaker: str, retry_after: float | None = None, reason: str = "open") -> None:
        self.breaker, self.retry_after, self.reason = breaker, retry_after, reason
        when = "no end is known" if retry_after is None else f"retry in {retry_after:.6g} s"
        super().__init__(f"{breaker} is not asked: {reason}, {when}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.breaker, self.retry_after, self.reason)


class StoreError(Exception):
    """Redis could not be asked: unreachable, too slow, or it answered with an error (`was_answered`)."""

    was_answered = False
