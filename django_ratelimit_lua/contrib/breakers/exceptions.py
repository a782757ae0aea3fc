"""The exception that a stopped call raises, and its response."""

from __future__ import annotations

import math
from pathlib import Path

from django.utils.translation import gettext as _

from ...web.refusal import ErrorDetails, in_time


class CircuitOpen(Exception):  # noqa: N818 - the state of the breaker, not an error in the code
    """A breaker has stopped a call.

    Attributes:
        breaker: The name of the breaker.
        retry_after: Seconds until it may let a call through. None: an operator has forced it open.

    >>> raise CircuitOpen("payments", 2.5)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.contrib.breakers.exceptions.CircuitOpen: payments is open: retry in 2.5 s
    """

    def __init__(self, breaker: str, retry_after: float | None = None) -> None:
        self.breaker = breaker
        self.retry_after = retry_after
        super().__init__(breaker, retry_after)  # Task queues restore exceptions from `args`.

    @property
    def error_details(self) -> BreakerDetails:
        """The content of the response to this exception."""
        return BreakerDetails(self)

    def __str__(self) -> str:
        if self.retry_after is None:
            return f"{self.breaker} is forced open"
        return f"{self.breaker} is open: retry in {self.retry_after:.6g} s"


class BreakerDetails(ErrorDetails):
    """The content of the response while a breaker is open."""

    page = "503.html"
    folder = Path(__file__).parent / "templates"
    status = 503

    def __init__(self, error: CircuitOpen) -> None:
        self.retry_after = None
        if error.retry_after is not None:
            self.retry_after = max(1, math.ceil(error.retry_after))

    def detail(self) -> str:
        text = _("This is not available at the moment.")
        if self.retry_after is not None:
            text += " " + _("Try again %(in_time)s.") % {"in_time": in_time(self.retry_after)}
        return text

    def context(self) -> dict[str, object]:
        return {"when": self.detail(), "retry_after": self.retry_after}
