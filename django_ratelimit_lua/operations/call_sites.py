"""The limits in the code and the settings, by the names of the rules that replace them."""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from ..identity.names import name_words
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules import RuleError, compile
from ..rules.describe import rate_words
from ..rules.ruleset import settings_rules
from ..views.call_sites import (
    SETTINGS,
    CallSite,
    describe_rule,
    discover_call_sites,
    known_call_sites,
    rate_text,
)


def place_words(name: str) -> str:
    """Return the name of a limit for operators.

    A limit that is named by its view is shown as the view and its line: "Login.dispatch, line 86".
    All other names stay as they are.
    """
    found = _source(name)
    if found is None:
        return name_words(name)
    place, line = found
    return _("%(place)s, line %(line)s") % {"place": place, "line": line}


@lru_cache(maxsize=4096)
def _source(name: str) -> tuple[str, int] | None:
    """Return the view that a dotted name stands for, without its module, and its line."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            line = _line(module, parts[end:])
            if line:
                return ".".join(parts[end:]), line
            break
    return None


def _line(module: Any, path: list[str]) -> int:
    """Return the line of a function or a class in a module; 0 if it is not known."""
    line = 0
    found = module
    for part in path:
        found = vars(found).get(part)
        function = inspect.unwrap(found) if callable(found) else None
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            return function.__code__.co_firstlineno
        if not isinstance(found, type):
            break
        try:
            line = inspect.getsourcelines(found)[1]
        except (OSError, TypeError):  # Its source is not available.
            break
    return line


def rule_words(rule: RateLimitRule) -> str:
    """Return a rule in one sentence, with its key."""
    return rule.describe()


class LimitInCode(NamedTuple):
    """A limit in the code or in the settings.

    - `name`: the name of the rule that replaces it;
    - `words`: its rates and its key;
    - `place`: where it is, unless the name contains that;
    - `number`: its place in the list of those with the same name;
    - `is_rule`: it is a rule of the settings.
    """

    name: str
    words: str
    place: str = ""
    number: int = 0
    is_rule: bool = False


def limits_in_code() -> list[LimitInCode]:
    """Return all limits in the imported code and in the settings that no rule replaces, by name."""
    rows = RateLimitRule.objects.values_list("name", flat=True)
    names = {*names_in_code(), *(rule.name for rule in settings_rules())}.difference(rows)
    return [limit for name in sorted(names) for limit in limits_named(name)]


def limits_named(name: str) -> list[LimitInCode]:
    """Return the limits with this name: that of the settings, or else those in the code."""
    discover_call_sites()
    rules = [rule for rule in settings_rules() if rule.name == name]
    if rules:
        return [LimitInCode(name, describe_rule(rule.spec), is_rule=True) for rule in rules]
    sites = known_call_sites.get(name)
    if not sites and known_call_sites.knows(name):
        return [LimitInCode(name, _("only the name is known"))]
    return [
        LimitInCode(name, _site_words(site), _place(name, site), number)
        for number, site in enumerate(sites)
    ]


def _site_words(site: CallSite) -> str:
    rates = rate_words([rate_text(rate) for rate in site.rates])
    return _("%(rate)s per %(client)s") % {"rate": rates, "client": site.describe_client()}


def _place(name: str, site: CallSite) -> str:
    if site.place == name:
        return ""
    return place_words(site.place)


def names_in_code() -> list[str]:
    """Return the sorted names under which the imported code and the settings have limits."""
    discover_call_sites()
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
            spec = {word: _as_json(value) for word, value in rule.spec.items()}
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
