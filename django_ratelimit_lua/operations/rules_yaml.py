"""Rules and breakers of the admin as code: a YAML text that goes through review like any other, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.core.exceptions import ValidationError
from django.db import router, transaction

from ..limits.algorithms import SYNONYMS
from ..limits.options import OPTIONS
from ..limits.rate import LimitError, time_text, time_us
from ..models import RateLimitBreaker, RateLimitRule, RateLimitTier
from ..models.audit import one_change
from ..rules.breakers import TIMES, TUNED, row_problems
from ..rules.describe import difference, reading
from ..rules.rule import FIELDS, RuleError, compile_rule, meant_by

Declared = Mapping[str, Any]
Built = tuple[RateLimitRule, list[RateLimitTier]]


class _Dumper(yaml.SafeDumper):
    """A `SafeDumper` that writes no aliases for lists that occur twice, because `load` refuses aliases."""

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
    return yaml.dump(list(rules), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def export() -> str:
    """The rules of the admin as YAML, in their order, and the thresholds of breakers behind them."""
    rules = [rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")]
    return dump([*rules, *_breakers_declared().values()])


def _breakers_declared() -> dict[str, Declared]:
    """What rows say of breakers, by name; what is forced at the moment is not code."""
    rows = {row.name: row.thresholds_declared() for row in RateLimitBreaker.objects.all()}
    return {name: {BREAKER: name, **said} for name, said in rows.items() if said}


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What has to be done to a rule: before and after it (None: there is none)."""

    name: str
    before: Declared | None
    after: Declared | None

    @property
    def label(self) -> str:
        """What it is about: a rule by its name alone."""
        return self.name

    def words(self) -> list[str]:
        """The step in words."""
        if self.before is None:
            return [f"+ {self.name}: {reading(self.after or {})}"]
        if self.after is None:
            return [f"- {self.name}: {reading(self.before)}"]
        return [f"~ {self.name}", *(f"    {line}" for line in difference(self.before, self.after))]


class BreakerChange(RuleChange):
    """What has to be done to the thresholds of a breaker."""

    @property
    def label(self) -> str:
        return f"{BREAKER} {self.name}"

    def words(self) -> list[str]:
        """The step in words."""
        mark = "+" if self.before is None else "-" if self.after is None else "~"
        before, after = self.before or {}, self.after or {}
        said = [f"{field}: {before.get(field, '—')} → {after.get(field, '—')}" for field in {**before, **after}]
        changed = [line for line, field in zip(said, {**before, **after}, strict=True) if field != BREAKER]
        return [f"{mark} {self.label}", *(f"    {line}" for line in changed)]


BREAKER = "breaker"
"""The word that begins what is no rule but a breaker: its name."""
LONGEST_TEXT = 4 * 1024 * 1024
DEEPEST = 20


def build_rule(given: Declared, where: str = "Rules") -> Built:
    """A rule and its tiers, from how the rule is declared; not saved. Raises `RuleError`."""
    compiled = compile_rule(given, plain=True, where=where)
    where = f"{where}: rule {compiled.name!r}"
    if "id" in given:
        raise RuleError(where, "name", "unknown id")
    rule = RateLimitRule(name=compiled.name)
    for field in ("description", "mode", "order", "exempt", "route", "group", "cost", "message", "durable", *OPTIONS):
        if given.get(field) is not None:
            setattr(rule, field, given[field])
    rule.algorithm = SYNONYMS.get(rule.algorithm, rule.algorithm)
    rule.path = "\n".join(compiled.paths)
    if rule.group == rule.name and not rule.path and not rule.route:
        rule.group = ""
    rule.methods = list(dict.fromkeys(name.upper() for name in _names(given, "method", where)))
    rule.descriptor = "\n".join(_names(given, "descriptor", where))
    rule.key = "+".join(_names(given, "key", where))
    rule.audience, *others = _names(given, "audience", where) or ["everyone"]
    if rule.audience.startswith("group:"):
        rule.groups = [name.removeprefix("group:") for name in (rule.audience, *others)]
        rule.audience = "groups"
    tiers = []
    try:
        if not rule.exempt:
            rule.rate = given["rate"]
        for tier in given.get("tiers") or ():
            tiers.append(RateLimitTier(rule=rule, group=tier["group"], burst=tier.get("burst")))
            tiers[-1].rate = tier["rate"]
        rule.full_clean(validate_unique=False, validate_constraints=False)
        for row in tiers:
            row.clean_fields(exclude=["rule"])
    except LimitError as error:
        raise RuleError(where, "rate", str(error)) from None
    except ValidationError as error:
        field, problems = next(iter(error.message_dict.items()))
        raise RuleError(where, field, f"{field}: {' '.join(problems)}") from None
    return rule, tiers


