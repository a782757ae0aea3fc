"""The places in the code that rules refer to: URL patterns and imported call sites."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from django.conf import settings
from django.urls import get_resolver
from django.utils.translation import gettext as _

from ..identity.keys import ALL_CALLERS
from .callsite import CallSite, known_call_sites, limits_of
from .describe import reading
from .rule import Rule, Spec
from .ruleset import settings_rules
from .stacks import on_view, url_patterns

SETTINGS = "RATELIMIT_RULES"
"""The kind and the place of a call site that is a rule of the settings."""


def route_names() -> set[str]:
    """Return the names of all URL patterns, with their namespaces."""
    return {f"{space}{pattern.name}" for pattern, space in url_patterns() if pattern.name}


def look_for_call_sites() -> None:
    """Add the limits on the methods of views to the known call sites.

    They count under the class of the view that runs.
    """
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    known = vars(get_resolver())
    if "_ratelimit_looked_for" in known:
        return
    known["_ratelimit_looked_for"] = True
    for pattern, _space in url_patterns():
        found = on_view(pattern.callback)
        for stack in reversed([*found.hidden, *found.stacks]):
            for rule in reversed(stack.rules):
                if rule.template is not None and rule.key is not None:
                    known_call_sites.add(rule.group or stack.group, CallSite.of(rule, stack.group))


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


def sentence(given: Spec) -> str:
    """Return a rule in one sentence. If it has no key, it has that of its call site."""
    client = ""
    if given.get("rate") and not given.get("key"):
        sites = call_sites_of(str(given.get("name")))
        client = next((site.client_words() for site in sites), "")
    return reading(given, client)


def closest_name(name: str) -> str:
    """Return the closest match for an unknown name of a call site, or an empty string."""
    if not name or name in known_call_sites:
        return ""
    return next(iter(get_close_matches(name, known_call_sites.names(), n=1, cutoff=0.7)), "")


def place_problems(rule: Rule) -> list[str]:
    """Return the problems of a rule that has no effect because of the project's code.

    Examples are an unknown route or call site, or a ban of an identity that all callers share.
    """
    look_for_call_sites()
    found = []
    if rule.route and rule.route not in route_names():
        found.append(
            _("No URL pattern has the name “%(name)s”: the rule has no effect.")
            % {"name": rule.route}
        )
    if rule.template is None or rule.group is None:
        return found
    if rule.group not in known_call_sites:
        text = _("No imported limit has the name “%(name)s”: the rule has no effect.")
        text %= {"name": rule.group}
        meant = closest_name(rule.group)
        if meant:
            text += " " + _("Did you mean “%(name)s”?") % {"name": meant}
        found.append(text)
    is_replacement = rule.group == rule.name and rule.key is None
    keys = {site.key for site in known_call_sites.of(rule.name)}
    if rule.template.options.get("ban_after") and is_replacement and ALL_CALLERS in keys:
        found.append(
            _(
                "The limit in the code counts all clients together, so the rule never bans: give "
                "it a key."
            )
        )
    return found
