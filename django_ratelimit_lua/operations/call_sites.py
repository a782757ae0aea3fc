"""The limits that the code has, by the names that rules take their place by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules.callsite import CallSite, known_call_sites, limits_of
from ..rules.describe import reading
from ..rules.places import look_for_call_sites
from ..rules.rule import RuleError
from ..rules.ruleset import settings_rules
from .rules_yaml import Built, build_rule

SETTINGS = "RATELIMIT_RULES"


def call_sites_of(name: str) -> tuple[CallSite, ...]:
    """The call sites that a rule of that name replaces, the rule of the settings first."""
    look_for_call_sites()
    return (*_of_settings(name), *known_call_sites.of(name))


def _of_settings(name: str) -> Iterator[CallSite]:
    for rule in settings_rules():
        if rule.name == name and rule.template is not None and rule.mode != "off":
            key = "" if rule.key is None else rule.key.name
            yield CallSite(SETTINGS, SETTINGS, rule.template.rates, key, tuple(limits_of(rule)))


def rule_words(rule: RateLimitRule) -> str:
    """A rule in one sentence; one that takes its key from the code, with that key."""
    declared = rule.declared()
    if declared.get("rate") is not None and not declared.get("key"):
        key = next((site.key for site in call_sites_of(rule.name)), "")
        if key:
            declared["key"] = key.split("+")
    return reading(declared)


@dataclass(frozen=True, slots=True)
class LimitInCode:
    """A name under which the code limits, and the rules of the admin that have its name (`rule`) or
    are added to it.
    """

    name: str
    sites: tuple[CallSite, ...]
    rule: RateLimitRule | None
    beside: tuple[RateLimitRule, ...]

    @property
    def has_several_keys(self) -> bool:
        """Whether no single rule can stand for all of it."""
        return len({site.key for site in self.sites}) > 1

    @property
    def is_rule(self) -> bool:
        """Whether it is a rule of the settings."""
        return any(site.kind == SETTINGS for site in self.sites)

    def rates(self) -> list[str]:
        """The constant rates of the first call site, as rules write them."""
        return (
            [str(rate) for rate in self.sites[0].rates if isinstance(rate, Rate)]
            if self.sites
            else []
        )


def limits_in_code() -> list[LimitInCode]:
    """Everything that the code limits, as far as it is imported: rules of the settings, decorators,
    throttles and limiters, by name.
    """
    look_for_call_sites()
    rules = list(RateLimitRule.objects.prefetch_related("tiers"))
    by_name = {rule.name: rule for rule in rules}
    names = {
        *known_call_sites.names(),
        *(rule.name for rule in settings_rules() if rule.template is not None),
    }
    return [
        LimitInCode(
            name,
            call_sites_of(name),
            by_name.get(name),
            tuple(rule for rule in rules if rule.group == name and rule.name != name),
        )
        for name in sorted(names)
    ]


def taken_over(name: str) -> Built:
    """A rule of the settings as a row and its tiers, not saved.

    Raises `RuleError` if that is impossible.
    """
    rule = next((rule for rule in settings_rules() if rule.name == name), None)
    if rule is None:
        raise RuleError("RATELIMIT_RULES", "name", f"there is no rule {name!r}")
    given: dict[str, Any] = {word: _listed(value) for word, value in (rule.given or {}).items()}
    if rule.template is not None and all(isinstance(rate, Rate) for rate in rule.template.rates):
        given["rate"] = [str(rate) for rate in rule.template.rates]
    return build_rule(given, "RATELIMIT_RULES")


def _listed(value: Any) -> Any:
    return (
        sorted(value)
        if isinstance(value, (set, frozenset))
        else list(value)
        if isinstance(value, tuple)
        else value
    )
