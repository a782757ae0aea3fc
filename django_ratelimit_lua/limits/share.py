"""The share of a process in a limit that is divided among hosts by weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


@lru_cache(maxsize=1024)
def divide(whole: int, weights: Sequence[int]) -> Sequence[int]:
    """Divide a number of units by weights, with the method of the largest remainder.

    >>> divide(100, (1, 1, 1)), divide(10, (70, 30)), divide(1, (1, 2))
    ((34, 33, 33), (7, 3), (0, 1))
    """
    total = sum(weights)
    parts = [whole * weight // total for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda place: whole * weights[place] % total, reverse=True
    )
    for place in by_remainder[: whole - sum(parts)]:
        parts[place] += 1
    return tuple(parts)


class Share(NamedTuple):
    """The share of one process: its host is one of several with weights, and it is one on its host.

    - `weights`: the weights of the hosts; `host`: the position of its own;
    - `processes`: the number of processes on its host; `process`: its own position.

    >>> [Share((70, 30), 1, 4, number).units(100) for number in range(4)]
    [8, 8, 7, 7]
    """

    weights: tuple[int, ...]
    host: int
    processes: int
    process: int

    def units(self, whole: int) -> int:
        """Return the part of a number of units. The parts of all processes add up to it."""
        of_host = divide(whole, self.weights)[self.host]
        return divide(of_host, (1,) * self.processes)[self.process]
