"""Limits written at a call site: what `@ratelimit` and `is_ratelimited` are told, and how that becomes one call.

The steps of a decision are written once, as a generator that yields whatever has to be waited for; a synchronous and an
asynchronous driver wait for it, each in its own way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from .conf import conf
from .dotted import lazily
from .identity import digest
from .identity.keys import Key, KeyLike, compile_key, user_missing
from .limiter import acheck, check, describe
from .limits import calendar
from .limits.call import Call, Charge
from .limits.decision import Decision
from .limits.limit import Limit
from .limits.rate import ACCEPTED, SECOND, LimitError, Rate

ALL: None = None
UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]

RateFunction = Callable[[str, HttpRequest], Any]
RateLike = str | tuple[int, float] | Rate | RateFunction | None
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
    elif isinstance(cost, int) and not isinstance(cost, bool) and cost >= 0:
        return cost
    raise LimitError(f"Cost {cost!r}: must be a whole number from 0, a callable (group, request) or its dotted path")


@dataclass(frozen=True, slots=True)
class Site:
    """One `@ratelimit`: whom it counts, how fast, for which methods."""

    key: Key
    rates: tuple[Rate | RateFunction | None, ...]
    methods: frozenset[str] | None
    cost: int | Callable[[str, HttpRequest], Any]
    options: dict[str, Any]
    group: str | None = None
    block: bool = True
    _limits: dict[Any, Limit] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def compiled(
        cls,
        group: str | None,
        key: KeyLike | None,
        rate: Any,
        method: Any,
        cost: CostLike,
        options: dict[str, Any],
        block: bool = True,
    ) -> Site:
        """Raises `LimitError` for whatever is wrong with it."""
        if not key:
            raise LimitError("A rate limit needs a key: whom to count, such as key='ip'")
        if group is not None and (not isinstance(group, str) or not group):
            raise LimitError(f"group is {group!r}: must be text")
        rates = tuple(compile_rate(one) for one in rate) if isinstance(rate, list) else (compile_rate(rate),)
        if not rates:
            raise LimitError(f"rate is an empty list; {ACCEPTED}")
        site = cls(compile_key(key), rates, _methods(method), compile_cost(cost), options, group, block)
        # Whatever is wrong with the options is wrong with every rate: say so now, not at the first request.
        nominal = calendar.PERIODS.get(str(options.get("align")), (SECOND, SECOND))[0]
        for one in rates:
            constant = one if isinstance(one, Rate) else Rate(1, nominal)
            Limit("at this call site", constant, **{"algorithm": conf.ALGORITHM, **options})
        return site

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
            methods = ",".join(sorted(self.methods)) if self.methods is not None else "*"
            name = f"{group}:{methods}:{self.key.name}:{rate}" + (f"*{ordinal}" if ordinal > 1 else "")
            limit = self._limits[known] = Limit(name, rate, **{**self.options, "algorithm": algorithm})
        return limit


def _methods(method: Any) -> frozenset[str] | None:
    if method is ALL:
        return None
    names = [method] if isinstance(method, str) else method
    listed = isinstance(names, (list, tuple, set, frozenset)) and names
    if not listed or not all(isinstance(name, str) and name.isalpha() for name in names):
        raise LimitError(f"method is {method!r}: must be ALL, UNSAFE, a method's name or a list of names")
    return frozenset(name.upper() for name in names)


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


class WantsUser:
    """A step that asks for the request's user."""


WANTS_USER = WantsUser()
Steps = Generator[Any, Any, Decision]


def steps(request: HttpRequest, sites: Sequence[Site], group: str, operation: Any = "hit") -> Steps:
    """Decide all sites that apply to a request in one call.

    Yields an awaitable, or `WANTS_USER`, or the `Call`; is sent what came of it; returns the decision.
    """
    charges: list[Charge] = []
    taken: set[tuple[bytes, bytes]] = set()
    advisory = len({site.block for site in sites}) > 1
    for site in sites:
        if not site.applies_to(request):
            continue
        name = site.group or group
        rates = []
        for rate in site.rates:
            if callable(rate):
                rate = rate(name, request)
                if inspect.isawaitable(rate):
                    rate = yield rate
                rate = None if rate is None else Rate.parse(rate)
            if rate is not None:
                rates.append(rate)
        if not rates:
            continue
        cost = site.cost
        if callable(cost):
            cost = cost(name, request)
            if inspect.isawaitable(cost):
                cost = yield cost
        user = (yield WANTS_USER) if site.key.needs_user else None
        identity = site.key.read(name, request, user)
        if inspect.isawaitable(identity):
            identity = yield identity
        who = digest(identity)
        for rate in rates:
            limit = site.limit(name, rate)
            ordinal = 1
            while (who, limit.key_part) in taken:
                ordinal += 1
                limit = site.limit(name, rate, ordinal)
            taken.add((who, limit.key_part))
            if advisory and not site.block:
                limit = limit.advising()
            charges.append(Charge(limit, who, cost))
    decision: Decision = yield describe(charges, operation)
    return decision


def run(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision, blocking where they have to be waited for."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, Call):
            value = check(step)
        elif isinstance(step, WantsUser):
            value = getattr(request, "user", None)
            if value is None:
                raise user_missing()
        else:
            value = async_to_sync(_awaited)(step)


async def arun(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision in a coroutine."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, Call):
            value = await acheck(step)
        elif isinstance(step, WantsUser):
            if not hasattr(request, "auser"):
                raise user_missing()
            value = await request.auser()
        else:
            value = await step


async def _awaited(step: Any) -> Any:
    return await step
