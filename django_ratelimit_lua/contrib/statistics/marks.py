"""High-water marks: the maximum units that each identity used, or requested, under a limit.

They are kept by hour and by day. There may be millions of identities, so only a sample is kept:
those with the smallest digests. Digests are random and the same in all processes, so the samples of
all processes can be merged (a k-minimum-values sketch: Bar-Yossef et al., "Counting Distinct
Elements in a Data Stream", RANDOM 2002). If there are at most `SAMPLE` identities, it contains all
of them, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAMPLE = 1024
_DIGESTS = 16**32
"""How many digests there are: 32 hexadecimal digits."""


class Sample(dict[bytes, int]):
    """The marks of the identities with the smallest digests, as one process has counted them."""

    _last = b"g"
    """No digest beyond this one is in the sample; this one stands behind all digests."""

    def note(self, marks: Mapping[bytes, int]) -> dict[bytes, int]:
        """Store marks, and return those that change the sample.

        >>> sample = Sample()
        >>> [sample.note({b"00": mark}) for mark in (3, 2, 4)]
        [{b'00': 3}, {}, {b'00': 4}]
        """
        news = {
            digest: mark
            for digest, mark in marks.items()
            if digest <= self._last and mark > self.get(digest, -1)
        }
        self.update(news)
        if len(self) > 2 * SAMPLE:
            # One more is kept, which shows that there were others.
            self._last = sorted(self)[SAMPLE]
            for digest in [digest for digest in self if digest > self._last]:
                del self[digest]
        return {digest: mark for digest, mark in news.items() if digest <= self._last}


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of identities.

    - `marks`: one for each identity of the sample;
    - `people`: the number of identities, estimated if it is larger than the sample.
    """

    marks: tuple[int, ...] = ()
    people: int = 0

    @property
    def is_exact(self) -> bool:
        """Return whether the sample contains all identities."""
        return self.people == len(self.marks)

    def beyond(self, units: int) -> tuple[int, int]:
        """Estimate how many identities used more than this number of units.

        Returns:
            The bounds of the number, two standard errors from the estimate.

        >>> Marks((1, 5, 9), 3).beyond(4)
        (2, 2)
        """
        count = sum(mark > units for mark in self.marks)
        if self.is_exact:
            return count, count
        sampled = len(self.marks)
        share = count / sampled
        # Of the share, and of how many there are.
        variance = share * (1 - share) / sampled + share * share / sampled
        error = max(1, round(2 * self.people * variance**0.5))
        number = round(share * self.people)
        return max(0, number - error), number + error

    @classmethod
    def of(cls, found: Mapping[bytes, int]) -> Marks:
        """Return the merged marks of all processes and hours, given by digest."""
        if len(found) <= SAMPLE:
            return cls(tuple(sorted(found.values())), len(found))
        smallest = sorted(found)[:SAMPLE]
        share = int(smallest[-1], 16) / _DIGESTS
        people = max(len(found), round((SAMPLE - 1) / share)) if share else len(found)
        return cls(tuple(sorted(found[digest] for digest in smallest)), people)
