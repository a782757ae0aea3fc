"""Rules: a limit, and when it applies. Declared in `RATELIMIT_RULES`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest

from .callsite import ALL, AUDIENCES, Site
from .exempt import resolved
from .glob import path_matches
from .limits.limit import OPTIONS
from .limits.rate import LimitError

FIELDS = ("name", "path", "route", "method", "audience", "key", "rate", "cost", "exempt", *OPTIONS)
MODES = ("enforce", "shadow", "off")


@dataclass(frozen=True, slots=True)
class Rule:
    """When a limit applies: `paths` (prefixes or globs; none: every path), `route` (a URL pattern's name, with its
    namespaces), and what its `site` says of methods and audience. A rule without a site exempts."""

    name: str
    paths: tuple[str, ...]
    route: str | None
    site: Site | None

    def applies_to(self, request: HttpRequest) -> bool:
        """Whether path and route are its own."""
        if self.paths and not any(path_matches(path, request.path) for path in self.paths):
            return False
        if self.route is not None or (self.site is not None and self.site.key.needs_route):
            match = resolved(request)
            return self.route is None or (match is not None and match.view_name == self.route)
        return True


def compile_rule(given: Mapping[str, Any]) -> Rule | None:
    """A rule as it is declared; None if it is off. Raises `ImproperlyConfigured` that names rule and field.

    >>> rule = compile_rule({"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"})
    >>> rule.paths, rule.site.key.name
    (('/api/',), 'ip')
    """
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"RATELIMIT_RULES: {given!r} is no rule; write a dict with {', '.join(FIELDS)}")
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise ImproperlyConfigured(f"RATELIMIT_RULES: the rule {dict(given)!r} needs a name")
    where = f"RATELIMIT_RULES: rule {name!r}"
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise ImproperlyConfigured(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(FIELDS)}")
    if given.get("mode", "enforce") not in MODES:
        raise ImproperlyConfigured(f"{where}: mode is {given['mode']!r}; choose one of: {', '.join(MODES)}")
    if given.get("mode") == "off":
        return None
    paths = (given["path"],) if isinstance(given.get("path"), str) else tuple(given.get("path") or ())
    if not all(isinstance(path, str) and path.startswith(("/", "*")) for path in paths):
        raise ImproperlyConfigured(
            f"{where}: path is {given['path']!r}; write a prefix or glob that begins with /, or a list"
        )
    route = given.get("route")
    if route is not None and (not isinstance(route, str) or not route):
        raise ImproperlyConfigured(
            f"{where}: route is {route!r}; write the name of a URL pattern, such as 'shop:detail'"
        )
    if given.get("exempt"):
        if not paths and route is None:
            raise ImproperlyConfigured(f"{where}: exempts everything; name a path or a route")
        return Rule(name, paths, route, None)
    if given.get("rate") is None:
        raise ImproperlyConfigured(f"{where}: needs a rate, such as '100/m' (or exempt=True)")
    audience = given.get("audience", "everyone")
    if not isinstance(audience, str) or (audience not in AUDIENCES and not audience.startswith("group:")):
        raise ImproperlyConfigured(
            f"{where}: audience is {audience!r}; choose one of: {', '.join(AUDIENCES)}, group:NAME"
        )
    options: Any = {option: given[option] for option in OPTIONS if option in given}
    try:
        site = Site.compiled(
            name, given.get("key"), given["rate"], given.get("method", ALL), given.get("cost", 1), options,
            rule=True, audience=audience,
        )  # fmt: skip
    except (LimitError, TypeError) as error:
        raise ImproperlyConfigured(f"{where}: {error}") from error
    return Rule(name, paths, route, site)


def compile_rules(given: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """All rules that are not off, in their order. Raises `ImproperlyConfigured`, also for two of one name."""
    if not isinstance(given, (list, tuple)):
        raise ImproperlyConfigured("RATELIMIT_RULES must be a list of rules")
    rules = tuple(rule for rule in map(compile_rule, given) if rule is not None)
    names = [rule.name for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ImproperlyConfigured(f"RATELIMIT_RULES: two rules are called {', '.join(twice)}; a name is a count")
    return rules


@cache
def current_rules() -> tuple[Rule, ...]:
    """The rules of the settings, compiled once. Raises `ImproperlyConfigured`."""
    return compile_rules(getattr(settings, "RATELIMIT_RULES", ()))


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting.startswith("RATELIMIT_"):
        current_rules.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.rules")
