"""The map for everything that a process caches about requests, bounded in entries and bytes.

It is for data that may be dropped at any time, because it can be fetched or made again, and for
the counts of `engine/local`. Keys are digests, or short: a map never keeps a full text from a
client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from .forks import renew_after_fork

K = TypeVar("K")
V = TypeVar("V")
ENTRY_BYTES = 200
"""The assumed cost of an entry in addition to its weight: key, value and their places."""


class BoundedMap(Generic[K, V]):
    """Keeps at most `max_entries`, of at most `max_bytes` in total, and drops the oldest first.

    - `weigh`: returns the approximate size of an entry in bytes. Default: entries are small;
    - `max_weight`: the maximum size of an entry (default: a hundredth of the total). A larger entry
      is not kept, so that no single entry evicts the others;
    - `labels_of`: returns labels by which an entry can be dropped, in addition to its key;
    - `entries`: the values, each with its size.

    Reading takes no lock.

    >>> squares = BoundedMap(2)
    >>> for number in (1, 2, 3):
    ...     squares.put(number, number * number)
    >>> squares.get(1), squares.get(3), len(squares)
    (None, 9, 2)
    """

    def __init__(
        self,
        max_entries: int,
        max_bytes: int = 16 * 2**20,
        weigh: Callable[[K, V], int] | None = None,
        max_weight: int | None = None,
        labels_of: Callable[[K], Iterable[bytes]] | None = None,
    ) -> None:
        self.max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_weight = max_weight or max_bytes // 100
        self._is_plain = weigh is None and labels_of is None
        self._weigh = weigh or (lambda key, value: 0)
        self._labels_of = labels_of or (lambda key: ())
        self.entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._renew()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        """Renew the lock, and compute again what another thread may have been changing."""
        self._lock = Lock()
        self._bytes = sum(weight for _, weight in self.entries.values())
        self._labelled: dict[bytes, set[K]] = {}
        for key in self.entries:
            self._label(key)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: K) -> bool:
        return key in self.entries

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        return entry[0]

    def put(self, key: K, value: V) -> None:
        """Store a value as the latest entry, and drop the oldest ones if there is no room."""
        if self._is_plain:  # Without a lock, because every hit stores something.
            self.entries[key] = (value, 0)
            while len(self.entries) > self.max_entries:
                with suppress(KeyError):  # Another thread has dropped the last one.
                    self.entries.popitem(last=False)
            return
        weight = ENTRY_BYTES + self._weigh(key, value)
        with self._lock:
            self._drop(key)
            if weight > self._max_weight:
                return
            self.entries[key] = (value, weight)
            self._bytes += weight
            self._label(key)
            while len(self.entries) > self.max_entries or self._bytes > self._max_bytes:
                self._drop(next(iter(self.entries)))

    def pop(self, key: K) -> V | None:
        """Drop a key, and return its value, or None."""
        with self._lock:
            return self._drop(key)

    def pop_labelled(self, label: bytes) -> list[V]:
        """Drop all entries that have a label, and return their values."""
        with self._lock:
            values = [self._drop(key) for key in list(self._labelled.get(label, ()))]
        return [value for value in values if value is not None]

    def clear(self) -> list[V]:
        """Drop all entries, and return their values."""
        with self._lock:
            # `list` copies them at once, because other threads put entries without a lock.
            values = [value for value, _ in list(self.entries.values())]
            self.entries.clear()
            self._labelled.clear()
            self._bytes = 0
        return values

    def _label(self, key: K) -> None:
        for label in self._labels_of(key):
            self._labelled.setdefault(label, set()).add(key)

    def _drop(self, key: K) -> V | None:
        """Drop a key with its labels, and return its value, or None. The caller holds the lock."""
        entry = self.entries.pop(key, None)
        if entry is None:
            return None
        self._bytes -= entry[1]
        for label in self._labels_of(key):
            keys = self._labelled.get(label, set())
            keys.discard(key)
            if not keys:
                self._labelled.pop(label, None)
        return entry[0]
