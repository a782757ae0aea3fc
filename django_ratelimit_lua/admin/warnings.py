"""What a rule would do that its author may not expect, and has to confirm."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.translation import gettext_lazy as _

from ..identity.keys import compile_key
from ..limits.rate import LimitError
from ..rules.callsite import known_call_sites
from ..rules.rule import lumps_strangers


def surprises(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a rule would do that its author may not expect: (field, what)."""
    warnings: list[tuple[str, Any]] = []
    paths = [line.strip() for line in given.get("path", "").splitlines() if line.strip()]
    for path in paths:
        if path.strip("*") in ("", "/"):
            warnings.append(("path", _("“%(path)s” matches every request of the site.") % {"path": path}))
        elif path.startswith("*") and not path.startswith(("**", "*/")):
            problem = _("“%(path)s” matches nothing: a path begins with a slash, and a single * matches no slash.")
            warnings.append(("path", problem % {"path": path}))
        elif set(path) & set("?#"):
            problem = _("“%(path)s” matches nothing: a path ends where ? or # begins.")
            warnings.append(("path", problem % {"path": path}))
    if given.get("limit") == 0:
        warnings.append(("limit", _("A limit of 0 refuses every request that the rule applies to.")))
    if _is_one_for_all(given):
        problem = _(
            "All clients that are not logged in would share one count. Count by user_or_ip, or choose the audience "
            "“logged in”."
        )
        warnings.append(("key", problem))
    if given.get("route") and given["route"] not in route_names():
        warnings.append(("route", _("No URL pattern has this name: the rule would match nothing.")))
    if (
        given.get("name")
        and not given.get("exempt")
        and not (paths or given.get("route") or given.get("group"))
        and given["name"] not in known_call_sites
    ):
        problem = _("The rule has no path and no route, and no limit in the code has its name: it would do nothing.")
        warnings.append(("name", problem))
    return warnings


def _is_one_for_all(given: dict[str, Any]) -> bool:
    try:
        key = compile_key(tuple(part.strip() for part in given.get("key", "").split("+")))
    except LimitError:
        return False  # There is none, or it is refused anyway.
    return not given.get("exempt") and lumps_strangers(key, [given.get("audience", "everyone")])


def route_names() -> set[str]:
    """The names of all URL patterns, with their namespaces."""

    def names(patterns: Any, space: str) -> Any:
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                yield from names(pattern.url_patterns, f"{space}{pattern.namespace}:" if pattern.namespace else space)
            elif isinstance(pattern, URLPattern) and pattern.name:
                yield f"{space}{pattern.name}"

    return set(names(get_resolver().url_patterns, ""))
