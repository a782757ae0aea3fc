"""The limits that the code has, by the names that rules take their place by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from ..rules.callsite import CallSite, known_call_sites
from ..rules.ruleset import settings_rules
from ..rules.stacks import stacks_on

SETTINGS = "RATELIMIT_RULES"


def url_patterns() -> Iterator[tuple[URLPattern, str]]:
    """All URL patterns of the site, each with the namespaces that it is in, as in "shop:"."""

    def within(patterns: Sequence[Any], space: str, seen: frozenset[int]) -> Iterator[tuple[URLPattern, str]]:
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                if id(pattern) not in seen:  # A URLconf may include itself.
                    inner = f"{space}{pattern.namespace}:" if pattern.namespace else space
                    yield from within(pattern.url_patterns, inner, seen | {id(pattern)})
            elif isinstance(pattern, URLPattern):
                yield pattern, space

    return within(get_resolver().url_patterns, "", frozenset())


def route_names() -> set[str]:
    """The names of all URL patterns, with their namespaces."""
    return {f"{space}{pattern.name}" for pattern, space in url_patterns() if pattern.name}


def look_for_call_sites() -> None:
    """Make known what stands on the views of the site, also on methods, which are decorated anew for each request."""
    known = vars(get_resolver())
    if "_ratelimit_looked_for" in known:
        return
    known["_ratelimit_looked_for"] = True
    for pattern, _space in url_patterns():
        with suppress(Exception):  # Decorators of others may want more than is here; then theirs is not known.
            _add_those_of(pattern.callback)


def _add_those_of(view: Any) -> None:
    for stack, _method in stacks_on(view):
        for rule in stack.rules:
            if rule.template is not None and rule.key is not None:
                known_call_sites.add(rule.group or stack.group, CallSite.of(rule, stack.group))


def call_sites_of(name: str) -> tuple[CallSite, ...]:
    """The call sites in whose place a rule of that name stands, the rule of the settings first."""
    look_for_call_sites()
    return (*_of_settings(name), *known_call_sites.of(name))


def _of_settings(name: str) -> Iterator[CallSite]:
    for rule in settings_rules():
        if rule.name == name and rule.template is not None and rule.mode != "off":
            yield CallSite(SETTINGS, SETTINGS, rule.template.rates, "" if rule.key is None else rule.key.name)


def meant_by(name: str) -> str:
    """The call site that may be meant by a name that is none; empty if there is none like it."""
    if not name or name in known_call_sites:
        return ""
    return next(iter(get_close_matches(name, known_call_sites.names(), n=1, cutoff=0.7)), "")
