"""Paths as rules name them: a prefix, or a glob."""

from __future__ import annotations

from functools import lru_cache

LONGEST = 10_000
"""Characters of a path that a glob looks at."""


class Glob:
    """`*` is any text without a slash, `**` any text at all; everything else is itself. The whole path must match.

    Matching keeps every possible position in the bits of one number, so it takes one step for each character of the
    path: no backtracking, whatever the pattern (Thompson, 1968, "Regular expression search algorithm"). After `LONGEST`
    characters the answer is `undecided`, unless nothing could match any more.

    >>> [Glob("/api/*/items").matches(path) for path in ("/api/v1/items", "/api/v1/x/items", "/api/v1/items/")]
    [True, False, False]
    >>> Glob("/files/**.pdf").matches("/files/2026/11/report.pdf")
    True
    """

    def __init__(self, pattern: str) -> None:
        self.prefix = pattern.partition("*")[0]
        self._suffix = pattern.rpartition("*")[2]
        self._letters: dict[str, int] = {}
        self._within = self._across = 0
        bit = 1
        parts = iter(range(len(pattern)))
        for at in parts:
            if pattern[at] != "*":
                self._letters[pattern[at]] = self._letters.get(pattern[at], 0) | bit
            else:
                stars = len(pattern) - at - len(pattern[at:].lstrip("*"))
                for _ in range(stars - 1):
                    next(parts)
                if stars == 1:
                    self._within |= bit
                else:
                    self._across |= bit
            bit <<= 1
        self._end = bit

    def matches(self, path: str, undecided: bool = True) -> bool:
        """Whether the whole path is as the pattern says."""
        if not path.startswith(self.prefix) or not path.endswith(self._suffix):
            return False
        stars = self._within | self._across
        at = self._skip(1, stars)
        for letter in path[:LONGEST]:
            stay = at & (self._across if letter == "/" else stars)
            at = self._skip(stay | (at & self._letters.get(letter, 0)) << 1, stars)
            if not at:
                return False
        return bool(at & self._end) if len(path) <= LONGEST else undecided

    @staticmethod
    def _skip(at: int, stars: int) -> int:
        return at | (at & stars) << 1


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Glob | None:
    """The glob of a pattern, or None for a plain prefix."""
    return Glob(pattern) if "*" in pattern else None


def path_matches(pattern: str, path: str, undecided: bool = True) -> bool:
    """Whether a path begins with a prefix, or is as a glob says; see `Glob`.

    >>> path_matches("/api/", "/api/v1"), path_matches("/api/*", "/api/v1/x")
    (True, False)
    """
    glob = compiled(pattern)
    return path.startswith(pattern) if glob is None else glob.matches(path, undecided)
