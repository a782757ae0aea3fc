"""High-water marks: the most that each identity had used, or wanted, of a limit in an hour or a day.

There may be millions of identities, so a sample is kept: those with the smallest digests. Digests are random and the
same in all processes, so the samples of all processes make one (a k-minimum-values sketch: Bar-Yossef et al., "Counting
Distinct Elements in a Data Stream", RANDOM 2002). Where there are no more than `SAMPLE`, it is everybody, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAMPLE = 1024
_DIGESTS = 16**32
"""How many digests there are: 32 hexadecimal digits."""


class Sample:
    """The marks of the identities with the smallest digests, as one process has seen them."""

    __slots__ = ("_last", "_marks")

    def __init__(self) -> None:
        self._marks: dict[bytes, int] = {}
        self._last: bytes | None = None

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def is_full(self) -> bool:
        """Whether it is known beyond which digest nobody is in the sample."""
        return self._last is not None

    def end_at(self, last: bytes) -> None:
        """Nobody beyond this digest is in the sample of all processes."""
        self._last = last if self._last is None else min(last, self._last)
        self._marks = {digest: mark for digest, mark in self._marks.items() if digest <= last}

    def forget(self) -> None:
        """Forget the marks, which are news again then; not where the sample ends."""
        self._marks = {}

    def raises(self, digest: bytes, mark: int) -> bool:
        """Note a mark; whether it is news for the sample.

        >>> sample = Sample()
        >>> sample.raises(b"00", 3), sample.raises(b"00", 2), sample.raises(b"00", 4)
        (True, False, True)
        """
        if (self._last is not None and digest > self._last) or mark <= self._marks.get(digest, -1):
            return False
        self._marks[digest] = mark
        if len(self._marks) >= 2 * SAMPLE:
            smallest = sorted(self._marks)[:SAMPLE]
            self._marks = {digest: self._marks[digest] for digest in smallest}
            self._last = smallest[-1]
            return digest in self._marks
        return True


@dataclass(frozen=True, slots=True)
class Marks:
    """How much identities had used, or wanted, at most: `marks`, one for each identity of the sample; `people`: how
    many identities there are, about where that is more than there are marks."""

    marks: tuple[int, ...] = ()
    people: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether the sample is everybody."""
        return self.people == len(self.marks)

    def beyond(self, units: int) -> tuple[int, int]:
        """How many identities had used more than so many units, about, and by how many that may be wrong (two standard
        errors; 0: it is exact).

        >>> Marks((1, 5, 9), 3).beyond(4)
        (2, 0)
        """
        count = sum(mark > units for mark in self.marks)
        if self.is_exact or not self.marks:
            return count, 0
        sampled, scale = len(self.marks), self.people / len(self.marks)
        share = count / sampled
        # Of the share, and of how many there are.
        error = 2 * self.people * ((share * (1 - share) / sampled) + share * share / sampled) ** 0.5
        return round(count * scale), max(1, round(error))

    @classmethod
    def of(cls, found: Mapping[bytes, int]) -> Marks:
        """What marks that were found by digest say, of all processes and hours together."""
        if len(found) <= SAMPLE:
            return cls(tuple(sorted(found.values())), len(found))
        smallest = sorted(found)[:SAMPLE]
        share = int(smallest[-1], 16) / _DIGESTS
        people = max(len(found), round((SAMPLE - 1) / share)) if share else len(found)
        return cls(tuple(sorted(found[digest] for digest in smallest)), people)
