"""The limits in the code, by the names of the rules that replace them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules import RuleError, compile
from ..rules.callsite import CallSite, known_call_sites, limits_of
from ..rules.describe import reading
from ..rules.places import look_for_call_sites
from ..rules.ruleset import settings_rules

SETTINGS = "RATELIMIT_RULES"


def call_sites_of(name: str) -> tuple[CallSite, ...]:
    """Return the call sites that a rule of that name replaces, the rule of the settings first."""
    look_for_call_sites()
    return (*_of_settings(name), *known_call_sites.of(name))


def _of_settings(name: str) -> Iterator[CallSite]:
    for rule in settings_rules():
        if rule.name == name and rule.template is not None and rule.mode != "off":
            key = ""
            if rule.key is not None:
                key = rule.key.name
            yield CallSite(SETTINGS, SETTINGS, rule.template.rates, key, tuple(limits_of(rule)))


def rule_words(rule: RateLimitRule) -> str:
    """Return a rule in one sentence, with its key.

    If the rule has no key, the sentence names the key of a call site with its name.
    """
    spec = rule.spec
    if "rate" in spec and "key" not in spec:
        key = next((site.key for site in call_sites_of(rule.name)), "")
        spec = {**spec, "key": [*filter(None, key.split("+"))]}
    return reading(spec)


class LimitInCode(NamedTuple):
    """A name under which the code has limits.

    - `sites`: its call sites;
    - `rule`: the rule of the admin with this name, if there is one;
    - `beside`: the rules of the admin that apply in addition.
    """

    name: str
    sites: tuple[CallSite, ...]
    rule: RateLimitRule | None
    beside: tuple[RateLimitRule, ...]

    @property
    def has_several_keys(self) -> bool:
        """Return whether the call sites have several keys. No single rule can replace them all."""
        return len({site.key for site in self.sites}) > 1

    @property
    def is_rule(self) -> bool:
        """Return whether one of the sites is a rule of the settings."""
        return any(site.kind == SETTINGS for site in self.sites)


def limits_in_code() -> list[LimitInCode]:
    """Return everything in the imported code that has limits, by name.

    That is rules of the settings, decorators, throttles and limiters.
    """
    rules = list(RateLimitRule.objects.all())
    by_name = {rule.name: rule for rule in rules}
    return [
        LimitInCode(
            name,
            call_sites_of(name),
            by_name.get(name),
            tuple(rule for rule in rules if rule.group == name != rule.name),
        )
        for name in names_in_code()
    ]


def names_in_code() -> list[str]:
    """Return the sorted names under which the imported code and the settings have limits."""
    look_for_call_sites()
    names = {rule.name for rule in settings_rules() if rule.template is not None}
    return sorted(names.union(known_call_sites.names()))


def rule_names() -> list[str]:
    """Return the sorted names of all rules, and of the limits in the code."""
    return sorted({*RateLimitRule.objects.values_list("name", flat=True), *names_in_code()})


def taken_over(name: str) -> RateLimitRule:
    """Return a rule of the settings as an unsaved row.

    Raises:
        RuleError: That is impossible.
    """
    for rule in settings_rules():
        if rule.name == name:
            spec = {word: _as_json(value) for word, value in (rule.given or {}).items()}
            rates = rule.template and rule.template.rates
            if rates and all(isinstance(rate, Rate) for rate in rates):
                spec["rate"] = [*map(str, rates)]
            compile(spec, plain=True, where=SETTINGS)
            return RateLimitRule.from_spec(spec)
    raise RuleError("name", f"there is no rule {name!r}", where=SETTINGS)


def _as_json(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return value
