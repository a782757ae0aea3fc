"""The response if the breaker of a view is open: 503, with the time of the next attempt."""

from __future__ import annotations

import math
from pathlib import Path

from django.utils.translation import gettext as _

from ...web.durations import in_time
from ...web.refusal import ErrorDetails
from .exceptions import CircuitOpen

REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
REDUCED_CAPACITY_TITLE = "Request cannot be satisfied due to temporary server capacity constraints"
"""Of draft-ietf-httpapi-ratelimit-headers-10, section 5.2, for programs: not translated."""


class ReducedCapacity(ErrorDetails):
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

    def members(self) -> dict[str, object]:
        members: dict[str, object] = {"type": REDUCED_CAPACITY, "title": REDUCED_CAPACITY_TITLE}
        if self.retry_after is not None:
            members["retry_after"] = self.retry_after
        return members

    def context(self) -> dict[str, object]:
        return {"when": self.detail(), "retry_after": self.retry_after}
