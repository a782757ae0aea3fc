"""The rules of the admin as YAML: an export, and the changes that an import makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from django.db import router

from ..models import RateLimitRule
from ..models.audit import one_change
from ..rules import RuleError, compile
from ..rules.compiler import refuse_absent
from ..rules.describe import describe_difference
from ..rules.options import COLUMNS
from ..rules.rule import Spec
from ..views.call_sites import describe_rule
from .formatting import count_words

MARKS = {"added": "+", "changed": "~", "deleted": "-"}
"""The marks of changes in lists, by action."""


class RuleChange(NamedTuple):
    """A change of a rule: its spec before and after. None stands for no rule."""

    name: str
    before: Spec | None
    after: Spec | None

    @property
    def action(self) -> str:
        """Return one of `MARKS`."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        return "changed"

    def words(self) -> list[str]:
        title = f"{MARKS[self.action]} {self.name}"
        if self.action != "changed":
            return [f"{title}: {describe_rule(self.after or self.before or {})}"]
        return [title, *(f"    {line}" for line in describe_difference(self.before, self.after))]


def dump(rules: Sequence[Spec]) -> str:
    """Return rules as YAML.

    >>> print(dump([{"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}]), end="")
    - name: api
      path: /api/
      key: ip
      rate: 100/m
    """
    import yaml  # It is slow to import.

    return yaml.safe_dump(rules, sort_keys=False, allow_unicode=True)


def export() -> str:
    """Return the rules of the admin as YAML, in their order."""
    return dump([*_stored().values()])


def _stored() -> dict[str, Spec]:
    return {rule.name: rule.spec for rule in RateLimitRule.objects.all()}


def load(text: str, source: str = "Rules") -> dict[str, Spec]:
    """Return the rules in a YAML text, as an export would write them, by name.

    Args:
        text: The YAML.
        source: Its name in errors, such as its file.

    Raises:
        RuleError: The text is invalid. The error contains all problems, with their lines.
    """
    from .yaml_text import read_items

    specs: dict[str, Spec] = {}
    problems: list[RuleError] = []
    for where, given in read_items(text, source):
        try:
            name = compile(given, plain=True, where=where).name
            if name in specs:
                raise RuleError("name", f"two rules have the name {name}", where=where)
            specs[name] = RateLimitRule.from_spec(given).spec
        except RuleError as error:
            problems.append(error)
    if problems:
        raise RuleError.of_all(problems)
    return specs


def plan(text: str, source: str = "Rules") -> list[RuleChange]:
    """Return the changes that are needed so that the rules are as in a text.

    Args:
        text: The YAML.
        source: As in `load`.

    Raises:
        RuleError: As in `load`, or a changed rule needs an optional app that is not installed.
    """
    after = load(text, source)
    before = _stored()
    changes = [RuleChange(name, before.get(name), after.get(name)) for name in after | before]
    changes = [change for change in changes if change.before != change.after]
    for change in changes:
        refuse_absent(change.after or {}, f"{source}: rule {change.name!r}")
    return changes


def summary(changes: Sequence[RuleChange], auxiliary: str = "") -> str:
    """Return how many rules were added, changed and deleted, in words.

    Args:
        changes: The changes.
        auxiliary: Words before each verb, if nothing was changed yet.

    >>> added = RuleChange("api", None, {"name": "api"})
    >>> summary([added]), summary([added], "would be "), summary([])
    ('1 rule added', '1 rule would be added', '0 rules changed')
    """
    numbers = Counter(change.action for change in changes) or {"changed": 0}
    return ", ".join(
        f"{count_words(numbers[action], 'rule')} {auxiliary}{action}"
        for action in MARKS
        if action in numbers
    )


def apply(changes: Sequence[RuleChange]) -> None:
    """Save planned changes, all or nothing, as one revision. Overrides stay with their rules."""
    rules = RateLimitRule.objects
    with one_change(router.db_for_write(RateLimitRule)):
        stored = rules.in_bulk([change.name for change in changes], field_name="name")
        rows = []
        columns: set[str] = set()
        for change in changes:
            if change.after is not None:
                row = stored.pop(change.name, RateLimitRule())
                row.assign(change.after)
                rows.append(row)
                columns |= _columns(change.before or change.after, change.after)
        if columns:
            rules.bulk_update([row for row in rows if row.pk], columns)
        rules.bulk_create([row for row in rows if row.pk is None])
        rules.filter(name__in=stored).delete()


def _columns(before: Spec, after: Spec) -> set[str]:
    """Return the columns of a row that differ. An update of all of them takes four times longer."""
    return {
        name if name in COLUMNS else "options"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }
