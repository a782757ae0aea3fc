"""Paths of rules, and an index of the rules that a path may match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ..process.bounded_map import BoundedMap

if TYPE_CHECKING:
    from .rule import Rule

MAX_LENGTH = 10_000
"""Characters of a path that a glob looks at."""
_REMEMBERED = 4096
_REMEMBERED_BYTES = 4 * 2**20
_MAX_REMEMBERED_LENGTH = 300
"""Characters of a path that an index remembers; longer ones are looked up each time."""


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


class PathIndex:
    """Rules indexed by the prefixes of their paths, so that few are compared with each path.

    The results for a bounded number of short paths are cached.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_prefix: dict[str, list[int]] = {}
        for place, rule in enumerate(rules):
            for pattern in rule.paths or ("",):
                # What every path of it begins with; a pattern is only compiled for a path that
                # does.
                self._by_prefix.setdefault(pattern.partition("*")[0], []).append(place)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        self._remembered: BoundedMap[str, tuple[Rule, ...]] = BoundedMap(
            _REMEMBERED, _REMEMBERED_BYTES, lambda path, rules: 4 * len(path) + 8 * len(rules)
        )

    def matching(self, path: str) -> tuple[Rule, ...]:
        """Return the rules that match this path, in their order."""
        rules = self._remembered.get(path)
        if rules is None:
            places: set[int] = set()
            for length in self._lengths:
                if length > len(path):
                    break
                places.update(self._by_prefix.get(path[:length], ()))
            rules = tuple(
                self._rules[place]
                for place in sorted(places)
                if self._rules[place].matches_path(path)
            )
            if len(path) <= _MAX_REMEMBERED_LENGTH:
                self._remembered.put(path, rules)
        return rules
