"""Limits written at a call site: what `@ratelimit` and `is_ratelimited` are told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from django.http import HttpRequest

from ..conf import conf
from ..conf.callables import lazily
from ..identity.keys import Key, KeyLike, compile_key
from ..limits import calendar
from ..limits.call import MOST_COST, whole_cost
from ..limits.limit import Limit
from ..limits.options import OPTIONS, Options, refuse_unknown
from ..limits.rate import ACCEPTED, SECOND, LimitError, Rate

ALL: None = None
UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]

METHODS = frozenset({
    "ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LABEL",
    "LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "OPTIONS",
    "ORDERPATCH", "PATCH", "POST", "PROPFIND", "PROPPATCH", "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH",
    "TRACE", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
})  # fmt: skip
"""HTTP methods that can be named: those that IANA registers, and PURGE. Any other is taken for a misspelt one, which
would limit nothing and say nothing."""
ARGUMENTS = ("group", "key", "rate", "method", "block", "cost", "count_if", "reset_if", "cost_after")
"""What `@ratelimit` takes beside the options of a limit."""


class KnownNames:
    """What call sites are called by, as far as they are imported: rules of these names take their place.

    Names that are made up at run time may be any number, so only the first are kept. Where there were more, nobody
    knows: then any name may be one.
    """

    MOST, LONGEST = 10_000, 200

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names or len(name) > self.LONGEST or len(self._names) >= self.MOST

    def add(self, *names: str) -> None:
        """There are call sites of these names."""
        for name in names:
            if len(name) <= self.LONGEST and len(self._names) < self.MOST:
                self._names.add(name)


known_call_sites = KnownNames()
AUDIENCES = ("everyone", "anonymous", "authenticated", "staff")

RateFunction = Callable[[str, HttpRequest], Any]
RateLike = str | tuple[int, float] | Rate | RateFunction | None
Outcome = Callable[[HttpRequest, Any], Any]
"""Called with the request and its response, or the exception that was raised instead of one; may be `async`."""
CostLike = int | str | Callable[[str, HttpRequest], Any]


def compile_rate(rate: RateLike) -> Rate | RateFunction | None:
    """A constant rate, parsed; or what has to be called for one. Raises `LimitError`."""
    if rate is None or callable(rate):
        return rate
    if isinstance(rate, str) and "/" not in rate and "." in rate:
        return lazily(rate, "Rate")
    return Rate.parse(rate)


def compile_cost(cost: CostLike) -> int | Callable[[str, HttpRequest], Any]:
    """A constant cost, or what has to be called for one. Raises `LimitError`."""
    if callable(cost):
        return cost
    if isinstance(cost, str):
        if "." in cost:
            return lazily(cost, "Cost")
    elif isinstance(cost, int):
        return whole_cost(cost, "Cost")
    right = f"must be a whole number from 0 to {MOST_COST}, a callable (group, request) or its dotted path"
    raise LimitError(f"Cost {cost!r}: {right}", "cost")


@dataclass(frozen=True, slots=True)
class LimitTemplate:
    """One `@ratelimit`: whom it counts, how fast, for which methods.

    `tiers`: what stands in its place for the members of Django groups, the most favourable first; `instead_of`: of a
    rule that takes the place of call sites, these call sites.
    """

    key: Key
    rates: tuple[Rate | RateFunction | None, ...]
    methods: frozenset[str] | None
    cost: int | Callable[[str, HttpRequest], Any]
    options: Options
    group: str | None = None
    block: bool = True
    rule: bool = False
    audience: tuple[str, ...] = ("everyone",)
    count_if: Outcome | None = None
    reset_if: Outcome | None = None
    cost_after: Outcome | None = None
    tiers: tuple[tuple[str, LimitTemplate], ...] = ()
    instead_of: tuple[LimitTemplate, ...] = ()
    _limits: dict[Any, Limit] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def compiled(
        cls,
        group: str | None,
        key: KeyLike | Key | None,
        rate: Any,
        method: Any,
        cost: CostLike,
        options: Options,
        block: bool = True,
        *,
        rule: bool = False,
        audience: tuple[str, ...] = ("everyone",),
        count_if: Outcome | None = None,
        reset_if: Outcome | None = None,
        cost_after: Outcome | None = None,
    ) -> LimitTemplate:
        """Raises `LimitError` for whatever is wrong with it."""
        refuse_unknown("@ratelimit", options, (*ARGUMENTS, *OPTIONS))
        if not key:
            raise LimitError("A rate limit needs a key: whom to count, such as key='ip'")
        if group is not None and (not isinstance(group, str) or not group):
            raise LimitError(f"group is {group!r}: must be text")
        rates = tuple(compile_rate(one) for one in rate) if isinstance(rate, list) else (compile_rate(rate),)
        if not rates:
            raise LimitError(f"rate is an empty list; {ACCEPTED}")
        site = cls(
            key if isinstance(key, Key) else compile_key(key),
            rates,
            _methods(method),
            compile_cost(cost),
            options,
            group,
            block,
            rule,
            audience,
            count_if,
            reset_if,
            cost_after,
        )
        if group is not None and not rule:
            known_call_sites.add(group)
        for name, function in (("count_if", count_if), ("reset_if", reset_if), ("cost_after", cost_after)):
            if function is not None and not callable(function):
                raise LimitError(f"{name} is {function!r}: must be a callable (request, response or exception)")
        # Whatever is wrong with the options is wrong with every rate: say so now, not at the first request.
        with_default: Options = {"algorithm": conf.ALGORITHM, **options}
        nominal = calendar.PERIODS.get(str(options.get("align")), (SECOND, SECOND))[0]
        for one in rates:
            constant = one if isinstance(one, Rate) else Rate(1, nominal)
            Limit(group if rule and group else "at this call site", constant, **with_default)
        return site

    @property
    def settles(self) -> bool:
        """Whether something is left to do when the outcome is known."""
        return self.count_if is not None or self.reset_if is not None or self.cost_after is not None

    @property
    def needs_user(self) -> bool:
        """Whether it can only be decided when the user is known."""
        return self.key.needs_user or bool(self.tiers) or "everyone" not in self.audience

    @property
    def lumps_strangers(self) -> bool:
        """Whether it meets people who are not logged in, and counts them as one."""
        return lumps_strangers(self.key, self.audience)

    def applies_to(self, request: HttpRequest) -> bool:
        """Whether this request's method is one of those to be counted."""
        return self.methods is None or request.method in self.methods

    def limit(self, group: str, rate: Rate, ordinal: int = 1) -> Limit:
        """The limit that keeps one rate: named by group, methods, key and rate, so that no two share a count."""
        algorithm = self.options.get("algorithm") or conf.ALGORITHM
        known = (group, rate, ordinal, algorithm)
        limit = self._limits.get(known)
        if limit is None:
            if len(self._limits) >= 1000:
                self._limits.clear()
            name = self._name(group, rate) + (f"*{ordinal}" if ordinal > 1 else "")
            options: Options = {**self.options, "algorithm": algorithm}
            limit = self._limits[known] = Limit(name, rate, **options)
        return limit

    def _name(self, group: str, rate: Rate) -> str:
        if self.rule:  # Named by itself, so that a changed rate keeps the count.
            return group if len(self.rates) == 1 else f"{group}:{rate}"
        # A limit on GET is on HEAD too; its name says GET, as it did when it was not, so that it keeps its count.
        methods = "*" if self.methods is None else ",".join(sorted(self.methods - _implied(self.methods)))
        return f"{group}:{methods}:{self.key.name}:{rate}"