def build_breaker(given: Declared, where: str = "Rules") -> RateLimitBreaker:
    """A breaker's row with these thresholds, from how it is declared; not saved. Raises `RulesError`."""
    words = {field: value for field, value in given.items() if field in ("description", *TUNED) and value is not None}
    row, where = RateLimitBreaker(name=given[BREAKER]), f"{where}: breaker {given[BREAKER]!r}"
    problems = []
    if unknown := sorted(map(str, set(given) - {BREAKER, "description", *TUNED})):
        problems.append(RuleError(where, BREAKER, f"unknown {', '.join(unknown)}; there are {', '.join(TUNED)}"))
    # Of what the text says: a row makes whole numbers of 1.5 and of true.
    for wrong in row_problems({**words, "name": row.name}):
        problems.append(RuleError(where, wrong.field, f"{wrong.field} {wrong.problem}"))
    if not isinstance(words.get("description", ""), str):
        problems.append(RuleError(where, "description", f"description is {words['description']!r}: must be text"))
    if problems:
        raise RulesError(problems)
    for field, value in words.items():
        is_number = field in TIMES and not isinstance(value, str)
        setattr(row, field, time_text(time_us(value)) if is_number else value)
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        raise RulesError(
            [RuleError(where, field, f"{field}: {' '.join(wrong)}") for field, wrong in error.message_dict.items()]
        ) from None
    return row


def _names(given: Declared, field: str, where: str) -> list[str]:
    """The names in a field that holds one or several."""
    value = given.get(field)
    names = [] if value in (None, "") else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RuleError(where, field, f"{field} is {value!r}; write a name or a list of names")
    return names


class RulesError(RuleError):
    """All that is wrong with a text of rules: `problems`, of which the message has the first hundred."""

    MOST = 100

    def __init__(self, problems: Sequence[RuleError]) -> None:
        first, self.each = problems[0], tuple(problems)
        super().__init__(first.where, first.field, first.problem)
        self.problems = [str(problem) for problem in problems]
        more = len(problems) - self.MOST
        self.args = ("\n".join([*self.problems[: self.MOST], *([f"and {more} more"] if more > 0 else [])]),)


def load(text: str, source: str = "Rules") -> list[Built]:
    """The rules of a YAML text, not saved; `source`: what problems call it, such as its file. Raises `RulesError` that
    says which rules, where, and what is wrong."""
    built: list[Built] = []
    problems: list[RuleError] = []
    lines: dict[str, int] = {}
    twice: set[str] = set()
    breakers: dict[str, RateLimitBreaker] = {}
    for line, given in _parsed(text, source):
        where = f"{source}, line {line}"
        if isinstance(given, Mapping) and BREAKER in given:
            try:
                breaker = build_breaker(given, where)
                if breaker.name in breakers:
                    raise RuleError(where, BREAKER, f"two breakers are called {breaker.name}")
                breakers[breaker.name] = breaker
            except RuleError as error:
                problems += error.each if isinstance(error, RulesError) else [error]
            continue
        name = given.get("name") if isinstance(given, Mapping) else None
        try:
            built.append(build_rule(given, where))
            name = built[-1][0].name
        except RuleError as error:
            problems += _all_problems(given, where, error)
        if isinstance(name, str) and name and lines.setdefault(name, line) != line and name not in twice:
            twice.add(name)
            problems.append(
                RuleError(where, "name", f"two rules are called {name}; the other is on line {lines[name]}")
            )
    if problems:
        raise RulesError(problems)
    return built


_SOUND = {"rate": "1/m", "key": "ip", "path": "/"}
"""What a rule has to have, and is put in its place to find what else is wrong."""


_SOUND_FOR = {"day": "1/d", "week": "1/w", "month": "30/30d"}
"""By `align`: the rate that a rule may have then. Else what is wrong with its own would be said of `align` as well."""


def _sound(given: Declared, field: str) -> Any:
    align = given.get("align")
    return _SOUND_FOR.get(align, _SOUND[field]) if field == "rate" and isinstance(align, str) else _SOUND[field]


def _known(given: Declared) -> Declared:
    """A rule without words that there are not; what is nearly one is read as it."""
    known = {word: value for word, value in given.items() if word in FIELDS}
    for word, value in given.items():
        meant = meant_by(word) if word not in FIELDS else None
        if meant is not None:
            known.setdefault(meant, value)
    return known


