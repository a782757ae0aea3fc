"""Rules and breakers of the admin as code: a YAML text that goes through review like any other, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.core.exceptions import ValidationError
from django.db import router, transaction

from ..contrib.breakers.rows import TIMES, TUNED, row_problems
from ..extension import FIELDS_OF_ANNEXES, rule_fields
from ..limits.algorithms import SYNONYMS
from ..limits.options import OPTIONS
from ..limits.rate import LimitError, time_text, time_us
from ..models import RateLimitBreaker, RateLimitRule, RateLimitTier
from ..models.audit import one_change
from ..rules.describe import difference, reading
from ..rules.rule import RuleError, compile_rule, refuse_absent

Declared = Mapping[str, Any]
Built = tuple[RateLimitRule, list[RateLimitTier]]
Loaded = tuple[list[Built], dict[str, RateLimitBreaker]]
BREAKER = "breaker"
"""The word that begins what is no rule but a breaker: its name."""
LONGEST_TEXT = 4 * 1024 * 1024
MAX_DEPTH = 20


class _Dumper(yaml.SafeDumper):
    """A `SafeDumper` that writes no aliases for lists that occur twice, because `load` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """A `SafeLoader` without aliases, which may stand for gigabytes, deep nesting, and keys that are given twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        problem = "this is nested too deeply" if self.depth > MAX_DEPTH else ""
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*) are not read; write it out"
        if problem:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, problem, mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key in [key for key, _value in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in keys:
                problem = f"{key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


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
    return dump([*rules, *({BREAKER: name, **said} for name, said in _breakers_declared().items())])


def _breakers_declared() -> dict[str, Declared]:
    """What rows say of breakers, by name; what is forced at the moment is not code."""
    rows = {row.name: row.thresholds_declared() for row in RateLimitBreaker.objects.all()}
    return {name: said for name, said in rows.items() if said}


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What has to be done to a rule, or to the thresholds of a breaker: before and after it (None: there is none)."""

    name: str
    before: Declared | None
    after: Declared | None
    is_breaker: bool = False

    @property
    def label(self) -> str:
        """What it is about: a rule by its name alone."""
        return f"{BREAKER} {self.name}" if self.is_breaker else self.name

    def words(self) -> list[str]:
        mark = "~"
        if self.before is None or self.after is None:
            mark = "+" if self.before is None else "-"
            if not self.is_breaker:
                return [f"{mark} {self.name}: {reading(self.after or self.before or {})}"]
        return [f"{mark} {self.label}", *(f"    {line}" for line in difference(self.before, self.after))]


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
    rule.methods = list(dict.fromkeys(name.upper() for name in _listed(given.get("method"))))
    fields = rule_fields()
    for word in filter(given.get, FIELDS_OF_ANNEXES):  # Of an annex that is not installed, the history has some.
        rule.annex(word, fields[word].clean(given[word]) if word in fields else given[word])
    rule.key = "+".join(_listed(given.get("key")))
    rule.audience, *others = _listed(given.get("audience")) or ["everyone"]
    if rule.audience.startswith("group:"):
        rule.groups = list(dict.fromkeys(name.removeprefix("group:") for name in (rule.audience, *others)))
        rule.audience = "groups"
    tiers = []
    try:
        if not rule.exempt:
            rule.rate = given["rate"]
        for tier in given.get("tiers") or ():
            tiers.append(RateLimitTier(rule=rule, group=tier["group"], burst=tier.get("burst")))
            tiers[-1].rate = tier["rate"]
        rule.clean_fields()
        for row in tiers:
            row.clean_fields(exclude=["rule"])
    except LimitError as error:
        raise RuleError(where, "rate", error) from None
    except ValidationError as error:
        raise _of_fields(where, error) from None
    return rule, tiers


def _of_fields(where: str, error: ValidationError) -> RuleError:
    problems = error.message_dict.items()
    return RuleError.of([RuleError(where, field, f"{field}: {' '.join(wrong)}") for field, wrong in problems])


def build_breaker(given: Declared, where: str = "Rules") -> RateLimitBreaker:
    """A breaker's row with these thresholds, from how it is declared; not saved. Raises `RuleError`."""
    words = {field: value for field, value in given.items() if field in ("description", *TUNED) and value is not None}
    row, where = RateLimitBreaker(name=given[BREAKER]), f"{where}: breaker {given[BREAKER]!r}"
    # Of what the text says: a row makes whole numbers of 1.5 and of true.
    problems = [RuleError(where, wrong.field, wrong) for wrong in row_problems({**words, "name": row.name})]
    if unknown := sorted(map(str, set(given) - {BREAKER, "description", *TUNED})):
        problems.append(RuleError(where, BREAKER, f"unknown {', '.join(unknown)}; there are {', '.join(TUNED)}"))
    if not isinstance(words.get("description", ""), str):
        problems.append(RuleError(where, "description", f"description is {words['description']!r}: must be text"))
    if problems:
        raise RuleError.of(problems)
    for field, value in words.items():
        is_number = field in TIMES and not isinstance(value, str)
        setattr(row, field, time_text(time_us(value)) if is_number else value)
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        raise _of_fields(where, error) from None
    return row


