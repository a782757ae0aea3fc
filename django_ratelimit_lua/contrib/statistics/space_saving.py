"""The most frequent clients, in bounded memory: the algorithm Space-Saving.

Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
Streams", ICDT 2005.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...identity.names import Name

CAPACITY = 1024
"""Clients that are counted at one time. Smaller summaries miss half of the real ten most frequent
of a long tail.
"""


@dataclass(slots=True)
class Estimate:
    """The count of a client.

    - `times`, `error`: the count is at most `times`, and at least `times - error`;
    - `name`: its label.
    """

    digest: str
    times: int
    error: int
    name: Name

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the minimum and the maximum of the count."""
        return self.times - self.error, self.times


class Summary:
    """The most frequent clients of a stream of any length.

    It contains every client whose share of all counts is more than 1/`capacity`.

    >>> summary = Summary(capacity=2)
    >>> for times in ({b"a": 5, b"b": 1}, {b"c": 2}):
    ...     summary.add(times, lambda digest: [])
    >>> [(estimate.digest, estimate.times, estimate.error) for estimate in summary.top(2)]
    [('a', 5, 0), ('c', 3, 1)]
    >>> summary.least
    3
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._estimates: dict[bytes, Estimate] = {}

    @property
    def least(self) -> int:
        """Return the maximum count of a client that is not contained."""
        if len(self._estimates) < self.capacity:
            return 0
        return min(estimate.times for estimate in self._estimates.values())

    def add(self, times: Mapping[bytes, int], name_of: Callable[[bytes], Name]) -> None:
        """Add counts of clients.

        Clients that are contained already are counted first. The order does not change the bounds.

        Args:
            times: The counts, by digest.
            name_of: Returns the label of a digest.
        """
        estimates = self._estimates
        strangers = []
        for digest, number in times.items():
            if digest in estimates:
                estimates[digest].times += number
            else:
                strangers.append((digest, number))
        if not strangers:
            return
        heap = [(estimate.times, digest) for digest, estimate in estimates.items()]
        heapq.heapify(heap)
        for digest, number in strangers:
            least = 0
            if len(estimates) >= self.capacity:
                least, other = heapq.heappop(heap)
                del estimates[other]
            estimates[digest] = Estimate(digest.decode(), least + number, least, name_of(digest))
            heapq.heappush(heap, (least + number, digest))

    def top(self, number: int) -> list[Estimate]:
        """Return the most frequent clients, in order."""
        return heapq.nlargest(number, self._estimates.values(), key=lambda estimate: estimate.times)
