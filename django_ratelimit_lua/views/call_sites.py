"""Call sites: the places in the code that declare limits.

This module compiles their arguments into rules, keeps the list of imported call sites, and compares
rules with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import get_resolver
from django.utils.translation import gettext as _

from ..extension import FIELDS_OF_ANNEXES, install_hint, is_installed
from ..identity.keys import ALL_CALLERS, KeyLike
from ..limits.limit import Limit
from ..limits.options import OPTIONS, Options, refuse_unknown
from ..limits.rate import LimitError, Rate
from ..rules.conditions import methods_label, parse_methods
from ..rules.describe import describe_spec, key_label
from ..rules.rule import Rule, Spec, is_storable
from ..rules.ruleset import settings_rules
from ..rules.template import CostLike, LimitTemplate
from .inspection import inspect_view, url_patterns

_ARGUMENTS = (
    "group",
    "key",
    "rate",
    "method",
    "block",
    "cost",
    "count_if",
    "reset_if",
    "cost_after",
    "fallback",
    "durable",
)
"""The arguments of `@ratelimit` in addition to the options of a limit."""


THROTTLE = "throttle"
LIMITER = "RateLimiter"
SETTINGS = "RATELIMIT_RULES"
"""The kind and the place of a call site that is a rule of the settings."""


class CallSite(NamedTuple):
    """A place in the code with limits.

    - `kind`: the construct that declares it, such as a decorator;
    - `rates`: constant rates, functions, or None for no limit;
    - `key`: the name of the key; empty if each call decides;
    - `limits`: the compiled constant rates, if they are known there;
    - `methods`: the HTTP methods that it counts; None: all.
    """

    kind: str
    place: str
    rates: tuple[object, ...]
    key: str = ""
    limits: tuple[Limit, ...] = ()
    methods: frozenset[str] | None = None

    @classmethod
    def of_decorator(cls, rule: Rule, group: str) -> CallSite:
        """Return the call site of a decorator, whose rule has rates and a key.

        `group` is the default group of the decorated view.
        """
        template = rule.template
        assert template is not None
        assert template.key is not None
        return cls(
            kind="@ratelimit",
            place=group,
            rates=template.rates,
            key=template.key.name,
            limits=template.limits(rule.name_at(group)),
            methods=rule.methods,
        )

    def describe_client(self) -> str:
        """Return what the call site counts by, in words."""
        if self.key:
            return key_label(self.key.split("+"))
        if self.kind == THROTTLE:
            return _("client of the throttle")
        return _("identity in the code")


def rate_text(rate: object) -> str:
    """Return a rate of a call site in the notation of rules."""
    if isinstance(rate, Rate):
        return str(rate)
    if rate is None:
        return _("no limit")
    return _("a function")


class KnownCallSites:
    """The imported call sites, by name. Rules of these names replace them.

    Names may be made at run time, so only the first `MAX_ENTRIES` are kept.
    """

    MAX_ENTRIES = 10_000
    MAX_LENGTH = 200
    MAX_PER_NAME = 50

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[CallSite, ...]] = {}
        self.durable: set[str] = set()
        """The names with durable statistics."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def _has_room_for(self, name: str) -> bool:
        return len(name) <= self.MAX_LENGTH and len(self._by_name) < self.MAX_ENTRIES

    def may_contain(self, name: str) -> bool:
        """Return whether a call site may have that name: it is known, or was not kept."""
        return name in self._by_name or not self._has_room_for(name)

    def names(self) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(self._by_name)

    def get(self, name: str) -> tuple[CallSite, ...]:
        """Return the call sites of a name, the outermost decorator first."""
        return self._by_name.get(name, ())

    def add_name(self, name: str) -> None:
        """Add a name of which no call site is known yet, unless there is no room for it."""
        if self._has_room_for(name):
            self._by_name.setdefault(name, ())

    def add(self, name: str, site: CallSite) -> None:
        """Add a call site of that name, in front of those that are known.

        The last added is the outermost decorator. A rule without a key takes the key of the first.
        Beyond `MAX_ENTRIES` names or `MAX_PER_NAME` call sites of the name, nothing is added.
        """
        self.add_name(name)
        sites = self._by_name.get(name)  # None: there is no room for the name.
        if sites is not None and site not in sites and len(sites) < self.MAX_PER_NAME:
            self._by_name[name] = (site, *sites)

    def mark_durable(self, name: str) -> None:
        """Keep statistics for the call sites of that name in the database.

        Raises `LimitError` if the database cannot store them.
        """
        if not is_installed("statistics"):
            raise LimitError(
                f"durable=True on {name!r} needs the app statistics. {install_hint('statistics')}"
            )
        if len(name) > self.MAX_LENGTH or not is_storable(name):
            right = f"use a name of at most {self.MAX_LENGTH} characters that a database can store"
            raise LimitError(f"The statistics of {name!r} cannot be durable: {right}")
        if len(self.durable) < self.MAX_ENTRIES:
            self.durable.add(name)