def _all_problems(given: Any, where: str, first: RuleError) -> list[RuleError]:
    """What is wrong with a rule: the first problem, and those that are left when what it is about is put right."""
    problems = [first]
    field, has_strange = first.field, False
    while isinstance(given, Mapping):
        known = _known(given)
        if field in _SOUND and given.get(field) != _sound(given, field):
            given = {**given, field: _sound(given, field)}
        elif field == "name" and known != given:
            has_strange = any(word not in FIELDS and meant_by(word) is None for word in given)
            given = known
        elif field in given and field not in _SOUND and field != "name":
            gone = (field, "time_zone") if field == "align" else (field,)  # That is nothing without the other.
            given = {word: value for word, value in given.items() if word not in gone}
        else:
            break
        try:
            build_rule(given, where)
            break
        except RuleError as error:
            field = error.field
            if not (has_strange and field in _SOUND and field not in given):  # Else that word stands in its place.
                problems.append(error)
    return problems


def _parsed(text: str, source: str) -> list[tuple[int, Any]]:
    """The items of the YAML list in a text, each with the number of its first line."""
    if len(text) > LONGEST_TEXT:
        raise RuleError(source, "yaml", f"more than {LONGEST_TEXT} characters")
    try:
        lines = _item_lines(text, source)
        items = yaml.safe_load(text)
    except yaml.YAMLError as error:
        message = str(error).replace("<unicode string>", source)
        raise RuleError(source, "yaml", f"not YAML: {message}") from None
    except (ValueError, ArithmeticError) as error:  # A number or a date that is out of range.
        raise RuleError(source, "yaml", f"not YAML: {error}") from None
    if items is None:  # Probably a truncated file, and not the wish to delete every rule.
        raise RuleError(source, "yaml", "is empty; write [] where there are to be no rules")
    if not isinstance(items, list):
        raise RuleError(source, "yaml", "must be a list of rules, each a mapping with a name")
    return list(zip(lines, items, strict=True))


