"""Patterns of paths."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_LENGTH = 10_000
"""Characters of a path that a glob looks at."""


class PathPattern:
    """A prefix or, if it contains a star, a glob for the whole path.

    `*` matches any text without a slash, `**` any text, and every other character itself.

    Matching a glob stores all possible positions in the bits of one number, so it takes one step
    for each character of the path: no backtracking, whatever the pattern (Thompson, 1968, "Regular
    expression search algorithm"). After `MAX_LENGTH` characters the result is `undecided`, unless
    nothing can match any more.

    >>> PathPattern("/api/").matches("/api/v1")
    True
    >>> pattern = PathPattern("/api/*/items")
    >>> [pattern.matches(path) for path in ("/api/v1/items", "/api/v1/x/items", "/api/v1/items/")]
    [True, False, False]
    >>> PathPattern("/files/**.pdf").matches("/files/2026/11/report.pdf")
    True
    """

    def __init__(self, pattern: str) -> None:
        self._prefix, self._is_glob, rest = pattern.partition("*")
        self._suffix = rest.rpartition("*")[2]
        self._letters: dict[str, int] = {}
        self._within = 0
        self._across = 0
        bit = 1
        for part in re.findall(r"\*+|.", pattern, re.DOTALL):
            if part == "*":
                self._within |= bit
            elif part[0] == "*":
                self._across |= bit
            else:
                self._letters[part] = self._letters.get(part, 0) | bit
            bit <<= 1
        self._end = bit

    def matches(self, path: str, undecided: bool = True) -> bool:
        """Return whether the path matches the pattern."""
        if not path.startswith(self._prefix) or not path.endswith(self._suffix):
            return False
        if not self._is_glob:
            return True
        stars = self._within | self._across
        positions = self._skip(1, stars)
        for letter in path[:MAX_LENGTH]:
            stay = positions & stars
            if letter == "/":
                stay = positions & self._across
            positions = self._skip(stay | (positions & self._letters.get(letter, 0)) << 1, stars)
            if not positions:
                return False
        if len(path) > MAX_LENGTH:
            return undecided
        return bool(positions & self._end)

    @staticmethod
    def _skip(positions: int, stars: int) -> int:
        return positions | (positions & stars) << 1


@lru_cache(maxsize=4096)
def path_pattern(text: str) -> PathPattern:
    """Return the pattern for a text; cached."""
    return PathPattern(text)
