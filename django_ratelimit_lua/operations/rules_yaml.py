"""The rules of the admin, exported to and imported from YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import shorten
from typing import NamedTuple, TypeVar

from django.core.exceptions import ValidationError
from django.db import router

from ..extension import FIELDS_OF_ANNEXES, rule_fields
from ..limits.algorithms import SYNONYMS
from ..limits.options import OPTIONS
from ..limits.rate import LimitError
from ..models import RateLimitRule, RateLimitTier
from ..models.audit import BATCH, AuditedModel, AuditedQuerySet, one_change
from ..rules.describe import difference, reading
from ..rules.rule import Declared, RuleError, compile_rule, refuse_absent
from .formatting import count_words

M = TypeVar("M", bound=AuditedModel)
Built = tuple[RateLimitRule, list[RateLimitTier]]
MARKS = {"added": "+", "changed": "~", "deleted": "-"}
"""The marks of changes in lists, by action."""
MAX_TEXT_LENGTH = 4 * 1024 * 1024
_COPIED = ("name", "description", "mode", "order", "exempt", "route", "group", "cost", "message")
"""Fields that a row has as they are declared; those of `OPTIONS` are too."""


def dump(rules: Sequence[Declared]) -> str:
    """Return rules as YAML.

    >>> print(dump([{"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}]), end="")
    - name: api
      path: /api/
      key: ip
      rate: 100/m
    """
    from .yaml_text import dump_list

    return dump_list(list(rules))


def export() -> str:
    """Return the rules of the admin as YAML, in their order."""
    return dump(list(_stored_rules().values()))


class RuleChange(NamedTuple):
    """A change of a rule: its declarations before and after. None stands for no rule.

    `built`: the unsaved row and tiers of the rule after the change.
    """

    name: str
    before: Declared | None
    after: Declared | None
    built: Built | None = None

    @property
    def action(self) -> str:
        """Return one of `MARKS`."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        return "changed"

    def words(self) -> list[str]:
        mark = MARKS[self.action]
        if self.action != "changed":
            return [f"{mark} {self.name}: {reading(self.after or self.before or {})}"]
        lines = [f"    {line}" for line in difference(self.before, self.after)]
        return [f"{mark} {self.name}", *lines]


def build_rule(given: Declared, where: str = "Rules") -> Built:
    """Return a rule and its tiers, not saved, from its declaration.

    Args:
        given: The declaration.
        where: The text that it is in.

    Raises:
        RuleError: It is not valid.
    """
    compiled = compile_rule(given, plain=True, where=where)
    where = f"{where}: rule {compiled.name!r}"
    if "id" in given:
        raise RuleError(where, "name", "unknown id")
    rule = RateLimitRule()
    for option in (*_COPIED, *OPTIONS):
        if given.get(option) is not None:
            setattr(rule, option, given[option])
    rule.algorithm = SYNONYMS.get(rule.algorithm, rule.algorithm)
    rule.path = "\n".join(compiled.paths)
    if rule.group == rule.name and not rule.path and not rule.route:
        rule.group = ""
    rule.methods = list(dict.fromkeys(name.upper() for name in _listed(given.get("method"))))
    fields = rule_fields()
    for word in filter(given.get, FIELDS_OF_ANNEXES):
        value = given[word]
        if word in fields:  # The history has some of optional apps that are not installed.
            value = fields[word].clean(value)
        rule.annex(word, value)
    rule.key = "+".join(_listed(given.get("key")))
    audience = _listed(given.get("audience")) or ["everyone"]
    rule.audience = audience[0]
    if rule.audience.startswith("group:"):
        rule.audience = "groups"
        rule.groups = list(dict.fromkeys(name.removeprefix("group:") for name in audience))
    tiers = []
    try:
        if not rule.exempt:
            rule.rate = given["rate"]
        rule.clean_fields()
        for each in given.get("tiers") or ():
            tier = RateLimitTier(rule=rule, group=each["group"], burst=each.get("burst"))
            tier.rate = each["rate"]
            tier.clean_fields(exclude=["rule"])
            tiers.append(tier)
    except LimitError as error:
        raise RuleError(where, "rate", error) from None
    except ValidationError as error:
        raise RuleError.of(
            [
                RuleError(where, name, f"{name}: {' '.join(problems)}")
                for name, problems in error.message_dict.items()
            ]
        ) from None
    return rule, tiers


def _listed(value: Iterable[str] | None) -> list[str]:
    """Return the names in a field that contains one name or several."""
    if value and isinstance(value, str):
        return [value]
    return list(value or ())


def load(text: str, source: str = "Rules") -> list[RuleChange]:
    """Return the items of a YAML text, unsaved. The database is not compared.

    Args:
        text: The YAML.
        source: Its name in errors, such as its file.

    Raises:
        RuleError: The text is invalid. The error contains all problems, with their lines.
    """
    from .yaml_text import read_items

    loaded: list[RuleChange] = []
    problems: list[RuleError] = []
    lines: dict[str, int] = {}
    for line, given in read_items(text, source):
        where = f"{source}, line {line}"
        try:
            item = _item(given, where)
            first = lines.setdefault(item.name, line)
            if first != line:
                text = f"two rules have the name {item.name}; the other is on line {first}"
                raise RuleError(where, "name", text)
            loaded.append(item)
        except RuleError as error:
            problems += error.each
    if problems:
        raise RuleError.of(problems)
    return loaded


def _item(given: object, where: str) -> RuleChange:
    if not isinstance(given, Mapping):
        raise RuleError(where, "name", f"{given!r} is not a rule; write a mapping with a name")
    _refuse_absent(given, where)
    given = _with_slots_as_text(given)
    rule, tiers = build_rule(given, where)
    declared = rule.declared()
    if tiers:
        declared["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return RuleChange(given["name"], None, rule.ordered(declared), built=(rule, tiers))


def _with_slots_as_text(given: Declared) -> Declared:
    """Return a declaration with its numbers of slots, which YAML reads as numbers, as text."""
    changed = dict(given)
    if type(given.get("rate")) is int:
        changed["rate"] = str(given["rate"])
    if isinstance(given.get("tiers"), list):
        changed["tiers"] = [
            _with_slots_as_text(tier) if isinstance(tier, Mapping) else tier
            for tier in given["tiers"]
        ]
    return changed


def _refuse_absent(given: Declared, where: str) -> None:
    """Refuse values for optional apps that are not installed, except those already in the row."""
    words = given.keys() & FIELDS_OF_ANNEXES.keys() - rule_fields().keys()
    if words:
        kept: Declared = {}
        for row in RateLimitRule.objects.filter(name=str(given.get("name"))):
            kept = row.annexed()
        new = {word: given[word] for word in words if given[word] != kept.get(word)}
        refuse_absent(new, where)


def plan(text: str, source: str = "Rules", *, merge: bool = False) -> list[RuleChange]:
    """Return the changes that are needed so that the rules are as in a text.

    Args:
        text: The YAML.
        source: As in `load`.
        merge: Whether rules that are not in the text are kept.

    Raises:
        RuleError: As in `load`.
    """
    items = {item.name: item for item in load(text, source)}
    before = _stored_rules()
    changes = [item._replace(before=before.get(name)) for name, item in items.items()]
    if not merge:
        absent = [name for name in before if name not in items]
        changes += [RuleChange(name, before[name], None) for name in absent]
    return [change for change in changes if change.before != change.after]


def _stored_rules() -> Mapping[str, Declared]:
    return {rule.name: declared for rule, declared in RateLimitRule.objects.all_declared()}


def summary(changes: Sequence[RuleChange], auxiliary: str = "") -> str:
    """Return how many rules were added, changed and deleted, in words.

    Args:
        changes: The changes.
        auxiliary: Words before each verb, if nothing was changed yet.

    >>> added = RuleChange("api", None, {"name": "api"})
    >>> summary([added]), summary([added], "would be "), summary([])
    ('1 rule added', '1 rule would be added', '0 rules changed')
    """
    parts = []
    for action in MARKS:
        done = [change for change in changes if change.action == action]
        if done:
            parts.append(f"{count_words(len(done), 'rule')} {auxiliary}{action}")
    return ", ".join(parts) or f"0 rules {auxiliary}changed"


def deletions(changes: Sequence[RuleChange]) -> list[RuleChange]:
    """Return the changes that delete a rule."""
    return [change for change in changes if change.after is None]


def labels(changes: Sequence[RuleChange]) -> str:
    """Return the names of the changed rules, cut to 500 characters."""
    return shorten(", ".join(change.name for change in changes), 500)


def apply(
    changes: Sequence[RuleChange],
    *,
    delete: bool = False,
    on_progress: Callable[[int, int], None] = lambda saved, total: None,
) -> None:
    """Save planned changes, all or nothing. Overrides stay with rules that stay.

    Args:
        changes: The changes; see `plan`.
        delete: Whether rules may be deleted: a truncated file lacks rules as well.
        on_progress: Called with the number of changes that are saved, and of all.

    Raises:
        RuleError: Rules would be deleted.
    """
    deleted = deletions(changes)
    if deleted and not delete:
        problem = (
            f"the file lacks {count_words(len(deleted), 'rule')}, which would be deleted: "
            f"{labels(deleted)}. "
            "Nothing was changed; use --merge to keep them, or --delete to delete them"
        )
        raise RuleError("Rules", "name", problem)
    with one_change(router.db_for_write(RateLimitRule)):
        for start in range(0, len(changes), BATCH):
            on_progress(start, len(changes))
            _save(changes[start : start + BATCH])


def _save(changes: Sequence[RuleChange]) -> None:
    """Save some changes; rules that stay or are new are saved together."""
    _save_rules([change.built for change in changes if change.built is not None])
    gone = [change.name for change in changes if change.after is None]
    RateLimitRule.objects.filter(name__in=gone).delete()


def _save_rules(built: Sequence[Built]) -> None:
    """Save rules and their tiers in a few statements. Stored rows of the same names are updated."""
    names = [rule.name for rule, _tiers in built]
    stored = RateLimitRule.objects.in_bulk(names, field_name="name")
    old_tiers = {
        (tier.rule_id, tier.group): tier
        for tier in RateLimitTier.objects.filter(rule__in=stored.values())
    }
    _create_or_update(RateLimitRule, [(rule, stored.get(rule.name)) for rule, _tiers in built])
    pairs = []
    for rule, tiers in built:
        for tier in tiers:
            tier.rule = rule
            pairs.append((tier, old_tiers.pop((rule.pk, tier.group), None)))
    RateLimitTier.objects.filter(pk__in=[tier.pk for tier in old_tiers.values()]).delete()
    _create_or_update(RateLimitTier, pairs)


def _create_or_update(model: type[M], pairs: Sequence[tuple[M, M | None]]) -> None:
    """Save rows together, each in place of a stored one, if there is one."""
    updated = []
    fields = set()
    for row, stored in pairs:
        if stored is None:
            continue
        row.pk = stored.pk
        updated.append(row)
        for column in model._meta.concrete_fields:
            if getattr(row, column.attname) != getattr(stored, column.attname):
                fields.add(column.name)
    rows: AuditedQuerySet[M] = AuditedQuerySet(model)
    rows.bulk_create([row for row, stored in pairs if stored is None])
    if fields:
        rows.bulk_update(updated, fields)


def save_rule(rule: RateLimitRule, tiers: Sequence[RateLimitTier], pk: int | None) -> RateLimitRule:
    """Save a rule and its tiers, replacing the rule with that key, if there is one."""
    with one_change(router.db_for_write(RateLimitRule)):
        rule.pk = pk
        rule.save()
        rule.tiers.all().delete()
        for tier in tiers:
            tier.rule = rule
            tier.save()
    return rule
