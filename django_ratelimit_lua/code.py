"""Rules of the admin as code: a YAML text that goes through review like any other, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.db import router, transaction

from .limits.limit import OPTIONS
from .limits.rate import LimitError
from .models import RateLimitRule, RateLimitTier
from .models.tracked import one_change
from .rules.rule import RuleError, compile_rule
from .rules.words import difference, reading

Declared = Mapping[str, Any]


def dump(rules: Sequence[Declared]) -> str:
    """Rules as YAML.

    >>> print(dump([{"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}]), end="")
    - name: api
      path: /api/
      key: ip
      rate: 100/m
    """
    return yaml.safe_dump(list(rules), sort_keys=False, allow_unicode=True, default_flow_style=False)


def export() -> str:
    """The rules of the admin as YAML, in their order."""
    return dump([rule.declared() for rule in RateLimitRule.objects.prefetch_related("tiers")])


@dataclass(frozen=True, slots=True)
class Step:
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


def row(given: Declared) -> tuple[RateLimitRule, list[RateLimitTier]]:
    """A rule, and its tiers, from how it is declared; not saved. Raises `RuleError`."""
    rule = compile_rule(given, plain=True, where="Rules")
    made = RateLimitRule(name=rule.name)
    text = ("description", "mode", "order", "exempt", "route", "cost", "message", *OPTIONS)
    for field in text:
        if given.get(field) is not None:
            setattr(made, field, given[field])
    made.path = "\n".join(rule.paths)
    made.group = "" if rule.group in (None, rule.name) and not rule.paths and rule.route is None else rule.group or ""
    method = given.get("method") or []
    made.methods = sorted({name.upper() for name in ([method] if isinstance(method, str) else method)})
    audience = given.get("audience", "everyone")
    if isinstance(audience, str) and not audience.startswith("group:"):
        made.audience = audience
    else:
        names = [audience] if isinstance(audience, str) else audience
        made.audience, made.groups = "groups", [name.removeprefix("group:") for name in names]
    key = given.get("key") or ""
    made.key = key if isinstance(key, str) else "+".join(key)
    tiers = [
        RateLimitTier(rule=made, group=tier["group"], burst=tier.get("burst")) for tier in given.get("tiers") or []
    ]
    try:
        if not made.exempt:
            made.rate = given["rate"]
        for tier, one in zip(tiers, given.get("tiers") or [], strict=True):
            tier.rate = one["rate"]
    except LimitError as error:
        raise RuleError(f"Rules: rule {rule.name!r}", "rate", str(error)) from None
    return made, tiers


def load(text: str) -> list[tuple[RateLimitRule, list[RateLimitTier]]]:
    """The rules of a YAML text, not saved. Raises `RuleError` that says which rule and what is wrong with it."""
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RuleError("Rules", "yaml", f"not YAML: {error}") from None
    given = [] if given is None else given
    if not isinstance(given, list):
        raise RuleError("Rules", "yaml", "must be a list of rules, each a mapping with a name")
    rows = [row(one) for one in given]
    names = [made.name for made, _ in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RuleError("Rules", "name", f"two rules are called {', '.join(twice)}")
    for made, _ in rows:
        made.clean_fields(exclude=["name"])
    return rows


def plan(text: str) -> list[Step]:
    """What has to be done so that the rules are those of a text: nothing for those that are the same."""
    return _plan(load(text))


def _plan(rows: Sequence[tuple[RateLimitRule, list[RateLimitTier]]]) -> list[Step]:
    present = {rule.name: rule for rule in RateLimitRule.objects.prefetch_related("tiers")}
    wanted = {made.name: _declared(made, tiers) for made, tiers in rows}
    steps = [Step(name, present[name].declared() if name in present else None, after) for name, after in wanted.items()]
    steps += [Step(name, rule.declared(), None) for name, rule in present.items() if name not in wanted]
    return [step for step in steps if step.before != step.after]


def _declared(made: RateLimitRule, tiers: Sequence[RateLimitTier]) -> Declared:
    given = made.declared()
    if tiers:
        given["tiers"] = [tier.declared() for tier in sorted(tiers, key=lambda tier: tier.group)]
    return made.ordered(given)


def apply(text: str) -> list[Step]:
    """Make the rules those of a text, all or nothing; returns what was done. Overrides stay with rules that stay."""
    with one_change(router.db_for_write(RateLimitRule)):
        rows = {made.name: (made, tiers) for made, tiers in load(text)}
        steps = _plan(list(rows.values()))
        for step in steps:
            if step.after is None:
                RateLimitRule.objects.get(name=step.name).delete()
            else:
                put(*rows[step.name])
    return steps


def put(made: RateLimitRule, tiers: Sequence[RateLimitTier], pk: int | None = None) -> RateLimitRule:
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
