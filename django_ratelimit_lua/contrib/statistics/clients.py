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
from ...identity import Identity
from ...identity.names import Name, display_name, is_short
from ...rules.rule import Rule

CAPACITY = 1024
"""Clients that are counted at one time. Smaller summaries miss half of the real ten most frequent
of a long tail.
"""
TOP = 100
"""Clients that each process writes of those that used most, and of those that were refused most."""


class ClientCount:
    """The counts of one client under one limit between two flushes.

    - `allowed`, `refused`: its requests, including refusals in shadow mode;
    - `stopped`: the refusals that are also counted for the whole site;
    - `units`: the units that it took;
    - `rule`: its rule in shadow mode, or None;
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

    def __init__(self, decided: DecidedCharge) -> None:
        self.is_client = decided.identity is not None
        # Only rules in shadow mode are counted by version.
        self.rule: Rule | None = None
        if decided.charge.limit.mode == "shadow":
            self.rule = decided.rule
        # An identity is kept for a second, and may be as long as a request.
        self._identity: Identity = None
        self._name: Name | None = None
        if is_short(decided.identity):
            self._identity = decided.identity
        else:
            self._name = display_name(decided.identity)
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
        new_clients = []
        for digest, number in times.items():
            if digest in estimates:
                estimates[digest].times += number
            else:
                new_clients.append((digest, number))
        if not new_clients:
            return
        heap = [(estimate.times, digest) for digest, estimate in estimates.items()]
        heapq.heapify(heap)
        for digest, number in new_clients:
            least = 0
            if len(estimates) >= self.capacity:
                # The new client takes the place of the rarest one, and may have had its count.
                least, rarest = heapq.heappop(heap)
                del estimates[rarest]
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

    def add(self, clients: Mapping[bytes, ClientCount], **attributes: str) -> None:
        """Add the counts of clients since the last flush.

        Args:
            clients: The clients, by digest.
            attributes: By the name of a summary, the attribute of a client that it counts.
        """
        for summary, attribute in attributes.items():
            times = {digest: getattr(client, attribute) for digest, client in clients.items()}
            counted = {digest: number for digest, number in times.items() if number}
            self.summaries[summary].add(counted, lambda digest: clients[digest].name)

    def to_json(self) -> bytes:
        """Return both lists as JSON, each with the maximum count of a client that is not in it."""
        lists = {}
        for name, summary in self.summaries.items():
            rows: list[list[Any]] = [
                [client.digest, client.times, client.error, client.name]
                for client in summary.top(TOP + 1)
            ]
            least = summary.least
            if len(rows) > TOP:
                least = rows.pop()[1]
            lists[name] = [least, rows]
        return json.dumps(lists, separators=(",", ":")).encode()
