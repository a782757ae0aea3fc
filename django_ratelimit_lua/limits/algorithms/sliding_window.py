"""Sliding window in segments. The header of its Lua file states its promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..rate import LimitError
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers

if TYPE_CHECKING:
    from ..limit import Limit

DEFAULT_SEGMENTS = 10


class SlidingWindow(Algorithm):
    """Counts the units of the last period in segments."""

    name = "sliding_window"
    label = _("sliding window: never over the limit in any period")
    suffix = b"s"
    options = frozenset({"segments", "count_denied"})

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """Return the limit, the period and the length of a segment."""
        length = limit.rate.period_us // (limit.segments or DEFAULT_SEGMENTS)
        if length == 0:
            raise LimitError(
                f"{limit.segments} segments are too many for {limit.rate}: a segment "
                "lasts at least a microsecond",
                "segments",
            )
        return (limit.rate.limit, limit.rate.period_us, length)
