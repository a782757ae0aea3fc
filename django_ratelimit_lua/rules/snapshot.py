"""Published rules, read as far as this version of the package understands them.

During the rollout of a new version, the older one has to read snapshots of the newer, and rows are
also edited by hand. No request may fail because of that, and no limit may be lifted:

- an unknown field is ignored if a limit with a place remains. It may apply to more requests than
  intended, until the newer version runs everywhere. The same holds for an unknown value of a field
  with fixed choices, which then has its default; without a mode, a rule enforces;
- a rule that lifts limits (`exempt`, `mode: "off"`), refuses all requests (a rate of 0) or has no
  known place would do harm beyond its intention, and one with an unknown key has no identity. Of
  these, and of invalid rules, the last understood version stays; otherwise they are skipped.

A snapshot of a higher `FORMAT` is read in the same way. One without a list of rules is not read at
all: see `rules.provider`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..extension import FIELDS_OF_ANNEXES, PLACES
from ..limits.call import NO_RULES, Revision
from ..limits.options import OPTIONS
from ..limits.rate import Rate
from .rule import FIELDS, Rule, RuleError, compile_rule

FORMAT = 4
"""The version of what this package publishes. Raise it whenever older versions would leave
something out of it: a new word of a rule or an override, or a new part. A process never publishes
over a higher format.
"""
CHOICES = ("mode", "audience", "split", *(option for option, row in OPTIONS.items() if row.names))
"""Fields for which a newer version may have more values."""
WHERE = "Rules of the admin"
_PARTS: Mapping[str, tuple[type, bool]] = {
    "rules": (list, False),
    "kinds": (dict, True),
    "blocks": (list, True),
    "keys": (list, True),
    "field_keys": (dict, True),
    "parts": (dict, False),
    "database": (str, False),
}
"""The parts of a snapshot: of which type, and whether its values, or itself, are lists of texts."""


class UnreadableError(ValueError):
    """The published snapshot cannot be used: it is invalid, or of a newer format or another
    database, and stays.
    """

    def __init__(self, problem: str, *, is_kept: bool = False) -> None:
        super().__init__(problem)
        self.is_kept = is_kept


class ReadRule(NamedTuple):
    """A rule as it was declared, what was understood of it, and what was not."""

    given: Any
    rule: Rule | None
    problems: Sequence[str]


def read_rule(given: Any, before: Rule | None) -> ReadRule:
    """A rule as far as it is understood; otherwise the version `before`."""
    try:
        try:
            rule = compile_rule(given, plain=True, strict=False, where=WHERE)
        except RuleError as error:
            rule = _without_unknown(given, error)
        if type(rule.pk) is not int:
            raise RuleError(f"{WHERE}: rule {rule.name!r}", "id", "of no row")
    except RuleError as error:
        problem = str(error)
    except Exception as error:  # Anything, edited by hand.
        problem = f"{WHERE}: {str(given)[:200]}: {type(error).__name__}: {error}"
    else:
        if rule.is_elsewhere and rule.extra.keys().isdisjoint(PLACES):
            return ReadRule(
                given, None, ()
            )  # Its only place is one of an annex that is not installed.
        return ReadRule(given, rule, rule.problems)
    goes_on = "" if before is None else "; what was understood last goes on"
    return ReadRule(given, before, (problem + goes_on,))


def _without_unknown(given: Any, problem: RuleError) -> Rule:
    """The rule without its unknown fields, if a limit remains. Otherwise raises its problem."""
    if not isinstance(given, Mapping):
        raise problem
    words = {
        word: value for word, value in given.items() if word in (*FIELDS, *FIELDS_OF_ANNEXES, "id")
    }
    ignored = [f"{word!r}" for word in given if word not in words]
    choices: Sequence[str] = CHOICES
    while True:
        try:
            rule = compile_rule(words, plain=True, strict=False, where=WHERE)
            break
        except RuleError as error:
            if error.field not in choices or error.field not in words:
                raise problem from None
            ignored.append(f"{error.field} {words.pop(error.field)!r}")
            choices = (
                *CHOICES,
                *OPTIONS,
            )  # Other fields may belong to it, as the burst to a token bucket.
    if not ignored or not _may_be_widened(rule):
        raise problem
    return replace(
        rule,
        problems=(
            *rule.problems,
            f"{problem.where}: what this version does not know of it: {', '.join(ignored)}",
        ),
    )


def _may_be_widened(rule: Rule) -> bool:
    """Whether no harm comes of a rule that holds for more requests than it was meant for."""
    given = rule.given or {}
    is_placed = rule.paths or rule.route or given.get("group") or rule.is_elsewhere
    if rule.template is None or rule.mode == "off" or not is_placed:
        return False
    return all(isinstance(rate, Rate) and rate.limit > 0 for rate in rule.template.rates)


def valid_parts(
    snapshot: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """A snapshot whose parts have the right types, and its problems.

    A part with a wrong type is replaced by that of the snapshot `before`. Raises `ValueError` if
    its revision is invalid.
    """
    parts = dict(snapshot)
    problems = []
    revision = parts.get("revision", NO_RULES)
    if not isinstance(revision, Revision):
        parts["revision"] = Revision.read(str(revision).encode())
    for name, (kind, holds_texts) in _PARTS.items():
        part = parts.get(name, kind())
        is_right = isinstance(part, kind)
        if is_right and holds_texts:
            lists = list(part.values()) if kind is dict else [part]
            is_right = {*map(type, lists)} <= {list} and {
                type(text) for texts in lists for text in texts
            } <= {str}
        if not is_right:
            problems.append(
                f"what is published as {name!r} cannot be understood: {str(part)[:100]}"
            )
            parts.pop(name)
            if name in before:
                parts[name] = before[name]
    return parts, problems


def is_of_older_format(snapshot: Mapping[str, Any]) -> bool:
    """Whether an older version has published it, which may have left out what it does not know."""
    form = snapshot.get("format")
    return not isinstance(form, int) or form < FORMAT


def parse_snapshot(text: bytes) -> Mapping[str, Any]:
    """The snapshot that is written so, with its `Revision`. Raises `UnreadableError`."""
    try:
        snapshot = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    if not isinstance(snapshot, dict):
        raise UnreadableError(f"not a snapshot of rules: {str(snapshot)[:100]}")
    form = snapshot.get("format", 1)
    if isinstance(form, bool) or not isinstance(form, int) or form < 1:
        raise UnreadableError(f"a snapshot of the format {str(form)[:100]}")
    if form > FORMAT and not isinstance(snapshot.get("rules"), list):
        raise UnreadableError(
            f"a snapshot of the format {form}; this version reads {FORMAT}", is_kept=True
        )
    try:
        snapshot["revision"] = Revision.read(str(snapshot.get("revision", 0)).encode())
    except ValueError as error:
        raise UnreadableError(f"a snapshot of the revision {str(error)[:100]}") from None
    return snapshot
