"""The clients of a rule or call site: their counts, and the most frequent ones in bounded memory.

The most frequent clients are found with the algorithm Space-Saving: Metwally, Agrawal, El Abbadi,
"Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...engine import DecidedCharge
from ...identity.names import Name, display_name, is_short
from ...rules.rule import Rule

CAPACITY = 1024
"""Clients that are counted at one time. Smaller summaries miss half of the real ten most frequent
of a long tail.
"""
TOP = 100
"""Clients that each process writes of those that used most, and of those that were refused most."""


class Person:
    """The counts of one client under one limit between two flushes.

    - `allowed`, `refused`: its requests, including refusals in shadow mode;
    - `stopped`: the refusals that are also counted for the whole site;
    - `units`: the units that it took;
    - `is_client`: false for the count of a limiter without identities.
    """

    __slots__ = (
        "_identity",
        "_name",
        "allowed",
        "is_client",
        "refused",
        "rule",
        "stopped",
        "units",
    )

    def __init__(self, counted: DecidedCharge) -> None:
        identity = counted.identity
        self._identity = identity
        self._name: Name | None = None
        self.is_client = identity is not None
        # Only rules in shadow mode are counted by version.
        self.rule: Rule | None = counted.rule if counted.charge.limit.mode == "shadow" else None
        if not is_short(identity):  # It is kept for a second, and may be as long as a request.
            self._name = display_name(identity)
            self._identity = None
        self.allowed = self.refused = self.stopped = self.units = 0

    @property
    def name(self) -> Name:
        if self._name is None:
            return display_name(self._identity)
        return self._name


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


class Top:
    """The clients with most units, and with most refusals, of one name in one hour.

    - `field`: the field of the hash to which they are written.
    """

    def __init__(self, field: bytes, capacity: int) -> None:
        self.field = field
        self.summaries = {"used": Summary(capacity), "refused": Summary(capacity)}

    def add(self, people: Mapping[bytes, Person], **attributes: str) -> None:
        """Add the counts of clients since the last flush.

        Args:
            people: The clients, by digest.
            attributes: By the name of a summary, the attribute of a client that it counts.
        """
        for word, attribute in attributes.items():
            times = {digest: getattr(person, attribute) for digest, person in people.items()}
            counted = {digest: number for digest, number in times.items() if number}
            self.summaries[word].add(counted, lambda digest: people[digest].name)

    def written(self) -> bytes:
        """Return both lists as JSON, each with the maximum count of a client that is not in it."""
        lists = {}
        for word, summary in self.summaries.items():
            rows: list[list[Any]] = [
                [one.digest, one.times, one.error, one.name] for one in summary.top(TOP + 1)
            ]
            least = summary.least
            if len(rows) > TOP:
                least = rows.pop()[1]
            lists[word] = [least, rows]
        return json.dumps(lists, separators=(",", ":")).encode()
