"""Rules as they are published: read as far as this version of the package understands them.

While a new version is rolled out, the older one has to live with what the newer publishes; and rows are also written by
hand. No request may fail of that, and no limit may be lifted by it:

- a word that is not known is ignored where that leaves a limit, at a place that is said: it may hold for more requests
  than was meant, until the newer version is everywhere. So is a value that is not known of a word with a fixed choice
  of values, which then has its default; without a mode, a rule enforces;
- a rule that lifts limits (`exempt`, `mode: "off"`), refuses everybody (a rate of 0) or does not say in known words
  where it applies would do harm beyond what was meant, and one with an unknown key counts nobody. Of these, and of
  rules that are wrong, what was understood last goes on; where this process has understood none, they are left out.

A snapshot of a higher `FORMAT` is read in the same way. One that has no list of rules, or is none, is not read at all:
see `rules.provider`.
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
"""The version of what this package publishes. Raise it whenever older versions would leave something out of it: a new
word of a rule or an override, or a new part. A process never publishes over a higher format."""
CHOICES = ("mode", "audience", "split", *(option for option, row in OPTIONS.items() if row.names))
"""Words whose values a newer version may have more of."""
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
    """What is published cannot be used: it is garbage, or it is of a newer format or another database and is kept."""

    def __init__(self, problem: str, *, is_kept: bool = False) -> None:
        super().__init__(problem)
        self.is_kept = is_kept


class ReadRule(NamedTuple):
    """A rule as it was declared, what was understood of it, and what was not."""

    given: Any
    rule: Rule | None
    problems: Sequence[str]


def read_rule(given: Any, before: Rule | None) -> ReadRule:
    """A rule as far as it is understood; where it is not, what was understood `before` goes on."""
    try:
        try:
            rule = compile_rule(given, plain=True, strict=False, where=WHERE)
        except RuleError as error:
            rule = _without_unknown(given, error)
        if type(rule.pk) is not int:
            raise RuleError(f"{WHERE}: rule {rule.name!r}", "id", "of no row")
    except RuleError as error:
        problem = str(error)
    except Exception as error:  # Whatever somebody wrote by hand.
        problem = f"{WHERE}: {str(given)[:200]}: {type(error).__name__}: {error}"
    else:
        if rule.is_elsewhere and rule.extra.keys().isdisjoint(PLACES):
            return ReadRule(given, None, ())  # Its only place is one of an annex that is not installed.
        return ReadRule(given, rule, rule.problems)
    goes_on = "" if before is None else "; what was understood last goes on"
    return ReadRule(given, before, (problem + goes_on,))


def _without_unknown(given: Any, problem: RuleError) -> Rule:
    """The rule without what this version does not know, where that leaves a limit. Else raises the problem it has."""
    if not isinstance(given, Mapping):
        raise problem
    words = {word: value for word, value in given.items() if word in (*FIELDS, *FIELDS_OF_ANNEXES, "id")}
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
            choices = (*CHOICES, *OPTIONS)  # What else was said may belong to it, as the burst to a token bucket.
    if not ignored or not _may_be_widened(rule):
        raise problem
    return replace(
        rule,
        problems=(*rule.problems, f"{problem.where}: what this version does not know of it: {', '.join(ignored)}"),
    )


def _may_be_widened(rule: Rule) -> bool:
    """Whether no harm comes of a rule that holds for more requests than it was meant for."""
    given = rule.given or {}
    is_placed = rule.paths or rule.route or given.get("group") or rule.is_elsewhere
    if rule.template is None or rule.mode == "off" or not is_placed:
        return False
    return all(isinstance(rate, Rate) and rate.limit > 0 for rate in rule.template.rates)


def valid_parts(snapshot: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """A snapshot whose parts have the shape they must have, and what is wrong with it. Of a part that has not, the one
    of the snapshot `before` goes on. Raises `ValueError` where its revision is none."""
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
            is_right = {*map(type, lists)} <= {list} and {type(text) for texts in lists for text in texts} <= {str}
        if not is_right:
            problems.append(f"what is published as {name!r} cannot be understood: {str(part)[:100]}")
            parts.pop(name)
            if name in before:
                parts[name] = before[name]
    return parts, problems


def is_of_older_format(snapshot: Mapping[str, Any]) -> bool:
    """Whether an older version has published it, which may have left out what it does not know."""
    form = snapshot.get("format")
    return not isinstance(form, int) or form < FORMAT


def can_publish_over(form: bytes) -> bool:
    """Whether this version may publish over a snapshot of that format."""
    return form.isdigit() and len(form) < 10 and int(form) <= FORMAT


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
        raise UnreadableError(f"a snapshot of the format {form}; this version reads {FORMAT}", is_kept=True)
    try:
        snapshot["revision"] = Revision.read(str(snapshot.get("revision", 0)).encode())
    except ValueError as error:
        raise UnreadableError(f"a snapshot of the revision {str(error)[:100]}") from None
    return snapshot
