"""Fixed window. The header of its Lua file states its promise."""

from __future__ import annotations

from ..rate import PERIODS, LimitError, boundaries
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms

# The kinds of windows, as `fixed_window.lua` numbers them.
FROM_FIRST_HIT, BY_CLOCK, BY_CALENDAR = range(3)


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

        Raises `LimitError` for a time zone without a calendar, and for a rate with another period
        than the calendar.
        """
        limit = terms.rate.limit
        period_us = terms.rate.period_us
        if terms.align in PERIODS:
            self._check_period(terms)
            starts = boundaries(terms.align, terms.time_zone, now)
            return (limit, period_us, BY_CALENDAR, *starts)
        if terms.time_zone != "UTC":
            text = _("%(option)s is only for windows that start each day, week or month")
            raise LimitError(text, "time_zone", option="time_zone")
        kind = BY_CLOCK if terms.align == "clock" else FROM_FIRST_HIT
        return (limit, period_us, kind, 0, 0, 0)

    def _check_period(self, terms: Terms) -> None:
        """Raise `LimitError` if the rate's period is not that of the calendar."""
        assert terms.align is not None
        min_us, max_us = PERIODS[terms.align]
        if not min_us <= terms.rate.period_us <= max_us:
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
