"""The places in the code that rules name: URL patterns and call sites, as far as they are imported."""

from __future__ import annotations

from difflib import get_close_matches

from django.conf import settings
from django.urls import get_resolver
from django.utils.translation import gettext as _

from .callsite import CallSite, known_call_sites
from .stacks import on_view, url_patterns


def route_names() -> set[str]:
    """The names of all URL patterns, with their namespaces."""
    return {f"{space}{pattern.name}" for pattern, space in url_patterns() if pattern.name}


def look_for_call_sites() -> None:
    """Make known what stands on the methods of views, as these count under the class of the view that runs."""
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


def meant_by(name: str) -> str:
    """The call site that may be meant by a name that is none; empty if there is none like it."""
    if not name or name in known_call_sites:
        return ""
    return next(iter(get_close_matches(name, known_call_sites.names(), n=1, cutoff=0.7)), "")


def unknown_places(name: str, group: str, route: str, *, is_bare: bool) -> list[tuple[str, str]]:
    """The places of a rule that the code does not have: (field, problem). `is_bare`: it names no path, route, group or
    descriptor, so it is for the call site of its name."""
    look_for_call_sites()
    found = []
    if route and route not in route_names():
        found.append(("route", _("No URL pattern has this name: the rule would match nothing.")))
    if is_bare and name and name not in known_call_sites:
        problem = _("The rule has no path and no route, and no limit in the code has its name: it would do nothing.")
        found.append(("name", _with_hint(problem, name)))
    if group and group not in known_call_sites:
        problem = _("No limit in the code has this name, as far as it is imported here: the rule would match nothing.")
        found.append(("group", _with_hint(problem, group)))
    return found


def _with_hint(problem: str, name: str) -> str:
    meant = meant_by(name)
    hint = _("Did you mean “%(name)s”?") % {"name": meant} if meant else ""
    return f"{problem} {hint}".strip()
