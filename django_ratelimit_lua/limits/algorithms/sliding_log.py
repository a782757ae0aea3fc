"""Sliding log. The header of its Lua file states its promise."""

from __future__ import annotations

from ..rate import LimitError
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms

MAX_LOG_LENGTH = 100_000
"""Units. One call that took them all would keep the server busy for a tenth of a second."""


class SlidingLog(Algorithm):
    """Counts the units of the last period exactly: their moments are stored."""

    name = "sliding_log"
    label = _("sliding log: never over the limit, exact to the microsecond")
    suffix = b"g"
    options = frozenset({"count_denied"})
    is_exact = True

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the limit and the period."""
        if terms.rate.limit > MAX_LOG_LENGTH:
            raise LimitError(
                _(
                    "A sliding log stores every unit, so its limit is at most %(most)d; "
                    "choose another algorithm for more"
                ),
                most=MAX_LOG_LENGTH,
            )
        return (terms.rate.limit, terms.rate.period_us)
