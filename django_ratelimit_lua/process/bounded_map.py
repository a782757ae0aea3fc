"""The one map for what a process remembers of requests: bounded in entries and in bytes, whoever asks for what.

Only for what may be forgotten at any time, because it can be asked for or made again; what may not is in
`engine/counters`. Keys are digests, or short: a map never keeps what somebody sent as a whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from .forks import renew_after_fork

K = TypeVar("K")
V = TypeVar("V")
ENTRY_BYTES = 200
"""What an entry is taken to cost beside its weight: key, value and their places."""


class BoundedMap(Generic[K, V]):
    """Keeps at most `most` entries of at most `most_bytes` together; what was put there first goes first.

    `weigh` tells how many bytes an entry has, about; None: few. An entry that is heavier than `heaviest` (a hundredth
    of the whole) is not kept at all, so that no single one drives out the others. Reading takes no lock.

    >>> squares = BoundedMap(2)
    >>> for number in (1, 2, 3):
    ...     _ = squares.put(number, number * number)
    >>> squares.get(1), squares.get(3), len(squares)
    (None, 9, 2)
    """

    def __init__(
        self,
        most: int,
        most_bytes: int = 16 * 2**20,
        weigh: Callable[[K, V], int] | None = None,
        heaviest: int | None = None,
    ) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._heaviest = most_bytes // 100 if heaviest is None else heaviest
        self._weigh = weigh
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._renew()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self._bytes = sum(weight for _, weight in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What is kept under a key."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V) -> list[tuple[K, V]]:
        """Keep something, as the latest. Returns what is not kept any more instead, or it itself if it is too heavy."""
        weight = ENTRY_BYTES + (self._weigh(key, value) if self._weigh is not None else 0)
        gone: list[tuple[K, V]] = []
        with self._lock:
            self._drop(key)
            if weight > self._heaviest:
                return [(key, value)]
            self._entries[key] = (value, weight)
            self._bytes += weight
            while len(self._entries) > self.most or self._bytes > self._most_bytes:
                other, (was, its_weight) = self._entries.popitem(last=False)
                self._bytes -= its_weight
                gone.append((other, was))
        return gone

    def pop(self, key: K) -> V | None:
        """Forget a key; returns what was kept under it."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> list[V]:
        """Forget all; returns it."""
        with self._lock:
            values = [value for value, _ in self._entries.values()]
            self._entries.clear()
            self._bytes = 0
        return values

    def items(self) -> list[tuple[K, V]]:
        """All that is kept, the latest last."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

    def _drop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        return entry[0]
