"""The algorithms: which options each takes, and the numbers its Lua code is given.

What each promises is written in the header of its file in `lua/`; the record a limit becomes, in `lua/program.lua`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from ..calendar import boundaries
from ..rate import SECOND, LimitError

if TYPE_CHECKING:
    from ..limit import Limit

EXACT = 2**53
"""Lua's numbers are doubles: integers are exact up to here."""

Numbers = tuple[int, int, int, int, int, int, int, int]
"""limit, period in microseconds, and six numbers that each algorithm gives a meaning."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm by name, the letters that end its keys, and how a limit becomes its numbers."""

    name: str
    suffix: bytes
    options: frozenset[str]
    numbers: Callable[[Limit, int], Numbers]


def _tokens_per_microsecond(limit: Limit) -> tuple[int, int]:
    """Tokens and microseconds in lowest terms: tokens / microseconds is the rate."""
    rate = limit.rate
    if rate.limit == 0:
        return 1, rate.period_us
    shared = gcd(rate.limit, rate.period_us)
    return rate.limit // shared, rate.period_us // shared


def _bucket(limit: Limit, capacity: int, what: str) -> Numbers:
    tokens, microseconds = _tokens_per_microsecond(limit)
    if (capacity + 1) * tokens > EXACT or capacity * microseconds // tokens > EXACT // 4:
        raise LimitError(
            f"Limit {limit.name!r}: {what} of {capacity} at {limit.rate} cannot be kept exactly; "
            f"lower it, or choose a rate and period that share a larger divisor",
            "burst" if what == "a burst" else "queue",
        )
    interval = divmod(microseconds, tokens)
    whole = divmod(capacity * microseconds, tokens)
    return (capacity, limit.rate.period_us, tokens, microseconds, *interval, *whole)


def _token_bucket(limit: Limit, now: int) -> Numbers:
    burst = _burst(limit)
    if limit.lease is not None and burst:
        # Units that were taken ahead may be spent when the bucket has filled up again: keep as many back.
        burst -= -(-limit.rate.limit * lapse_us(limit) // limit.rate.period_us)
        if burst < 1:
            raise LimitError(f"Limit {limit.name!r}: lease needs a burst of at least 2", "lease")
    return _bucket(limit, burst, "a burst")


def _burst(limit: Limit) -> int:
    return limit.rate.limit if limit.burst is None or limit.rate.limit == 0 else limit.burst


def lapse_us(limit: Limit) -> int:
    """Microseconds after which units that were taken ahead may not be spent any more: a second, or as long as a tenth
    of a token bucket takes to fill."""
    if limit.algorithm != "token_bucket" or limit.rate.limit == 0:
        return SECOND
    return min(SECOND, _burst(limit) * limit.rate.period_us // (10 * limit.rate.limit))


def _leaky_bucket(limit: Limit, now: int) -> Numbers:
    if limit.rate.limit == 0:
        return _bucket(limit, 0, "a queue")
    queue = limit.rate.limit - 1 if limit.queue is None else limit.queue
    return _bucket(limit, queue + 1, "a queue")


def _fixed_window(limit: Limit, now: int) -> Numbers:
    if limit.align is None or limit.align == "clock":
        return (limit.rate.limit, limit.rate.period_us, int(limit.align == "clock"), 0, 0, 0, 0, 0)
    return (limit.rate.limit, limit.rate.period_us, 2, *boundaries(limit.align, limit.time_zone, now), 0)


def _sliding_window(limit: Limit, now: int) -> Numbers:
    segment = limit.rate.period_us // (limit.segments or DEFAULT_SEGMENTS)
    if segment == 0:
        raise LimitError(
            f"Limit {limit.name!r}: {limit.segments} segments are more than {limit.rate} has microseconds", "segments"
        )
    return (limit.rate.limit, limit.rate.period_us, segment, 0, 0, 0, 0, 0)


def _sliding_log(limit: Limit, now: int) -> Numbers:
    if limit.rate.limit > LONGEST_LOG:
        raise LimitError(
            f"Limit {limit.name!r}: a sliding_log remembers every unit, so its limit is at most {LONGEST_LOG}; "
            f"sliding_window and token_bucket take any"
        )
    return (limit.rate.limit, limit.rate.period_us, 0, 0, 0, 0, 0, 0)


DEFAULT_SEGMENTS = 10
LONGEST_LOG = 100_000
"""Units. One call that took them all would keep the server busy for a tenth of a second."""

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "token_bucket", b"tb", frozenset({"burst", "max_wait", "count_denied", "lease", "split"}), _token_bucket
        ),
        Algorithm("leaky_bucket", b"lb", frozenset({"queue", "max_wait", "split"}), _leaky_bucket),
        Algorithm(
            "fixed_window",
            b"fw",
            frozenset({"align", "time_zone", "max_wait", "count_denied", "lease", "split"}),
            _fixed_window,
        ),
        Algorithm(
            "sliding_window", b"sw", frozenset({"segments", "max_wait", "count_denied", "split"}), _sliding_window
        ),
        Algorithm("sliding_log", b"sl", frozenset({"max_wait", "count_denied", "split"}), _sliding_log),
    )
}
SYNONYMS = {"gcra": "token_bucket"}


def find(name: str) -> Algorithm:
    """The algorithm of that name; raises `LimitError` with the names there are.

    >>> find("gcra").name
    'token_bucket'
    """
    try:
        return ALGORITHMS[SYNONYMS.get(name, name)]
    except (KeyError, TypeError):
        known = ", ".join([*ALGORITHMS, *SYNONYMS])
        raise LimitError(f"Unknown algorithm {name!r}; choose one of: {known}", "algorithm") from None
