"""Token bucket (the generic cell rate algorithm). Its promise is in the header of its Lua."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from ..rate import SECOND, LimitError
from ..values import gettext_noop as _
from .algorithm import EXACT, Algorithm, Numbers

if TYPE_CHECKING:
    from ..limit import Limit


class TokenBucket(Algorithm):
    """Refills at the rate, up to `burst`."""

    name = "token_bucket"
    label = _("token bucket: a steady rate with bursts")
    suffix = b"tb2"
    options = frozenset({"burst", "max_wait", "count_denied", "lease", "split", "split_weights"})

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """The rate in lowest terms, and an interval and a burst as whole microseconds and a rest."""
        burst = _burst(limit)
        if limit.lease is not None and burst:
            # Units that were taken ahead may be spent when the bucket has filled up again: keep as many back.
            burst -= -(-limit.rate.limit * self.lapse_us(limit) // limit.rate.period_us)
            if burst < 1:
                raise LimitError(f"Limit {limit.name!r}: lease needs a burst of at least 2", "lease")
        return bucket_numbers(limit, burst, "a burst", "burst")

    def lapse_us(self, limit: Limit) -> int:
        """A second, or as long as a tenth of the bucket takes to fill."""
        if limit.rate.limit == 0:
            return SECOND
        return min(SECOND, _burst(limit) * limit.rate.period_us // (10 * limit.rate.limit))


def _burst(limit: Limit) -> int:
    return limit.rate.limit if limit.burst is None or limit.rate.limit == 0 else limit.burst


def bucket_numbers(limit: Limit, capacity: int, what: str, option: str) -> Numbers:
    """The numbers of a bucket that holds so many tokens. Raises `LimitError` where they would not be exact."""
    # A limit of 0 is a bucket that nothing fits into, at any rate.
    units, period = limit.rate.limit or 1, limit.rate.period_us
    shared = gcd(units, period)
    tokens, micros = units // shared, period // shared
    if (capacity + 1) * tokens > EXACT or capacity * micros // tokens > EXACT // 4:
        raise LimitError(
            f"Limit {limit.name!r}: {what} of {capacity} at {limit.rate} cannot be kept exactly; "
            f"lower it, or choose a rate and period that share a larger divisor",
            option,
        )
    return (capacity, period, tokens, micros, *divmod(micros, tokens), *divmod(capacity * micros, tokens))