def _listed(value: Any) -> list[str]:
    """The names in a field that holds one or several."""
    return [value] if isinstance(value, str) and value else list(value or ())


def load(text: str, source: str = "Rules") -> Loaded:
    """The rules of a YAML text with their tiers, and its breakers by name; not saved.

    Args:
        text: The YAML.
        source: What problems call it, such as its file.

    Raises:
        RuleError: With all that is wrong, and in which lines.
    """
    built: list[Built] = []
    breakers: dict[str, RateLimitBreaker] = {}
    problems: list[RuleError] = []
    lines: dict[str, int] = {}
    twice: set[str] = set()
    for line, given in _items(text, source):
        where = f"{source}, line {line}"
        try:
            if isinstance(given, Mapping) and BREAKER in given:
                breaker = build_breaker(given, where)
                if breaker.name in breakers:
                    raise RuleError(where, BREAKER, f"two breakers are called {breaker.name}")
                breakers[breaker.name] = breaker
                continue
            if isinstance(given, Mapping):
                refuse_absent(given, where)
            built.append(build_rule(given, where))
        except RuleError as error:
            problems += error.each
        name = given.get("name") if isinstance(given, Mapping) else None
        if isinstance(name, str) and lines.setdefault(name, line) != line and name not in twice:
            twice.add(name)
            problem = f"two rules are called {name}; the other is on line {lines[name]}"
            problems.append(RuleError(where, "name", problem))
    if problems:
        raise RuleError.of(problems)
    return built, breakers


def _items(text: str, source: str) -> Iterator[tuple[int, Any]]:
    """The items of the YAML list in a text, each with the number of its first line."""
    if len(text) > LONGEST_TEXT:
        raise RuleError(source, "yaml", f"more than {LONGEST_TEXT} characters")
    try:
        loader = _Loader(text)
        node: Any = loader.get_single_node()
        if node is None:  # Probably a truncated file, and not the wish to delete every rule.
            raise RuleError(source, "yaml", "is empty; write [] where there are to be no rules")
        if not isinstance(node, yaml.SequenceNode):
            raise RuleError(source, "yaml", "must be a list of rules, each a mapping with a name")
        for item in node.value:
            yield item.start_mark.line + 1, loader.construct_document(item)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).replace("<unicode string>", source)
        raise RuleError(where, "yaml", f"not YAML: {problem}") from None
    except (ValueError, ArithmeticError) as error:  # A number or a date that is out of range.
        raise RuleError(source, "yaml", f"not YAML: {error}") from None


def declared_rules(text: str, source: str = "Rules") -> list[Declared]:
    """The rules of a YAML text as they are declared, without a look at the database; `source` as in `load`. Raises
    `RuleError`."""
    return [_declared(rule, tiers) for rule, tiers in load(text, source)[0]]


def plan(text: str, source: str = "Rules") -> list[RuleChange]:
    """What has to be done so that the rules are those of a text: nothing for those that are the same. `source` as in
    `load`. Raises `RuleError`."""
    return _plan(load(text, source))


def _plan(loaded: Loaded) -> list[RuleChange]:
    built, breakers = loaded
    before = {rule.name: rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")}
    after = {rule.name: _declared(rule, tiers) for rule, tiers in built}
    changes = [RuleChange(name, before.get(name), after.get(name)) for name in {**after, **before}]
    if breakers:  # A text without any is of rules alone.
        there = _breakers_declared()
        wanted = {name: row.thresholds_declared() for name, row in breakers.items()}
        changes += [RuleChange(name, there.get(name), wanted.get(name), True) for name in {**wanted, **there}]
    return [change for change in changes if change.before != change.after]


def _declared(rule: RateLimitRule, tiers: Sequence[RateLimitTier]) -> Declared:
    given = rule.declared()
    if tiers:
        given["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return rule.ordered(given)


def counted(changes: Sequence[RuleChange]) -> str:
    """How many rules and breakers that is.

    >>> counted([RuleChange("api", None, {}), RuleChange("mail", None, {}, True), RuleChange("x", None, {}, True)])
    '1 rule and 2 breakers'
    >>> counted([])
    '0 rules'
    """
    breakers = sum(change.is_breaker for change in changes)
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

    Raises `RuleError`, also if rules would be deleted and `delete` does not say that they may be: a file that was cut
    off lacks rules as well.
    """
    with one_change(router.db_for_write(RateLimitRule)):
        loaded = load(text)
        built, breakers = {rule.name: (rule, tiers) for rule, tiers in loaded[0]}, loaded[1]
        changes = _plan(loaded)
        lacking = [change for change in changes if change.after is None]
        names = deletions(lacking)
        if names and not delete:
            listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            what = "rules and breakers" if any(change.is_breaker for change in lacking) else "rules"
            problem = f"the file lacks {len(names)} of the {what} there are, which would be deleted: {listed}"
            raise RuleError("Rules", "name", f"{problem}. Nothing was changed; --delete says that this is meant")
        for change in changes:
            if change.is_breaker:
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
