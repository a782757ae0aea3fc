"""The refusals of a limit for one client, computed from the moments of its requests.

Each function does the arithmetic of the Lua file of the same algorithm, for requests of cost 1 that
arrive in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ...limits.limit import Limit


def count_refusals(limit: Limit, moments: Sequence[int]) -> int:
    """Return how many requests of one client a limit refuses.

    Args:
        limit: The limit, of one of `ALGORITHMS`.
        moments: When the requests arrive, in microseconds, in ascending order.

    >>> minute = Limit("search", "2/m", algorithm="sliding_log")
    >>> count_refusals(minute, [0, 0, 59_999_999, 60_000_000])
    1
    """
    if len(moments) <= limit.capacity:
        return 0
    if not limit.capacity:
        return len(moments)
    return _COUNTERS[limit.algorithm](limit, moments)


def _count_by_log(limit: Limit, moments: Sequence[int]) -> int:
    """Count refusals as `sliding_log.lua` does."""
    units = limit.rate.limit
    period = limit.rate.period_us
    admitted: deque[int] = deque(maxlen=units)
    refused = 0
    for now in moments:
        if len(admitted) < units or admitted[0] <= now - period:
            admitted.append(now)
        else:
            refused += 1
    return refused


def _count_by_segments(limit: Limit, moments: Sequence[int]) -> int:
    """Count refusals as `sliding_window.lua` does."""
    units, period, length = limit.numbers(0)
    segments: deque[list[int]] = deque()  # Each: the moment of its last hit, and its units.
    used = 0
    refused = 0
    for now in moments:
        while segments and segments[0][0] <= now - period:
            used -= segments.popleft()[1]
        if used >= units:
            refused += 1
            continue
        if not segments or segments[-1][0] < now - now % length:
            segments.append([now, 0])
        segments[-1][0] = now
        segments[-1][1] += 1
        used += 1
    return refused


def _count_by_window(limit: Limit, moments: Sequence[int]) -> int:
    """Count refusals as `fixed_window.lua` does."""
    end = moments[0]
    used = 0
    refused = 0
    for now in moments:
        if now >= end:
            end = now + limit.rate.period_us
            used = 0
        if used < limit.rate.limit:
            used += 1
        else:
            refused += 1
    return refused


def _count_by_bucket(limit: Limit, moments: Sequence[int]) -> int:
    """Count refusals as `token_bucket.lua` does."""
    capacity, per_moment, per_unit, moment_us = limit.numbers(0)
    debt = 0
    at = 0
    refused = 0
    for microseconds in moments:
        now = microseconds // moment_us
        debt = max(0, debt - (now - at) * per_moment)
        at = now
        if debt + per_unit <= capacity * per_unit:
            debt += per_unit
        else:
            refused += 1
    return refused


_COUNTERS: Mapping[str, Callable[[Limit, Sequence[int]], int]] = {
    "sliding_log": _count_by_log,
    "sliding_window": _count_by_segments,
    "fixed_window": _count_by_window,
    "token_bucket": _count_by_bucket,
}
ALGORITHMS = tuple(_COUNTERS)
"""All that refuse at once. A leaky bucket delays requests, for as long as each view lets it."""
