"""Who comes most often, in little memory: Space-Saving.

Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

CAPACITY = 1024
"""Who is counted at one time. Smaller summaries miss half of the real ten most frequent of a long tail."""


class Estimate(NamedTuple):
    """How often somebody came: at most so many `times`, and at least `times - error`."""

    times: int
    error: int


class Summary(Generic[K]):
    """Who comes most often, in a stream of any length: whoever came more than 1/`capacity` of all times is here.

    >>> summary = Summary(capacity=2)
    >>> summary.add({"a": 5, "b": 1}), summary.add({"c": 2})
    ([], ['b'])
    >>> summary.top(2)
    [('a', Estimate(times=5, error=0)), ('c', Estimate(times=3, error=1))]
    >>> summary.least
    3
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._estimates: dict[K, Estimate] = {}

    def __len__(self) -> int:
        return len(self._estimates)

    def __contains__(self, item: K) -> bool:
        return item in self._estimates

    @property
    def least(self) -> int:
        """How often anybody who is not here can have come, at most."""
        if len(self._estimates) < self.capacity:
            return 0
        return min(estimate.times for estimate in self._estimates.values())

    def add(self, times: Mapping[K, int]) -> list[K]:
        """Count how often some came; returns who was dropped for them. In what order they came makes no difference to
        what is promised, so those that are here are counted first."""
        estimates = self._estimates
        strangers: list[tuple[K, int]] = []
        for item, number in times.items():
            known = estimates.get(item)
            if known is None:
                strangers.append((item, number))
            else:
                estimates[item] = Estimate(known.times + number, known.error)
        room = self.capacity - len(estimates)
        for item, number in strangers[:room]:
            estimates[item] = Estimate(number, 0)
        if len(strangers) <= room:
            return []
        # A number of its own in each place, as identities need not be comparable.
        heap = [(estimate.times, place, item) for place, (item, estimate) in enumerate(estimates.items())]
        heapq.heapify(heap)
        dropped: list[K] = []
        for place, (item, number) in enumerate(strangers[room:], start=len(heap)):
            least, _, other = heap[0]
            del estimates[other]
            dropped.append(other)
            estimates[item] = Estimate(least + number, least)
            heapq.heapreplace(heap, (least + number, place, item))
        return dropped

    def top(self, number: int) -> list[tuple[K, Estimate]]:
        """Those who came most often, the most frequent first."""
        return heapq.nlargest(number, self._estimates.items(), key=lambda pair: pair[1].times)
