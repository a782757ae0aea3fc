"""Clock window. The header of its Lua file states its promise."""

from __future__ import annotations

from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms


class ClockWindow(Algorithm):
    """Counts in windows that begin half a period after each multiple of the period."""

    name = "clock_window"
    label = _("clock window: one count per period of the clock")
    suffix = b"k"
    options = frozenset({"count_denied"})

    def numbers(self, terms: Terms, now: int) -> Numbers:
        period = terms.rate.period_us
        return (terms.rate.limit, period, period // 2)
