"""Limits at call sites.

This module compiles the arguments of `@ratelimit` and `is_ratelimited`, and keeps the list of call
sites.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import MethodType, ModuleType
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from ..conf.values import dotted_name
from ..extension import FIELDS_OF_ANNEXES, install, is_installed
from ..identity.keys import KeyLike
from ..limits.limit import Limit
from ..limits.options import OPTIONS, Options, refuse_unknown
from ..limits.rate import LimitError, Rate
from .describe import key_label, rate_words
from .methods import methods_label, parse_methods
from .rule import Rule, is_unwritable
from .template import CostLike, LimitTemplate

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
            "client": self.client_words(),
            "place": self.place,
        }

    def client_words(self) -> str:
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

    def keep_statistics(self, name: str) -> None:
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

    def of(self, name: str) -> tuple[CallSite, ...]:
        """Return the call sites of a name."""
        return self._by_name.get(name, ())


known_call_sites = KnownCallSites()


def limits_of(rule: Rule) -> list[Limit]:
    """Return the limits of a rule with constant rates, and of its tiers.

    If the rule replaces call sites, its limits continue the counts of the call sites.
    """
    template = rule.template
    if template is None:
        return []
    templates = []
    sites = known_call_sites.of(rule.name)
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


def losses(
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


def group_of(view: Any) -> str:
    """Return the default group of a view: its module and qualified name.

    For a method, it is the class of the view that runs, so that views that inherit the method do
    not share a count.
    """
    for attribute in ("view_class", "cls"):  # What `as_view()` of Django and of DRF returns.
        cls = getattr(view, attribute, None)
        if isinstance(cls, type):
            name = f"{cls.__module__}.{cls.__qualname__}"
            actions = getattr(view, "actions", None)
            if isinstance(actions, dict):
                name += "." + ",".join(sorted(set(actions.values())))
            return name
    # `method_decorator` wraps a partial of the bound method.
    function = inspect.unwrap(
        view, stop=lambda layer: isinstance(layer, (functools.partial, MethodType))
    )
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    view_func = getattr(owner, "view_func", None)
    if inspect.isfunction(view_func):  # django-ninja's `decorate_view`.
        return group_of(view_func)
    name = str(
        getattr(view, "__qualname__", None)
        or getattr(function, "__qualname__", type(function).__qualname__)
    )
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    # A partial's own module is functools.
    module = getattr(function, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    if code and code.co_name == "<lambda>":
        name += f":{code.co_firstlineno}"
    return f"{module}.{name}"


def why_undecorated(function: Any) -> str | None:
    """Return why a decorator directly above this function would have no effect, or None.

    Frameworks that register a function and return it unchanged never call what a decorator above
    theirs makes. Of these, only django-ninja leaves a mark on the function.
    """
    name = dotted_name(function)
    if hasattr(function, "_ninja_operation"):
        return (
            f"on {name}: django-ninja has registered the function without it. Write it below "
            "@api.get, @router.post and the like, directly above the function"
        )
    if isinstance(function, staticmethod) or not callable(function):
        kind = type(function).__name__
        return (
            f"on {name}: that is a {kind}, not a function. Write it below the decorator that made "
            f"the {kind}, directly above the function"
        )
    return None
