"""Fixed window. The header of its Lua file states its promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..calendar import PERIODS, boundaries
from ..rate import LimitError
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers

if TYPE_CHECKING:
    from ..limit import Limit


class FixedWindow(Algorithm):
    """Counts in windows: from the first hit, from multiples of the period, or by the calendar."""

    name = "fixed_window"
    label = _("fixed window: one count per window")
    suffix = b"f"
    options = frozenset({"align", "time_zone", "count_denied", "lease", "split"})
    ends_together = True
    is_exact = True

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """Return the kind of window and, for a calendar, three of its boundaries.

        Raises `LimitError` for a time zone without a calendar, and for a rate whose period is not
        that of the calendar.
        """
        if limit.align not in PERIODS:
            if limit.time_zone != "UTC":
                raise LimitError(
                    _("%(option)s is only for windows that start each day, week or month"),
                    "time_zone",
                    option="time_zone",
                )
            return (limit.rate.limit, limit.rate.period_us, int(limit.align == "clock"), 0, 0, 0)
        shortest, longest = PERIODS[limit.align]
        if not shortest <= limit.rate.period_us <= longest:
            example = {"day": "1000/d", "week": "1000/w", "month": "1000/30d"}[limit.align]
            raise LimitError(
                _(
                    "The window start “%(align)s” needs a rate for that period, such as "
                    "%(example)s, not %(rate)s"
                ),
                "align",
                align=limit.align,
                example=example,
                rate=str(limit.rate),
            )
        starts = boundaries(limit.align, limit.time_zone, now)
        return (limit.rate.limit, limit.rate.period_us, 2, *starts)
