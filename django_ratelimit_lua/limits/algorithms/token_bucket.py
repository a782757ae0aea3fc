"""Token bucket (the generic cell rate algorithm). The header of its Lua file states its promise."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from ..rate import SECOND, LimitError, Rate
from ..values import gettext_noop as _
from .algorithm import EXACT, Algorithm, Numbers

if TYPE_CHECKING:
    from ..limit import Limit
    from ..options import Options


class TokenBucket(Algorithm):
    """A bucket that refills at the rate, up to `burst`."""

    name = "token_bucket"
    label = _("token bucket: a steady rate with bursts")
    suffix = b"tb2"
    options = frozenset({"burst", "max_wait", "lease", "split"})
    is_bucket = True
    allows_debt = True

    def capacity(self, rate: Rate, options: Options) -> int:
        if not rate.limit:
            return 0
        return options.get("burst") or rate.limit

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """Return the rate in lowest terms, and the interval and burst in whole microseconds.

        Fractions of a microsecond are returned as separate numbers.
        """
        burst = limit.capacity
        if limit.lease is not None and burst:
            # Units that were taken ahead may be spent when the bucket has filled up again: keep as
            # many back.
            burst -= -(-limit.rate.limit * self.lapse_us(limit) // limit.rate.period_us)
            if burst < 1:
                raise LimitError(
                    _("%(option)s needs a burst of at least 2"), "lease", option="lease"
                )
        return bucket_numbers(limit, burst, "burst")

    def lapse_us(self, limit: Limit) -> int:
        """Return one second, or the time in which a tenth of the bucket refills if shorter."""
        if limit.rate.limit == 0:
            return SECOND
        return min(SECOND, limit.capacity * limit.rate.period_us // (10 * limit.rate.limit))


def bucket_numbers(limit: Limit, capacity: int, option: str) -> Numbers:
    """Return the numbers of a bucket with this capacity.

    Raises `LimitError` if they would not be exact.
    """
    # A limit of 0 is a bucket that nothing fits into, at any rate.
    tokens, micros = _lowest_terms(limit.rate)
    if capacity > most_units(limit.rate):
        raise LimitError(
            _(
                "%(option)s is %(units)d, which cannot be counted exactly at %(rate)s. "
                "Lower it, or choose a rate and period that share a larger divisor"
            ),
            option,
            option=option,
            units=capacity,
            rate=str(limit.rate),
        )
    interval = divmod(micros, tokens)
    burst = divmod(capacity * micros, tokens)
    return (capacity, limit.rate.period_us, tokens, micros, *interval, *burst)


def _lowest_terms(rate: Rate) -> tuple[int, int]:
    units = rate.limit or 1
    period = rate.period_us
    shared = gcd(units, period)
    return units // shared, period // shared


def most_units(rate: Rate) -> int:
    """Return the maximum number of tokens, or of owed tokens, that a rate can represent exactly.

    >>> most_units(Rate.parse("1/s"))
    2251799813
    """
    tokens, micros = _lowest_terms(rate)
    return min(EXACT // tokens - 1, ((EXACT // 4 + 1) * tokens - 1) // micros)
