"""Fixed window. The header of its Lua file states its promise."""

from __future__ import annotations

from ..rate import PERIODS, LimitError, boundaries
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms


class FixedWindow(Algorithm):
    """Counts in windows: from the first hit, from multiples of the period, or by the calendar."""

    name = "fixed_window"
    label = _("fixed window: one count per window")
    suffix = b"f"
    options = frozenset({"align", "time_zone", "count_denied", "lease", "split"})
    ends_together = True
    is_exact = True

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the kind of window and, for a calendar, three of its boundaries.

        Raises `LimitError` for a time zone without a calendar, and for a rate whose period is not
        that of the calendar.
        """
        if terms.align not in PERIODS:
            if terms.time_zone != "UTC":
                raise LimitError(
                    _("%(option)s is only for windows that start each day, week or month"),
                    "time_zone",
                    option="time_zone",
                )
            return (terms.rate.limit, terms.rate.period_us, int(terms.align == "clock"), 0, 0, 0)
        shortest, longest = PERIODS[terms.align]
        if not shortest <= terms.rate.period_us <= longest:
            example = {"day": "1000/d", "week": "1000/w", "month": "1000/30d"}[terms.align]
            raise LimitError(
                _(
                    "The window start “%(align)s” needs a rate for that period, such as "
                    "%(example)s, not %(rate)s"
                ),
                "align",
                align=terms.align,
                example=example,
                rate=str(terms.rate),
            )
        starts = boundaries(terms.align, terms.time_zone, now)
        return (terms.rate.limit, terms.rate.period_us, 2, *starts)