known_call_sites = KnownCallSites()


def constant_limits(rule: Rule) -> list[Limit]:
    """Return the limits of a rule with constant rates, and of its tiers.

    If the rule replaces call sites, its limits continue the counts of the call sites.
    """
    templates = _templates_at_call_sites(rule)
    tiers = [tier for template in templates for _name, tier in template.tiers]
    return [limit for template in (*templates, *tiers) for limit in template.limits(rule.name)]


def _templates_at_call_sites(rule: Rule) -> list[LimitTemplate]:
    """Return the template of a rule as it applies at each call site that the rule replaces.

    If it replaces none, that is the template as it is declared.
    """
    template = rule.template
    if template is None:
        return []
    sites = known_call_sites.get(rule.name)
    if not sites or rule.group not in (None, rule.name):
        return [template]
    continued = [site for site in sites if site.limits and _counts_by_key_of(template, site)]
    if not continued:
        return [template.replacing((), sites[0].limits)]
    return [template.replacing(site.limits) for site in continued]


def _counts_by_key_of(template: LimitTemplate, site: CallSite) -> bool:
    """Return whether a rule with that template counts by the key of a call site.

    A `RateLimiter` has no key, and each call passes the identity.
    """
    if template.key is None or site.key == template.key.name:
        return True
    return site.key == "" and site.kind != THROTTLE


def compile_call_site(
    group: str | None,
    key: KeyLike | None,
    rate: object,
    method: object,
    cost: CostLike,
    options: Options,
    *,
    block: bool = True,
    **outcomes: Any,
) -> Rule:
    """Compile the arguments of a call site to a rule without a name.

    Its limits are named by group, methods, key and rate, so that no two share a count. `outcomes`
    are the arguments `count_if`, `reset_if` and `cost_after`. Raises `LimitError` if an argument is
    invalid.
    """
    _check_names(options)
    if not key:
        raise LimitError("A rate limit needs a key to count by, such as key='ip'")
    if group is not None and (not isinstance(group, str) or not group):
        raise LimitError(f"group is {group!r}: must be text")
    template = LimitTemplate.compiled(group or "@ratelimit", key, rate, cost, options)
    methods = parse_methods(method)
    _check_outcomes(outcomes, template)
    assert template.key is not None
    template = replace(template, label=f"{methods_label(methods)}:{template.key.name}", _limits={})
    return Rule(template=template, group=group, methods=methods, block=block, **outcomes)


def _check_names(options: Options) -> None:
    """Raise `LimitError` if an argument is unknown, or only a field of rules."""
    for word in options.keys() & FIELDS_OF_ANNEXES.keys() - set(_ARGUMENTS):
        raise LimitError(
            f"@ratelimit: {word} is only a field of rules, in the settings or in the admin", word
        )
    refuse_unknown(options, (*_ARGUMENTS, *OPTIONS), "@ratelimit: ")


