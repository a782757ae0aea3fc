"""Call sites: the places in the code that declare limits.

This module compiles their arguments into rules, keeps the list of imported call sites, and compares
rules with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import get_resolver
from django.utils.translation import gettext as _

from ..extension import FIELDS_OF_ANNEXES, install, is_installed
from ..identity.keys import ALL_CALLERS, KeyLike
from ..limits.limit import Limit
from ..limits.options import OPTIONS, Options, refuse_unknown
from ..limits.rate import LimitError, Rate
from ..rules.conditions import methods_label, parse_methods
from ..rules.describe import describe_spec, key_label, rate_words
from ..rules.rule import Rule, Spec, is_unwritable
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
    rates: tuple[Any, ...]
    key: str = ""
    limits: tuple[Limit, ...] = ()
    methods: frozenset[str] | None = None

    @classmethod
    def of(cls, rule: Rule, group: str) -> CallSite:
        """Return the call site of a decorator at that place; its rule has rates and a key."""
        template = rule.template
        assert template is not None
        assert template.key is not None
        limits = template.limits(rule.name_at(group))
        key = template.key.name
        return cls("@ratelimit", group, template.rates, key, limits, rule.methods)

    def words(self) -> str:
        """Return the limits of the call site, and its place, in words."""
        return _("%(rates)s per %(client)s, in %(place)s") % {
            "rates": rate_words([rate_text(rate) for rate in self.rates]),
            "client": self.describe_client(),
            "place": self.place,
        }

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

    Names may be made at run time, so their number is unbounded. Only the first `MAX_ENTRIES` are
    kept. If there are more, any name may be a call site.
    """

    MAX_ENTRIES = 10_000
    MAX_LENGTH = 200
    MAX_PER_NAME = 50

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[CallSite, ...]] = {}
        self.durable: set[str] = set()
        """The names with durable statistics."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or not self._has_room(name)

    def _has_room(self, name: str) -> bool:
        return len(name) <= self.MAX_LENGTH and len(self._by_name) < self.MAX_ENTRIES

    def knows(self, name: str) -> bool:
        """Return whether a call site of that name is known."""
        return name in self._by_name

    def names(self) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(self._by_name)

    def add(self, name: str, site: CallSite | None = None) -> None:
        """Add a call site of that name.

        The last added comes first, because that is the outermost decorator. A rule without a key
        takes the key of the first.
        """
        if not (name in self._by_name or self._has_room(name)):
            return
        present = self._by_name.setdefault(name, ())
        if site is not None and site not in present and len(present) < self.MAX_PER_NAME:
            self._by_name[name] = (site, *present)

    def mark_durable(self, name: str) -> None:
        """Keep statistics for the call sites of that name, which are `durable`.

        Raises `LimitError` if the database cannot store their statistics.
        """
        if not is_installed("statistics"):
            raise LimitError(
                f"durable=True on {name!r} needs the app statistics. {install('statistics')}"
            )
        if len(name) > self.MAX_LENGTH or is_unwritable(name):
            right = f"use a name of at most {self.MAX_LENGTH} characters that a database can store"
            raise LimitError(f"The statistics of {name!r} cannot be durable: {right}")
        if len(self.durable) < self.MAX_ENTRIES:
            self.durable.add(name)

    def get(self, name: str) -> tuple[CallSite, ...]:
        """Return the call sites of a name."""
        return self._by_name.get(name, ())


known_call_sites = KnownCallSites()


def constant_limits(rule: Rule) -> list[Limit]:
    """Return the limits of a rule with constant rates, and of its tiers.

    If the rule replaces call sites, its limits continue the counts of the call sites.
    """
    template = rule.template
    if template is None:
        return []
    templates = []
    sites = known_call_sites.get(rule.name)
    if rule.group in (None, rule.name):
        for site in sites:
            is_same = template.key is None or site.key == template.key.name
            if site.limits and (is_same or (site.key == "" and site.kind != THROTTLE)):
                templates.append(template.in_place_of(site.limits))
        if sites and not templates:
            templates.append(template.in_place_of((), sites[0].limits))
    templates = templates or [template]
    templates += [tier for each in templates for _, tier in each.tiers]
    return [limit for each in templates for limit in each.limits(rule.name)]


def lost_rates(
    sites: Sequence[CallSite], key: str, rates: Sequence[object]
) -> list[tuple[CallSite, Rate]]:
    """Return the rates of call sites that a rule with this key and these rates would lose.

    An empty key stands for the key of the first call site. A rate is kept if the rule counts by the
    same key, and has a rate with the same period, or one that implies it. For example, 3 a minute
    imply 500 an hour. All other rates are lost.
    """
    return [
        (site, rate)
        for site in sites
        for rate in site.rates
        if isinstance(rate, Rate)
        and (
            site.key not in ("", key or sites[0].key)
            or not any(_is_kept(rate, each) for each in rates if isinstance(each, Rate))
        )
    ]


def _is_kept(rate: Rate, by: Rate) -> bool:
    """Return whether the rate `by` has the same period as `rate`, or implies it.

    Slots imply no rate, and no rate implies slots.
    """
    if rate.is_slots or by.is_slots:
        return rate.is_slots and by.is_slots
    if rate.period_us == by.period_us:
        return True
    return by.limit * -(-rate.period_us // by.period_us) <= rate.limit


def call_site(
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
    """Return the unnamed rule of a call site.

    Its limits are named by group, methods, key and rate, so that no two share a count. `outcomes`
    are the arguments `count_if`, `reset_if` and `cost_after`. Raises `LimitError` if an argument is
    invalid.
    """
    for word in options.keys() & FIELDS_OF_ANNEXES.keys() - set(_ARGUMENTS):
        raise LimitError(
            f"@ratelimit: {word} is only a field of rules, in the settings or in the admin", word
        )
    refuse_unknown(options, (*_ARGUMENTS, *OPTIONS), "@ratelimit: ")
    if not key:
        raise LimitError("A rate limit needs a key to count by, such as key='ip'")
    if group is not None and (not isinstance(group, str) or not group):
        raise LimitError(f"group is {group!r}: must be text")
    template = LimitTemplate.compiled("at this call site", key, rate, cost, options)
    methods = parse_methods(method)
    is_of_slots = all(isinstance(each, Rate) and each.is_slots for each in template.rates)
    for name, function in outcomes.items():
        if function is None:
            continue
        if not callable(function):
            raise LimitError(
                f"{name} is {function!r}: must be a callable (request, response or exception)"
            )
        if is_of_slots:
            raise LimitError(
                f"{name} is only for rates: a slot is released when the response is closed"
            )
    if group is not None:
        known_call_sites.add(group)
    assert template.key is not None
    template = replace(template, label=f"{methods_label(methods)}:{template.key.name}", _limits={})
    return Rule(template=template, group=group, methods=methods, block=block, **outcomes)


def route_names() -> set[str]:
    """Return the names of all URL patterns, with their namespaces."""
    return {f"{space}{pattern.name}" for pattern, space in url_patterns() if pattern.name}


def discover_call_sites() -> None:
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
        found = inspect_view(pattern.callback)
        for stack in reversed([*found.hidden, *found.stacks]):
            for rule in reversed(stack.rules):
                if rule.template is not None and rule.key is not None:
                    known_call_sites.add(rule.group or stack.group, CallSite.of(rule, stack.group))


def replaced_call_sites(name: str) -> tuple[CallSite, ...]:
    """Return the call sites that a rule of that name replaces, the rule of the settings first."""
    discover_call_sites()
    return (*_of_settings(name), *known_call_sites.get(name))


def _of_settings(name: str) -> Iterator[CallSite]:
    for rule in settings_rules():
        if rule.name == name and rule.template is not None and rule.mode != "off":
            key = ""
            if rule.key is not None:
                key = rule.key.name
            yield CallSite(
                SETTINGS, SETTINGS, rule.template.rates, key, tuple(constant_limits(rule))
            )


def describe_rule(given: Spec) -> str:
    """Return a rule in one sentence. If it has no key, it has that of its call site."""
    client = ""
    if isinstance(given, dict) and given.get("rate") and not given.get("key"):
        sites = replaced_call_sites(str(given.get("name")))
        client = next((site.describe_client() for site in sites), "")
    return describe_spec(given, client)


def closest_call_site(name: str) -> str:
    """Return the closest match for an unknown name of a call site, or an empty string."""
    if not name or name in known_call_sites:
        return ""
    return next(iter(get_close_matches(name, known_call_sites.names(), n=1, cutoff=0.7)), "")


def place_problems(rule: Rule) -> list[str]:
    """Return the problems of a rule that has no effect because of the project's code.

    Examples are an unknown route or call site, or a ban of an identity that all callers share.
    """
    discover_call_sites()
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
        meant = closest_call_site(rule.group)
        if meant:
            text += " " + _("Did you mean “%(name)s”?") % {"name": meant}
        found.append(text)
    is_replacement = rule.group == rule.name and rule.key is None
    keys = {site.key for site in known_call_sites.get(rule.name)}
    if rule.template.options.get("ban_after") and is_replacement and ALL_CALLERS in keys:
        found.append(
            _(
                "The limit in the code counts all clients together, so the rule never bans: give "
                "it a key."
            )
        )
    return found
