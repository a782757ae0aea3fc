"""Fixed window. The header of its Lua file states its promise."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import TYPE_CHECKING

from ..calendar import PERIODS, boundaries, boundaries_ahead
from ..rate import LimitError
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers

if TYPE_CHECKING:
    from ..limit import Limit


class FixedWindow(Algorithm):
    """Counts in windows: from the first hit, from multiples of the period, or by the calendar."""

    name = "fixed_window"
    label = _("fixed window: one count per window")
    suffix = b"fw"
    options = frozenset({"align", "time_zone", "max_wait", "count_denied", "lease", "split"})
    ends_together = True
    is_exact = True

    def expires_at(self, limit: Limit, moment: int) -> int:
        if limit.align in PERIODS:
            return boundaries(limit.align, limit.time_zone, moment)[2]
        start = moment
        if limit.align == "clock":
            start -= moment % limit.rate.period_us
        return start + limit.rate.period_us

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """Return the kind of window and, for a calendar, four of its boundaries.

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
            return (limit.rate.limit, limit.rate.period_us, int(limit.align == "clock"))
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

    def wants_more(self, limit: Limit) -> bool:
        """Return whether windows follow the calendar, so that later boundaries may be needed."""
        return limit.align in PERIODS

    def more(self, limit: Limit, now: int, waits: Sequence[int], *, is_patient: bool) -> bytes:
        """Return the later boundaries until which a hit of this call may be held."""
        if not any(waits):
            return b""
        until = None if min(waits) < 0 else now + max(waits)
        ahead, is_all = boundaries_ahead(str(limit.align), limit.time_zone, now, until)
        return pack(f"<{len(ahead) + 1}d", not is_all, *ahead)
