"""The rules of the admin, and rows of annexes, as code: a YAML text that goes through review, and
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import router, transaction

from ..extension import FIELDS_OF_ANNEXES, WORDS_OF_ANNEXES, documents, install, rule_fields
from ..limits.algorithms import SYNONYMS
from ..limits.options import OPTIONS
from ..limits.rate import LimitError
from ..models import RateLimitRule, RateLimitTier
from ..models.audit import one_change
from ..rules.describe import difference, reading
from ..rules.rule import RuleError, compile_rule, refuse_absent

Declared = Mapping[str, Any]
Built = tuple[RateLimitRule, list[RateLimitTier]]
RULE = "rule"
"""Stands for rules among the words that begin items of annexes."""
MAX_TEXT_LENGTH = 4 * 1024 * 1024


def dump(rules: Sequence[Declared]) -> str:
    """Rules as YAML.

    >>> print(dump([{"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}]), end="")
    - name: api
      path: /api/
      key: ip
      rate: 100/m
    """
    from .yaml_text import dump_list

    return dump_list(list(rules))


class Item(NamedTuple):
    """An item of a YAML text: a rule, or what the annex of its `word` keeps there.

    `built`: of a rule.
    """

    word: str
    name: str
    declared: Declared
    built: Built | None = None


def export() -> str:
    """The rules of the admin as YAML, in their order, and the rows of annexes behind them."""
    items: list[Declared] = [
        rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")
    ]
    for word, document in documents().items():
        items += [{word: name, **declared} for name, declared in document.stored().items()]
    return dump(items)


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of a rule, or of a row of an annex: before and after it, or None."""

    name: str
    before: Declared | None
    after: Declared | None
    word: str = RULE

    @property
    def label(self) -> str:
        """Its subject: a rule by its name alone."""
        return self.name if self.word == RULE else f"{self.word} {self.name}"

    def words(self) -> list[str]:
        mark = "~"
        if self.before is None or self.after is None:
            mark = "+" if self.before is None else "-"
            if self.word == RULE:
                return [f"{mark} {self.name}: {reading(self.after or self.before or {})}"]
        return [
            f"{mark} {self.label}",
            *(f"    {line}" for line in difference(self.before, self.after)),
        ]


def build_rule(given: Declared, where: str = "Rules") -> Built:
    """A rule and its tiers, from how the rule is declared; not saved. Raises `RuleError`."""
    compiled = compile_rule(given, plain=True, where=where)
    where = f"{where}: rule {compiled.name!r}"
    if "id" in given:
        raise RuleError(where, "name", "unknown id")
    rule = RateLimitRule(name=compiled.name)
    for field in (
        "description",
        "mode",
        "order",
        "exempt",
        "route",
        "group",
        "cost",
        "message",
        *OPTIONS,
    ):
        if given.get(field) is not None:
            setattr(rule, field, given[field])
    rule.algorithm = SYNONYMS.get(rule.algorithm, rule.algorithm)
    rule.path = "\n".join(compiled.paths)
    if rule.group == rule.name and not rule.path and not rule.route:
        rule.group = ""
    rule.methods = list(dict.fromkeys(name.upper() for name in _listed(given.get("method"))))
    fields = rule_fields()
    for word in filter(
        given.get, FIELDS_OF_ANNEXES
    ):  # Of an annex that is not installed, the history has some.
        rule.annex(word, fields[word].clean(given[word]) if word in fields else given[word])
    rule.key = "+".join(_listed(given.get("key")))
    rule.audience, *others = _listed(given.get("audience")) or ["everyone"]
    if rule.audience.startswith("group:"):
        rule.groups = list(
            dict.fromkeys(name.removeprefix("group:") for name in (rule.audience, *others))
        )
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
        raise of_fields(where, error) from None
    return rule, tiers


def of_fields(where: str, error: ValidationError) -> RuleError:
    """The problems of fields, as Django reports them, as one `RuleError`."""
    problems = error.message_dict.items()
    return RuleError.of(
        [RuleError(where, field, f"{field}: {' '.join(wrong)}") for field, wrong in problems]
    )


def _listed(value: Any) -> list[str]:
    """The names in a field that holds one or several."""
    return [value] if isinstance(value, str) and value else list(value or ())


def load(text: str, source: str = "Rules") -> list[Item]:
    """The items of a YAML text; not saved.

    Args:
        text: The YAML.
        source: What problems call it, such as its file.

    Raises:
        RuleError: With all that is wrong, and in which lines.
    """
    from .yaml_text import read_items

    loaded: list[Item] = []
    problems: list[RuleError] = []
    lines: dict[tuple[str, str], int] = {}
    twice: set[tuple[str, str]] = set()
    for line, given in read_items(text, source):
        where = f"{source}, line {line}"
        word = RULE
        if isinstance(given, Mapping):
            word = next((word for word in WORDS_OF_ANNEXES if word in given), RULE)
        try:
            loaded.append(_item(word, given, where))
        except RuleError as error:
            problems += error.each
        name = given.get("name" if word == RULE else word) if isinstance(given, Mapping) else None
        at = (word, str(name))
        if isinstance(name, str) and lines.setdefault(at, line) != line and at not in twice:
            twice.add(at)
            problem = f"two {word}s are called {name}; the other is on line {lines[at]}"
            problems.append(RuleError(where, "name" if word == RULE else word, problem))
    if problems:
        raise RuleError.of(problems)
    return loaded


def _without_kept(given: Declared) -> Declared:
    """A declaration without the values that its row keeps for an annex that is not installed, as
    `export` wrote it.
    """
    absent = [word for word in FIELDS_OF_ANNEXES if word in given and word not in rule_fields()]
    row = RateLimitRule.objects.filter(name=str(given.get("name"))).first() if absent else None
    if row is None:
        return given
    kept = row.annexed()
    return {
        word: value
        for word, value in given.items()
        if word not in absent or kept.get(word) != value
    }


def _item(word: str, given: Any, where: str) -> Item:
    if word == RULE:
        if isinstance(given, Mapping):
            refuse_absent(_without_kept(given), where)
        rule, tiers = build_rule(given, where)
        return Item(RULE, rule.name, _declared(rule, tiers), (rule, tiers))
    document = documents().get(word)
    if document is None:
        raise RuleError(where, word, f"{install(WORDS_OF_ANNEXES[word])}, to use {word!r}")
    return Item(word, given[word], document.build(given, where))


def declared_rules(text: str, source: str = "Rules") -> list[Declared]:
    """The rules of a YAML text as they are declared, without a look at the database; `source` as in
    `load`.

    Raises `RuleError`.
    """
    return [item.declared for item in load(text, source) if item.word == RULE]


def plan(text: str, source: str = "Rules") -> list[RuleChange]:
    """What has to be done so that the rules are those of a text: nothing for those that are the
    same.

    `source` as in `load`. Raises `RuleError`.
    """
    return _plan(load(text, source))


def _plan(loaded: Sequence[Item]) -> list[RuleChange]:
    stored = {word: document.stored for word, document in documents().items()}
    stored = {RULE: _stored_rules, **stored}
    changes = []
    for word, read in stored.items():
        after = {item.name: item.declared for item in loaded if item.word == word}
        if word == RULE or after:  # A text without any items of an annex is of rules alone.
            before = read()
            changes += [
                RuleChange(name, before.get(name), after.get(name), word)
                for name in {**after, **before}
            ]
    return [change for change in changes if change.before != change.after]


def _stored_rules() -> Mapping[str, Declared]:
    return {rule.name: rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")}


def _declared(rule: RateLimitRule, tiers: Sequence[RateLimitTier]) -> Declared:
    given = rule.declared()
    if tiers:
        given["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return rule.ordered(given)


def counted(words: Iterable[str]) -> str:
    """How many rules and other items that is.

    >>> counted(["rule", "breaker", "breaker"]), counted(["breaker"]), counted([])
    ('1 rule and 2 breakers', '1 breaker', '0 rules')
    """
    numbers = Counter(sorted(words, key=lambda word: word != RULE)) or {RULE: 0}
    return " and ".join(
        f"{number} {word}{'' if number == 1 else 's'}" for word, number in numbers.items()
    )


def deletions(changes: Sequence[RuleChange]) -> list[str]:
    """The names of the rules and other items that would be deleted."""
    return [change.label for change in changes if change.after is None]


def apply(text: str, *, delete: bool = False) -> list[RuleChange]:
    """Replace the rules by those of a text, all or nothing; return the changes.

    Overrides stay with rules that stay.

    Raises `RuleError`, also if rules would be deleted without `delete`: a truncated file lacks
    rules as well.
    """
    with one_change(router.db_for_write(RateLimitRule)):
        loaded = load(text)
        built = {item.name: item.built for item in loaded if item.built is not None}
        changes = _plan(loaded)
        lacking = [change for change in changes if change.after is None]
        names = deletions(lacking)
        if names and not delete:
            listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
            words = " and ".join(
                f"{word}s" for word in dict.fromkeys(change.word for change in lacking)
            )
            problem = (
                f"the file lacks {len(names)} of the {words} there are, which would be "
                f"deleted: {listed}"
            )
            raise RuleError(
                "Rules", "name", f"{problem}. Nothing was changed; --delete says that this is meant"
            )
        for change in changes:
            if change.word != RULE:
                documents()[change.word].save(change.name, change.after)
            elif change.after is None:
                RateLimitRule.objects.get(name=change.name).delete()
            else:
                save_rule(*built[change.name])
    return changes


def save_rule(
    rule: RateLimitRule, tiers: Sequence[RateLimitTier], pk: int | None = None
) -> RateLimitRule:
    """Save a rule and its tiers over the one with that key, or with that name, if there is one."""
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        present = RateLimitRule.objects.filter(
            **({"name": rule.name} if pk is None else {"pk": pk})
        ).first()
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
