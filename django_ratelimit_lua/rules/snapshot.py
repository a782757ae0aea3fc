"""Published rules, as far as this version of the package can read them.

A snapshot has one `format` number. One of a newer format is not read: the process uses the rules of
its database instead, see `rules.provider`, and never publishes over it.

Values may also have been edited by hand. That may neither break a request nor lift a limit: for an
invalid rule, the last valid version stays; without one, the rule is skipped. A snapshot with a part
of a wrong type is not read at all, and is published again from the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..extension import PLACES
from ..limits.call import Revision
from .rule import Rule, RuleError, compile_rule

Snapshot = Mapping[str, Any]
"""The rules as they are published, parsed. `Ruleset` lists its parts."""
FORMAT = 4
"""The version of what this package publishes. Raise it whenever older versions would leave
something out of it: a new word of a rule or an override, or a new part. A process never publishes
over a higher format.
"""
WHERE = "Rules of the admin"
_PARTS: Mapping[str, type] = {
    "rules": list,
    "weights": dict,
    "kinds": dict,
    "blocks": list,
    "keys": list,
    "field_keys": dict,
    "parts": dict,
    "database": str,
}


class UnreadableError(ValueError):
    """The published snapshot cannot be used.

    It is invalid, has a newer format, or belongs to another database. In the last two cases, it is
    not replaced (`is_kept`).
    """

    def __init__(self, problem: str, *, is_kept: bool = False) -> None:
        super().__init__(problem)
        self.is_kept = is_kept


class ReadRule(NamedTuple):
    """A rule as it was declared, the compiled rule, and its problems."""

    given: object
    rule: Rule | None
    problems: Sequence[str]


def read_rule(given: Any, before: Rule | None) -> ReadRule:
    """Compile a rule; if it is invalid, return its last valid version, `before`."""
    try:
        rule = compile_rule(given, plain=True, strict=False, where=WHERE)
        if type(rule.pk) is not int:
            raise RuleError(f"{WHERE}: rule {rule.name!r}", "id", "the id of the row is missing")
    except RuleError as error:
        problem = str(error)
    except Exception as error:  # Anything, edited by hand.
        problem = f"{WHERE}: {str(given)[:200]}: {type(error).__name__}: {error}"
    else:
        if rule.is_elsewhere and rule.extra.keys().isdisjoint(PLACES):
            # Its only place is one of an optional app that is not installed.
            return ReadRule(given, None, ())
        return ReadRule(given, rule, rule.problems)
    if before is not None:
        problem += "; its last valid version stays in force"
    return ReadRule(given, before, (problem,))


def is_of_older_format(snapshot: Snapshot) -> bool:
    """Return whether an older version has published the snapshot, and may have omitted fields."""
    return bool(snapshot.get("format", 1) < FORMAT)


def parse_snapshot(text: bytes) -> dict[str, Any]:
    """Return the snapshot, with its `Revision`. Raises `UnreadableError`."""
    try:
        snapshot = json.loads(text)
        if not isinstance(snapshot, dict):
            raise ValueError(f"invalid snapshot: {str(snapshot)[:100]}")
        form = snapshot.get("format", 1)
        if type(form) is not int or form < 1:
            raise ValueError(f"invalid snapshot format {str(form)[:100]}")
        if form <= FORMAT:
            snapshot["revision"] = Revision.read(str(snapshot.get("revision", 0)).encode())
            _check_parts(snapshot)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {str(error)[:200]}") from None
    if form > FORMAT:
        problem = f"the snapshot has format {form}; this version reads format {FORMAT}"
        raise UnreadableError(problem, is_kept=True)
    return snapshot


def _check_parts(snapshot: Snapshot) -> None:
    """Raise `ValueError` if a part, or a list of texts in it, has a wrong type."""
    for name, kind in _PARTS.items():
        part = snapshot.get(name, kind())
        lists: list[Iterable[object]] = []
        if name in ("kinds", "field_keys") and isinstance(part, dict):
            lists = [*part.values()]
        elif name in ("blocks", "keys"):
            lists = [part]
        is_right = isinstance(part, kind) and {*map(type, lists)} <= {list}
        if not is_right or not {*map(type, chain(*lists))} <= {str}:
            raise ValueError(f"{name} is {str(part)[:100]}")
