"""What this package raises."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied

from .limits.decision import Decision
from .limits.rate import LimitError

__all__ = ["LimitError", "Ratelimited", "StoreError"]


class Ratelimited(PermissionDenied):
    """A request or call was refused; `decision` says by which limit and for how long.

    A subclass of Django's `PermissionDenied`, as django-ratelimit's is: raised out of a view without anything that
    handles it, it becomes a 403.
    """

    def __init__(self, decision: Decision | None = None) -> None:
        self.decision = Decision(allowed=False) if decision is None else decision
        limits = ", ".join(self.decision.denied_by) or "the limit"
        retry = self.decision.retry_after
        super().__init__(f"{limits}: " + ("never" if retry is None else f"retry in {retry:.6g} s"))


class StoreError(Exception):
    """Redis could not be asked: unreachable, too slow, or it answered with an error."""
