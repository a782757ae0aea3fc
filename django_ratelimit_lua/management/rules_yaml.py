"""The rules of the admin as YAML: an export, and the changes that an import makes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import yaml
from django.db import router

from ..models import RateLimitRule
from ..models.audit import one_change
from ..operations.confirmations import confirmations
from ..operations.formatting import count_words
from ..rules import RuleError, compile
from ..rules.compiler import refuse_absent
from ..rules.describe import describe_difference
from ..rules.options import COLUMNS
from ..rules.rule import Spec
from ..views.call_sites import describe_rule

_TEXT = "tag:yaml.org,2002:str"
MARKS = {"added": "+", "changed": "~", "deleted": "-"}
"""The marks of changes in lists, by action."""


class _Loader(yaml.SafeLoader):
    """Reads YAML without aliases, which may expand to gigabytes, and with the types of JSON.

    So `off`, `no`, `2026-01-01` and `1:30` are text, and explicit tags have no effect.
    """

    yaml_constructors = {}  # noqa: RUF012 - an attribute of the instance for mypy

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read the next node; None at the end. Refuse an alias."""
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*) are not supported; write the value again"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        """Return text for what is quoted or is no JSON, and None for nothing."""
        if node.tag == _TEXT:
            return node.value
        try:
            return json.loads(node.value)
        except ValueError:
            return node.value or None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys, and read a number of slots (`rate: 5`) as text."""
        names = set()
        for key, value in node.value:
            name = str(key.value)
            if name in names:
                problem = f"{name!r} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(name)
            if name == "rate":
                value.tag = _TEXT
        return super().construct_mapping(node, deep)


def read_items(text: str, source: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of the YAML list in a text, each with its place: the source and the line.

    Raises:
        RuleError: The text is not a YAML list.
    """
    where = source
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:  # Probably a truncated file, and not the wish to delete every rule.
            raise RuleError("yaml", "is empty; write [] for no rules", where=source)
        if not isinstance(node, yaml.SequenceNode):
            problem = "must be a list of rules, each a mapping with a name"
            raise RuleError("yaml", problem, where=source)
        for item in node.value:
            where = f"{source}, line {item.start_mark.line + 1}"
            yield where, loader.construct_document(item)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            where = f"{source}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).replace("<unicode string>", source)
        raise RuleError("yaml", f"not YAML: {problem}", where=where) from None


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

    def describe(self) -> list[str]:
        """Return the lines about the change: the rule in a sentence, or the fields that differ."""
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
    return yaml.safe_dump(rules, sort_keys=False, allow_unicode=True)


def export() -> str:
    """Return the rules of the admin as YAML, in their order."""
    return dump(list(_stored_specs().values()))


def _stored_specs() -> dict[str, Spec]:
    return {rule.name: rule.spec for rule in RateLimitRule.objects.all()}


def load(text: str, source: str = "Rules") -> dict[str, Spec]:
    """Return the rules in a YAML text, as an export would write them, by name.

    Args:
        text: The YAML.
        source: Its name in errors, such as its file.

    Raises:
        RuleError: The text is invalid. The error contains all problems, with their lines.
    """
    specs: dict[str, Spec] = {}
    problems: list[RuleError] = []
    for where, item in read_items(text, source):
        try:
            name = compile(item, plain=True, where=where).name
            if name in specs:
                raise RuleError("name", f"two rules have the name {name}", where=where)
            specs[name] = RateLimitRule.from_spec(item).spec
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
    wanted = load(text, source)
    stored = _stored_specs()
    changes = [RuleChange(name, stored.get(name), wanted.get(name)) for name in wanted | stored]
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
    by_action = Counter(change.action for change in changes) or {"changed": 0}
    return ", ".join(
        f"{count_words(by_action[action], 'rule')} {auxiliary}{action}"
        for action in MARKS
        if action in by_action
    )


def apply(changes: Sequence[RuleChange]) -> None:
    """Save planned changes, all or nothing, as one revision. Overrides stay with their rules."""
    rules = RateLimitRule.objects
    with one_change(router.db_for_write(RateLimitRule)):
        stored = rules.in_bulk([change.name for change in changes], field_name="name")
        # Others may have changed the rules since the plan: the stored rows decide.
        updated, created, deleted = [], [], []
        for change in changes:
            if change.after is None:
                deleted.append(change.name)
            elif change.name in stored:
                row = stored[change.name]
                row.assign(change.after)
                updated.append(row)
            else:
                created.append(RateLimitRule.from_spec(change.after))
        rules.bulk_update(updated, [*COLUMNS, "options"])
        rules.bulk_create(created)
        rules.filter(name__in=deleted).delete()


def changed_confirmations(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """Return the warnings to confirm for changes of rules, by the names of the rules.

    Effects that a rule has already are left out.
    """
    warnings = {}
    for change in changes:
        mode = ""
        if change.before is not None:
            mode = change.before.get("mode", "enforce")
        old = _find_warnings(change.before)
        new = [text for text in _find_warnings(change.after, mode) if text not in old]
        if new:
            warnings[change.name] = new
    return warnings


def _find_warnings(spec: Spec | None, mode: str = "") -> list[str]:
    """Return the warnings to confirm for a version of a rule; none for no or an invalid rule."""
    if spec is None:
        return []
    try:
        warnings = confirmations(RateLimitRule.from_spec(spec), mode)
    except RuleError:  # The row was broken by hand.
        return []
    return [text for _field, text in warnings]
