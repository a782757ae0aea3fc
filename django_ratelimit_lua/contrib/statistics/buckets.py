"""Buckets of histograms: of times, and of used units.

Buckets of units are exact up to 15, then an eighth of a power of two wide, so that numbers read
from them are at most 12.5 % off. HdrHistogram divides its ranges in the same way
(https://hdrhistogram.github.io/HdrHistogram/).
"""

from __future__ import annotations

from collections.abc import Mapping

TIME_BOUNDS = (
    50e-6,
    100e-6,
    250e-6,
    500e-6,
    1e-3,
    2.5e-3,
    5e-3,
    10e-3,
    25e-3,
    50e-3,
    100e-3,
    250e-3,
)
"""Seconds that each bucket of times but the last reaches to, that number among them."""


def units_bucket(units: int) -> int:
    """Return the number of the bucket for this number of units.

    >>> [units_bucket(units) for units in (0, 1, 15, 16, 17, 18, 31, 32)]
    [0, 1, 15, 16, 16, 17, 23, 24]
    """
    if units < 16:
        return max(units, 0)
    shift = units.bit_length() - 4
    return (shift << 3) + (units >> shift)


def units_range(bucket: int) -> tuple[int, int]:
    """Return the minimum and the maximum number of units of a bucket.

    >>> [units_range(bucket) for bucket in (0, 15, 16, 17, 24)]
    [(0, 0), (15, 15), (16, 17), (18, 19), (32, 35)]
    """
    if bucket < 16:
        return bucket, bucket
    shift = (bucket >> 3) - 1
    least = ((bucket & 7) + 8) << shift
    return least, least + (1 << shift) - 1


def percentile_95(histogram: Mapping[int, int]) -> float | None:
    """Return the maximum number of seconds that 95 % of the decisions took.

    Args:
        histogram: The number of decisions in each bucket of times.

    Returns:
        The bound of a bucket, at most the largest one, or None if there are no decisions.

    >>> percentile_95({0: 90, 3: 10}), percentile_95({0: 96, 3: 4}), percentile_95({})
    (0.0005, 5e-05, None)
    """
    wanted = 0.95 * sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= wanted:
            return TIME_BOUNDS[min(bucket, len(TIME_BOUNDS) - 1)]
    return None