def _check_outcomes(outcomes: Mapping[str, object], template: LimitTemplate) -> None:
    """Raise `LimitError` if an outcome is not a function, or all limits are slots."""
    has_only_slots = all(isinstance(rate, Rate) and rate.is_slots for rate in template.rates)
    for name, function in outcomes.items():
        if function is None:
            continue
        if not callable(function):
            raise LimitError(
                f"{name} is {function!r}: must be a callable (request, response or exception)"
            )
        if has_only_slots:
            raise LimitError(
                f"{name} is only for rates: a slot is released when the response is closed"
            )


def route_names() -> set[str]:
    """Return the names of all URL patterns, with their namespaces."""
    return {f"{space}{pattern.name}" for pattern, space in url_patterns() if pattern.name}


def discover_call_sites() -> None:
    """Add the limits on the methods of views to the known call sites, once for each URLconf.

    They count under the class of the view that runs, which a decorator on a method does not know.
    The outermost is added last, as `KnownCallSites.add` expects.
    """
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    attributes = vars(get_resolver())
    if "_ratelimit_call_sites_discovered" in attributes:
        return
    attributes["_ratelimit_call_sites_discovered"] = True
    for pattern, _namespaces in url_patterns():
        limits = inspect_view(pattern.callback)
        for stack in reversed([*limits.hidden, *limits.stacks]):
            for rule in reversed(stack.rules):
                if rule.template is not None and rule.key is not None:
                    site = CallSite.of_decorator(rule, stack.group)
                    known_call_sites.add(rule.group or stack.group, site)


def replaced_call_sites(name: str) -> list[CallSite]:
    """Return the call sites that a rule of that name replaces, the rule of the settings first."""
    discover_call_sites()
    sites = list(known_call_sites.get(name))
    for rule in settings_rules():
        if rule.name == name and rule.template is not None and rule.mode != "off":
            sites.insert(0, _settings_site(rule, rule.template))
    return sites


def _settings_site(rule: Rule, template: LimitTemplate) -> CallSite:
    """Return a rule of the settings as a call site, because rules of the admin replace it too."""
    key = "" if template.key is None else template.key.name
    return CallSite(SETTINGS, SETTINGS, template.rates, key, tuple(constant_limits(rule)))


def describe_rule(spec: Spec) -> str:
    """Return a rule in one sentence. If it has no key, it has that of its call site."""
    client = ""
    if isinstance(spec, dict) and spec.get("rate") and not spec.get("key"):
        sites = replaced_call_sites(str(spec.get("name")))
        client = next((site.describe_client() for site in sites), "")
    return describe_spec(spec, client)


def closest_call_site(name: str) -> str:
    """Return the closest match for an unknown name of a call site, or an empty string."""
    if not name or known_call_sites.may_contain(name):
        return ""
    return next(iter(get_close_matches(name, known_call_sites.names(), n=1, cutoff=0.7)), "")


def place_problems(rule: Rule) -> list[str]:
    """Return the problems of a rule that has no effect because of the project's code.

    Examples are an unknown route or call site, or a ban of an identity that all callers share.
    """
    discover_call_sites()
    problems = []
    if rule.route and rule.route not in route_names():
        text = _("No URL pattern has the name “%(name)s”: the rule has no effect.")
        problems.append(text % {"name": rule.route})
    if rule.template is None or rule.group is None:
        return problems
    if not known_call_sites.may_contain(rule.group):
        text = _("No imported limit has the name “%(name)s”: the rule has no effect.")
        text %= {"name": rule.group}
        closest = closest_call_site(rule.group)
        if closest:
            text += " " + _("Did you mean “%(name)s”?") % {"name": closest}
        problems.append(text)
    has_key_of_call_site = rule.group == rule.name and rule.key is None
    keys = {site.key for site in known_call_sites.get(rule.name)}
    if rule.template.options.get("ban_after") and has_key_of_call_site and ALL_CALLERS in keys:
        problems.append(
            _(
                "The limit in the code counts all clients together, so the rule never bans: give "
                "it a key."
            )
        )
    return problems