def _item_lines(text: str, source: str) -> list[int]:
    """The first line of each item of the outermost list. Raises `RuleError` for what `safe_load` would accept: anchors,
    aliases, merge keys, repeated keys and deep nesting."""
    lines: list[int] = []
    collections: list[_Collection] = []
    for event in yaml.parse(text):
        mark = event.start_mark
        line = mark.line + 1 if mark is not None else 1
        problem = ""
        if getattr(event, "anchor", None) is not None:
            problem = "anchors (&) and aliases (*) are not read; write it out"
        elif isinstance(event, yaml.NodeEvent) and collections:
            problem = collections[-1].add(getattr(event, "value", None))
            if len(collections) == 1:
                lines.append(line)
        if isinstance(event, yaml.CollectionStartEvent):
            collections.append(_Collection(isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.CollectionEndEvent):
            collections.pop()
        if len(collections) > DEEPEST:
            problem = "this is nested too deeply"
        if problem:
            raise RuleError(f"{source}, line {line}", "yaml", f"not YAML: {problem}")
    return lines


class _Collection:
    """A list or mapping of a YAML text while its events are read."""

    def __init__(self, is_mapping: bool) -> None:
        self.is_mapping = is_mapping
        self.is_key_next = is_mapping
        self.keys: set[str] = set()

    def add(self, value: str | None) -> str:
        """Add a node (`value`: its text, if it is a scalar), and return what is wrong with it."""
        is_key = self.is_key_next
        self.is_key_next = self.is_mapping and not is_key
        if not is_key or value is None:
            return ""
        if value == "<<":
            return "merge keys (<<) are not read; write it out"
        if value in self.keys:
            return f"{value!r} is given twice"
        self.keys.add(value)
        return ""


def declared_rules(text: str, source: str = "Rules") -> list[Declared]:
    """The rules of a YAML text as they are declared, without a look at the database; `source` as in `load`. Raises
    `RulesError`."""
    return [_declared(rule, tiers) for rule, tiers in load(text, source)]


def plan(text: str, source: str = "Rules") -> list[RuleChange]:
    """What has to be done so that the rules are those of a text: nothing for those that are the same. `source` as in
    `load`. Raises `RulesError`."""
    return _plan(load(text, source), load_breakers(text, source))


def load_breakers(text: str, source: str = "Rules") -> dict[str, RateLimitBreaker]:
    """The breakers of a YAML text that `load` can read, by name, not saved."""
    rows = [
        build_breaker(given, source)
        for _, given in _parsed(text, source)
        if isinstance(given, Mapping) and BREAKER in given
    ]
    return {row.name: row for row in rows}


def _plan(built: Sequence[Built], breakers: Mapping[str, RateLimitBreaker]) -> list[RuleChange]:
    before = {rule.name: rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")}
    after = {rule.name: _declared(rule, tiers) for rule, tiers in built}
    changes = [RuleChange(name, before.get(name), after.get(name)) for name in {**after, **before}]
    if breakers:  # A text without any is of rules alone.
        there = _breakers_declared()
        wanted = {name: {BREAKER: name, **row.thresholds_declared()} for name, row in breakers.items()}
        changes += [BreakerChange(name, there.get(name), wanted.get(name)) for name in {**wanted, **there}]
    return [change for change in changes if change.before != change.after]


def _declared(rule: RateLimitRule, tiers: Sequence[RateLimitTier]) -> Declared:
    given = rule.declared()
    if tiers:
        given["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return rule.ordered(given)


def counted(changes: Sequence[RuleChange]) -> str:
    """How many rules and breakers that is.

    >>> counted([RuleChange("api", None, {}), BreakerChange("payments", None, {}), BreakerChange("mail", None, {})])
    '1 rule and 2 breakers'
    >>> counted([])
    '0 rules'
    """
    breakers = sum(isinstance(change, BreakerChange) for change in changes)
    return number_of(len(changes) - breakers, breakers)


def number_of(rules: int, breakers: int) -> str:
    """Numbers of rules and of breakers in words.

    >>> number_of(0, 1), number_of(3, 0)
    ('1 breaker', '3 rules')
    """
    words = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in ((rules, "rule"), (breakers, BREAKER))]
    return " and ".join(words if rules and breakers else words[1:] if breakers else words[:1])


def deletions(changes: Sequence[RuleChange]) -> list[str]:
    """The names of the rules that would be deleted, and of breakers that would."""
    return [change.label for change in changes if change.after is None]


def apply(text: str, *, delete: bool = False) -> list[RuleChange]:
    """Make the rules those of a text, all or nothing; returns what was done. Overrides stay with rules that stay.

    Raises `RulesError`; and `RuleError` where rules would be deleted and `delete` does not say that they may be: a file
    that was cut off lacks rules as well.
    """
    with one_change(router.db_for_write(RateLimitRule)):
        built = {rule.name: (rule, tiers) for rule, tiers in load(text)}
        breakers = load_breakers(text)
        changes = _plan(list(built.values()), breakers)
        lacking = [change for change in changes if change.after is None]
        names = deletions(lacking)
        if names and not delete:
            listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            what = "rules and breakers" if any(isinstance(change, BreakerChange) for change in lacking) else "rules"
            problem = f"the file lacks {len(names)} of the {what} there are, which would be deleted: {listed}"
            raise RuleError("Rules", "name", f"{problem}. Nothing was changed; --delete says that this is meant")
        for change in changes:
            if isinstance(change, BreakerChange):
                _save_breaker(change.name, breakers.get(change.name))
            elif change.after is None:
                RateLimitRule.objects.get(name=change.name).delete()
            else:
                save_rule(*built[change.name])
    return changes


def _save_breaker(name: str, wanted: RateLimitBreaker | None) -> None:
    """Save what a breaker's row is to say, and leave what is forced."""
    row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
    if wanted is None and not row.is_forced():
        row.delete()
        return
    for field in ("description", *TUNED):
        setattr(row, field, getattr(wanted or RateLimitBreaker(name=name), field))
    row.save()


def save_rule(rule: RateLimitRule, tiers: Sequence[RateLimitTier], pk: int | None = None) -> RateLimitRule:
    """Save a rule and its tiers in the place of the one of that key, or else of that name, if there is one."""
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        present = RateLimitRule.objects.filter(**({"name": rule.name} if pk is None else {"pk": pk})).first()
        rule.pk = present.pk if present is not None else pk
        rule._state.adding = present is None
        rule.save()
        saved = {tier.group: tier for tier in rule.tiers.all()}
        for group in set(saved) - {tier.group for tier in tiers}:
            saved[group].delete()
        for tier in tiers:
            same = saved.get(tier.group)
            if same is None or same.declared() != tier.declared():
                tier.pk = same.pk if same is not None else None
                tier.rule = rule
                tier._state.adding = same is None
                tier.save()
    return rule
