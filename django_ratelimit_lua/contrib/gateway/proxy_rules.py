"""The rules that apply to requests of proxies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...limits.rate import Rate
from ...rules.rule import Rule
from ...rules.ruleset import PathIndex, Ruleset


def _is_applicable(rule: Rule, *, is_user_known: bool) -> bool:
    """Return whether a proxy reports all values that a rule needs.

    `is_user_known`: whether a header of the proxy contains the user.
    """
    if rule.route is not None or rule.needs_route or rule.needs_session:
        return False
    if rule.needs_user and not is_user_known:
        return False
    if any(key.needs_body or not key.known_to_proxies for key in rule.keys):
        return False
    # Slots are held until the request ends.
    rates = () if rule.template is None else rule.template.rates
    return not any(isinstance(rate, Rate) and rate.is_slots for rate in rates)


@lru_cache(maxsize=4)
def _index(ruleset: Ruleset, is_user_known: bool) -> PathIndex:
    rules = ruleset.at_paths
    return PathIndex([rule for rule in rules if _is_applicable(rule, is_user_known=is_user_known)])


def rules_at(ruleset: Ruleset, path: str, *, is_user_known: bool) -> Sequence[Rule]:
    """Return the rules for a path that apply to requests of proxies, in their order."""
    return _index(ruleset, is_user_known).matching(path)