def method_name(name: object) -> str:
    """An HTTP method by its name, in capitals. Raises `LimitError` for what is none.

    >>> method_name("get")
    'GET'
    >>> method_name("PSOT")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: 'PSOT' is no HTTP method; did you mean 'POST'? Known are ACL, ...
    """
    upper = name.upper() if isinstance(name, str) else ""
    if upper in METHODS:
        return upper
    meant = get_close_matches(upper, METHODS, n=1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "."
    raise LimitError(f"{name!r} is no HTTP method{hint} Known are {', '.join(sorted(METHODS))}", "method")


def lumps_strangers(key: Key, audience: Sequence[str]) -> bool:
    """Whether all who are not logged in share one count because the key goes by a user that they are not.

    >>> lumps_strangers(compile_key("user"), ["everyone"]), lumps_strangers(compile_key("user_or_ip"), ["everyone"])
    (True, False)
    """
    meets_them = not {"everyone", "anonymous"}.isdisjoint(audience)
    return meets_them and key.needs_user and key.lumps_strangers


def _methods(method: Any) -> frozenset[str] | None:
    """The methods to be counted; None: all. Who counts GET counts HEAD, which runs the same view."""
    if method is ALL:
        return None
    names = [method] if isinstance(method, str) else method
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise LimitError(f"method is {method!r}: must be ALL, UNSAFE, a method's name or a list of names", "method")
    methods = frozenset(map(method_name, names))
    return methods | _implied(methods)


def _implied(methods: frozenset[str]) -> frozenset[str]:
    return frozenset({"HEAD"}) if "GET" in methods else frozenset()


def group_of(view: Any) -> str:
    """The name a view's counts go by if it names no group: module and qualified name.

    A method is named by the class of the view that runs, so that views that inherit it do not share a count.
    """
    for attribute in ("view_class", "cls"):  # What `as_view()` of Django and of DRF returns.
        cls = getattr(view, attribute, None)
        if isinstance(cls, type):
            actions = getattr(view, "actions", None)
            suffix = "." + ",".join(sorted(set(actions.values()))) if isinstance(actions, dict) else ""
            return f"{cls.__module__}.{cls.__qualname__}{suffix}"
    function = view
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = str(getattr(view, "__qualname__", None) or getattr(function, "__qualname__", type(function).__qualname__))
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    module = getattr(view, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    return f"{module}.{name}" + (f":{code.co_firstlineno}" if code and code.co_name == "<lambda>" else "")
