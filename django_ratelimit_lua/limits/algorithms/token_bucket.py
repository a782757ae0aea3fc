"""Token bucket (the generic cell rate algorithm). The header of its Lua file states its promise."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, gcd
from typing import Any

from ..rate import SECOND, LimitError, Rate
from ..values import gettext_noop as _
from .algorithm import EXACT, Algorithm, Numbers, Terms


class TokenBucket(Algorithm):
    """A bucket that refills at the rate, up to `burst`."""

    name = "token_bucket"
    label = _("token bucket: a steady rate with bursts")
    suffix = b"t"
    lua_parts = ("bucket",)
    options = frozenset({"burst", "max_wait", "lease", "split"})
    is_bucket = True
    allows_debt = True

    def capacity(self, rate: Rate, options: Mapping[str, Any]) -> int:
        """Return the burst, which is the rate's limit by default."""
        if rate.limit == 0:
            return 0
        return options.get("burst") or rate.limit

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the numbers of a bucket; if units are leased, of a smaller one."""
        burst = terms.capacity
        if terms.lease is not None and burst:
            # The units that flow in while leased ones may still be spent are kept back.
            burst -= ceil(Fraction(terms.rate.limit * self.lapse_us(terms), terms.rate.period_us))
            if burst < 1:
                raise LimitError(
                    _("%(option)s needs a burst of at least 2"), "lease", option="lease"
                )
        return bucket_numbers(terms, burst, "burst")

    def lapse_us(self, terms: Terms) -> int:
        """Return one second, or the time in which a tenth of the bucket refills if shorter."""
        if terms.rate.limit == 0:
            return SECOND
        return min(SECOND, terms.capacity * terms.rate.period_us // (10 * terms.rate.limit))


def bucket_numbers(terms: Terms, capacity: int, option: str) -> Numbers:
    """Return the capacity, the parts that a moment pays, those of a unit, and a moment's length.

    See `bucket.lua`. A moment is a microsecond, or a millisecond if the parts could exceed 2**53
    otherwise. Raises `LimitError` if they could exceed it in any case.
    """
    units = terms.rate.limit or 1  # A limit of 0 is a bucket that nothing fits into.
    for moment_us in (1, 1000):
        period, remainder = divmod(terms.rate.period_us, moment_us)
        divisor = gcd(units, period)
        parts_per_moment = units // divisor
        parts_per_unit = period // divisor
        wait = max(terms.max_wait_us, 0) // moment_us
        max_parts = 2 * capacity * parts_per_unit + wait * parts_per_moment
        if remainder == 0 and max_parts < EXACT:
            return (capacity, parts_per_moment, parts_per_unit, moment_us)
    raise LimitError(
        _(
            "%(option)s is %(units)d, which cannot be counted exactly at %(rate)s. "
            "Lower it, or choose a rate and period that share a larger divisor"
        ),
        option,
        option=option,
        units=capacity,
        rate=str(terms.rate),
    )


def max_debt(terms: Terms) -> int:
    """Return the maximum number of units that a bucket can owe beyond its capacity.

    Its parts, see `bucket_numbers`, must stay below 2**53.

    >>> from django_ratelimit_lua import Limit
    >>> max_debt(Limit("mail", "1/s", algorithm="token_bucket"))
    9007199253
    """
    _capacity, _parts_per_moment, parts_per_unit, _moment_us = TokenBucket().numbers(terms, 0)
    return (EXACT - 1) // parts_per_unit - terms.capacity
