"""What this package raises."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied

from .limits.decision import Decision
from .limits.rate import LimitError

__all__ = ["LimitError", "Ratelimited", "StoreError"]


class Ratelimited(PermissionDenied):
    """A request or call was refused; `decision` has the limit that refused and for how long.

    A subclass of Django's `PermissionDenied`, as django-ratelimit's is: without a handler it becomes a 403.

    It is made from a decision, or from text as any `PermissionDenied`; then `decision` has no limits.

    >>> raise Ratelimited("Five exports a day are enough.")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.exceptions.Ratelimited: Five exports a day are enough.

    - `message`: the message of the rule; without one, the text of the exception. GraphQL servers send it to clients. In
      what `RATELIMIT_VIEW` is called with, it is empty without one;
    - `when`: when to try again, or why not, in the client's language; `reference`: by which support finds the limit
      that refused. Both may be empty, and are set for `RATELIMIT_VIEW` and on what `RATELIMIT_EXCEPTION_CLASS` raises;
    - `status`: 429, or 403 if a block asks for it;
    - `remedy`: for staff that a rule in the admin refuses, what switches the rule off.
    """

    message: str
    when = ""
    reference = ""
    remedy = ""
    status = 429

    def __init__(self, decision: Decision | str | None = None) -> None:
        if isinstance(decision, Decision):
            self.decision, self.message = decision, _said(decision)
        else:
            self.decision = Decision(allowed=False)
            self.message = str(decision or _said(self.decision))
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # A subclass may be made from the decision alone.
        made_from = self.decision if self.decision.limits else str(self)
        return type(self), (made_from,), vars(self)


def _said(decision: Decision) -> str:
    if not decision.limits:
        return "Rate limit exceeded"
    limits, retry = ", ".join(decision.denied_by) or "the limit", decision.retry_after
    return f"{limits}: " + ("never" if retry is None else f"retry in {retry:.6g} s")


class StoreError(Exception):
    """Redis could not be asked: unreachable, too slow, or it answered with an error (`was_answered`)."""

    was_answered = False
