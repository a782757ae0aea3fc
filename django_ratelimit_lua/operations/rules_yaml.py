"""Rules of the admin as code: a YAML text that goes through review like any other, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.core.exceptions import ValidationError
from django.db import router, transaction
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from ..limits.algorithms import SYNONYMS
from ..limits.options import OPTIONS
from ..limits.rate import LimitError
from ..models import RateLimitRule, RateLimitTier
from ..models.audit import one_change
from ..rules.describe import difference, reading
from ..rules.rule import RuleError, compile_rule

Declared = Mapping[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes out what occurs twice: what is exported has no aliases, as what is imported must have none."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(rules: Sequence[Declared]) -> str:
    """Rules as YAML.

    >>> print(dump([{"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}]), end="")
    - name: api
      path: /api/
      key: ip
      rate: 100/m
    """
    return yaml.dump(list(rules), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def export() -> str:
    """The rules of the admin as YAML, in their order."""
    return dump([rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")])


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What has to be done to a rule: before and after it (None: there is none)."""

    name: str
    before: Declared | None
    after: Declared | None

    def words(self) -> list[str]:
        """The step in words."""
        if self.before is None:
            return [f"+ {self.name}: {reading(self.after or {})}"]
        if self.after is None:
            return [f"- {self.name}: {reading(self.before)}"]
        return [f"~ {self.name}", *(f"    {line}" for line in difference(self.before, self.after))]


LONGEST_TEXT = 4 * 1024 * 1024
DEEPEST = 20


class _Loader(yaml.SafeLoader):
    """YAML without what has no place in a list of rules: aliases (a few hundred bytes of them can stand for gigabytes),
    keys given twice, and nesting without end."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ComposerError(None, None, "anchors (&) and aliases (*) are not read; write it out", event.start_mark)
        if self._depth >= DEEPEST:
            raise ComposerError(None, None, "this is nested too deeply", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise ConstructorError(None, None, "merge keys (<<) are not read; write it out", key.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        made = super().construct_mapping(node, deep=deep)
        if len(made) < len(node.value):
            met: set[Any] = set()
            for key, _ in node.value:
                name = self.construct_object(key, deep=True)
                if name in met:
                    raise ConstructorError(None, None, f"{name!r} is given twice", key.start_mark)
                met.add(name)
        return made


def build_rule(given: Declared, where: str = "Rules") -> tuple[RateLimitRule, list[RateLimitTier]]:
    """A rule, and its tiers, from how it is declared; not saved. Raises `RuleError`."""
    rule = compile_rule(given, plain=True, where=where)
    where = f"{where}: rule {rule.name!r}"
    if "id" in given:
        raise RuleError(where, "name", "unknown id")
    if not rule.paths and rule.route is None and rule.group is None:
        problem = "names no path, route or group; write the path / for every request, or a group for a call site"
        raise RuleError(where, "path", problem)
    made = RateLimitRule(name=rule.name)
    for field in ("description", "mode", "order", "exempt", "route", "cost", "message", *OPTIONS):
        if given.get(field) is not None:
            setattr(made, field, given[field])
    made.algorithm = SYNONYMS.get(made.algorithm, made.algorithm)
    made.path = "\n".join(rule.paths)
    made.group = "" if rule.group in (None, rule.name) and not rule.paths and rule.route is None else rule.group or ""
    made.methods = list(dict.fromkeys(name.upper() for name in _names(given, "method", where)))
    audience = _names(given, "audience", where) or ["everyone"]
    if audience[0].startswith("group:"):
        made.audience, made.groups = "groups", [name.removeprefix("group:") for name in audience]
    else:
        made.audience = audience[0]
    made.key = "+".join(_names(given, "key", where))
    tiers = []
    try:
        if not made.exempt:
            made.rate = given["rate"]
        for tier in given.get("tiers") or ():
            tiers.append(RateLimitTier(rule=made, group=tier["group"], burst=tier.get("burst")))
            tiers[-1].rate = tier["rate"]
    except LimitError as error:
        raise RuleError(where, "rate", str(error)) from None
    try:
        made.full_clean(validate_unique=False, validate_constraints=False)
        for one in tiers:
            one.clean_fields(exclude=["rule"])
    except ValidationError as error:
        field, problems = next(iter(error.message_dict.items()))
        raise RuleError(where, field, f"{field}: {' '.join(problems)}") from None
    return made, tiers


def _names(given: Declared, field: str, where: str) -> list[str]:
    """The names in a field that holds one or several."""
    value = given.get(field)
    names = [] if value in (None, "") else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RuleError(where, field, f"{field} is {value!r}; write a name or a list of names")
    return names


def load(text: str) -> list[tuple[RateLimitRule, list[RateLimitTier]]]:
    """The rules of a YAML text, not saved. Raises `RuleError` that says which rule, where, and what is wrong."""
    rows = [build_rule(given, f"Rules, line {line}") for line, given in _parsed(text)]
    counts = Counter(made.name for made, _ in rows)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise RuleError("Rules", "name", f"two rules are called {', '.join(twice)}")
    return rows


def _parsed(text: str) -> list[tuple[int, Any]]:
    """What a YAML text lists, with the lines where each begins."""
    if len(text) > LONGEST_TEXT:
        raise RuleError("Rules", "yaml", f"more than {LONGEST_TEXT} characters")
    line = 1
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:  # A file that was cut off, more likely than the wish to delete every rule.
            raise RuleError("Rules", "yaml", "is empty; write [] where there are to be no rules")
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.SequenceNode):
            raise RuleError(f"Rules, line {line}", "yaml", "must be a list of rules, each a mapping with a name")
        found = []
        for one in node.value:
            line = one.start_mark.line + 1
            found.append((line, loader.construct_document(one)))
        return found
    except ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise RuleError(f"Rules, line {line}", "yaml", f"not YAML: {error.reason}") from None
    except yaml.YAMLError as error:
        raise RuleError("Rules", "yaml", f"not YAML: {error}") from None
    except (ValueError, ArithmeticError) as error:  # A number or date that Python does not make of its text.
        raise RuleError(f"Rules, line {line}", "yaml", f"not YAML: {error}") from None


def plan(text: str) -> list[RuleChange]:
    """What has to be done so that the rules are those of a text: nothing for those that are the same."""
    return _plan(load(text))


def _plan(rows: Sequence[tuple[RateLimitRule, list[RateLimitTier]]]) -> list[RuleChange]:
    present = {rule.name: rule for rule in RateLimitRule.objects.prefetch_related("tiers")}
    wanted = {made.name: _declared(made, tiers) for made, tiers in rows}
    steps = [
        RuleChange(name, present[name].declared() if name in present else None, after) for name, after in wanted.items()
    ]
    steps += [RuleChange(name, rule.declared(), None) for name, rule in present.items() if name not in wanted]
    return [step for step in steps if step.before != step.after]


def _declared(made: RateLimitRule, tiers: Sequence[RateLimitTier]) -> Declared:
    given = made.declared()
    if tiers:
        given["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return made.ordered(given)


def apply(text: str) -> list[RuleChange]:
    """Make the rules those of a text, all or nothing; returns what was done. Overrides stay with rules that stay."""
    with one_change(router.db_for_write(RateLimitRule)):
        rows = {made.name: (made, tiers) for made, tiers in load(text)}
        steps = _plan(list(rows.values()))
        for step in steps:
            if step.after is None:
                RateLimitRule.objects.get(name=step.name).delete()
            else:
                save_rule(*rows[step.name])
    return steps


def save_rule(made: RateLimitRule, tiers: Sequence[RateLimitTier], pk: int | None = None) -> RateLimitRule:
    """Save a rule and its tiers in the place of the one of that key, or else of that name, if there is one."""
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        wanted = {"name": made.name} if pk is None else {"pk": pk}
        present = RateLimitRule.objects.filter(**wanted).first()
        made.pk = present.pk if present is not None else pk
        made._state.adding = present is None
        made.save()
        kept = {tier.group: tier for tier in made.tiers.all()}
        for group in set(kept) - {tier.group for tier in tiers}:
            kept[group].delete()
        for tier in tiers:
            same = kept.get(tier.group)
            if same is not None and same.declared() == tier.declared():
                continue
            tier.pk = same.pk if same is not None else None
            tier.rule = made
            tier._state.adding = same is None
            tier.save()
    return made
