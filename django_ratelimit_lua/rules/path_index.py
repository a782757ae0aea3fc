"""Which of many rules a path may meet, without asking each."""

from __future__ import annotations

from collections.abc import Sequence

from ..process.bounded_map import BoundedMap
from .rule import Rule

_REMEMBERED, _REMEMBERED_BYTES = 4096, 4 * 2**20
_LONGEST = 300
"""Characters of a path that is remembered; longer ones are looked up each time."""


class Index:
    """Rules by the text that their paths begin with, so that a path only meets those that begin like it.

    The rules of a path that was asked for before are remembered, for a bounded number of short paths.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._always: list[int] = []
        self._by_prefix: dict[str, list[int]] = {}
        for place, rule in enumerate(rules):
            if not rule.paths:
                self._always.append(place)
            for pattern in rule.paths:
                # What every path of it begins with; a glob is only compiled for a path that does.
                self._by_prefix.setdefault(pattern.partition("*")[0], []).append(place)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        self._remembered: BoundedMap[str, tuple[Rule, ...]] = BoundedMap(
            _REMEMBERED, _REMEMBERED_BYTES, lambda path, found: 4 * len(path) + 8 * len(found)
        )

    def at(self, path: str) -> tuple[Rule, ...]:
        """The rules whose paths this is one of, in their order."""
        found = self._remembered.get(path)
        if found is None:
            places = set(self._always)
            for length in self._lengths:
                if length > len(path):
                    break
                places.update(self._by_prefix.get(path[:length], ()))
            candidates = (self._rules[place] for place in sorted(places))
            found = tuple(rule for rule in candidates if rule.matches_path(path))
            if len(path) <= _LONGEST:
                self._remembered.put(path, found)
        return found
