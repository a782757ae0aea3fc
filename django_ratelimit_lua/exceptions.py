"""The exceptions of this package."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied

from .limits.decision import Decision
from .limits.rate import LimitError

__all__ = ["LimitError", "Ratelimited", "StoreError"]


class Ratelimited(PermissionDenied):
    """A request or call was refused.

    Like the exception of django-ratelimit, it is a subclass of Django's `PermissionDenied`: without
    a handler it becomes a 403. It is made from a decision or from text. If it is made from text,
    its `decision` has no limits.

    >>> raise Ratelimited("Five exports a day are enough.")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.exceptions.Ratelimited: Five exports a day are enough.

    Attributes:
        decision: The decision, with the limit that refused and `retry_after`.
        message: The message of the rule, or the text of the exception. GraphQL servers send it to
            clients. It is empty for `RATELIMIT_VIEW` if the rule has no message.
        when: When to try again, in the client's language. Like `reference`, it is set for
            `RATELIMIT_VIEW` and `RATELIMIT_EXCEPTION_CLASS`, and may be empty.
        reference: A code by which support finds the limit that refused.
        status_code: 429, 403 for a block with that status, or 503 if a rule with `waited` refused.
    """

    message: str
    when = ""
    reference = ""
    status_code = 429

    def __init__(self, decision: Decision | str | None = None) -> None:
        if isinstance(decision, Decision):
            self.decision = decision
            self.message = _message(decision)
        else:
            self.decision = Decision(allowed=False)
            self.message = str(decision or _message(self.decision))
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        # The constructor of a subclass may accept a decision only.
        argument: Decision | str = str(self)
        if self.decision.limits:
            argument = self.decision
        return type(self), (argument,), vars(self)


def _message(decision: Decision) -> str:
    if not decision.limits:
        return "Rate limit exceeded"
    names = ", ".join(decision.denied_by) or "the limit"
    if decision.retry_after is None:
        return f"{names}: do not retry"
    return f"{names}: retry in {decision.retry_after:.6g} s"


class StoreError(Exception):
    """Redis is unavailable or too slow, or it returned an error (`was_answered`)."""

    was_answered = False
