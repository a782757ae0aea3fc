"""The two functions of `django_ratelimit.core`, with the same arguments and results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, ParamSpec, Protocol, TypedDict, TypeVar, cast

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from .conf import conf
from .engine.decide import decide
from .identity.keys import KeyLike
from .rules.conditions import ALL, UNSAFE
from .rules.template import RateLike
from .views.call_sites import compile_call_site, known_call_sites
from .views.inspection import default_group
from .web.request_plan import RequestPlanner

__all__ = ["ALL", "UNSAFE", "Usage", "get_usage", "is_ratelimited"]


class Usage(TypedDict):
    """The result of `get_usage`.

    Attributes:
        count: The units counted, including those of a refused request.
        limit: The limit of the rate.
        should_limit: Whether to refuse the request.
        time_left: Whole seconds until `should_limit` changes; -1 if it never does, or if the time
            is unknown.
    """

    count: int
    limit: int
    should_limit: bool
    time_left: int


P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)


class UsageFunction(Protocol[P, Result]):
    """The type of `get_usage` and `is_ratelimited`, with django-ratelimit's constants."""

    ALL: None
    UNSAFE: list[str]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...


def _add_constants(function: Callable[P, Result]) -> UsageFunction[P, Result]:
    """Return a function, with django-ratelimit's constants as attributes."""
    usage_function = cast("UsageFunction[P, Result]", function)
    usage_function.ALL = ALL
    usage_function.UNSAFE = UNSAFE
    return usage_function


@_add_constants
def get_usage(
    request: HttpRequest,
    group: str | None = None,
    fn: Callable[..., object] | None = None,
    key: KeyLike | None = None,
    rate: RateLike = None,
    method: str | list[str] | tuple[str, ...] | None = ALL,
    increment: bool = False,
) -> Usage | None:
    """Return the usage of a limit, or None if no limit applies.

    With `increment`, count the request. Without it, `should_limit` is true if one more request
    would be refused. The count is the one that `@ratelimit` keeps for the same group, key, rate and
    method.

    Raises:
        ImproperlyConfigured: Neither `group` nor `fn` is given.
    """
    if group is None and fn is None:
        raise ImproperlyConfigured("get_usage needs `group` or `fn` to name the count")
    if not hasattr(request, "META"):
        raise TypeError(
            "The first argument of get_usage and is_ratelimited must be the request, not "
            f"{request!r}"
        )
    if not conf.ENABLE or rate is None:
        return None
    rule = compile_call_site(group, key, rate, method, 1, {})
    if group is not None:
        known_call_sites.add_name(group)
    operation: Literal["hit", "peek"] = "hit" if increment else "peek"
    call_site = (group, fn, key, rate, method)
    planner = RequestPlanner(
        request, [rule], group or default_group(fn), operation, call_site=call_site
    )
    decision = decide(planner)
    if not decision.limits:
        return None
    state = decision.limits[0]
    seconds = state.reset_after if state.allowed else state.retry_after
    time_left = -1 if seconds is None else math.ceil(seconds)
    count = state.used
    if increment and not state.allowed:
        count += 1  # A refused request takes no unit, but django-ratelimit counts it.
    return Usage(
        count=count, limit=state.limit, should_limit=not state.allowed, time_left=time_left
    )


@_add_constants
def is_ratelimited(
    request: HttpRequest,
    group: str | None = None,
    fn: Callable[..., object] | None = None,
    key: KeyLike | None = None,
    rate: RateLike = None,
    method: str | list[str] | tuple[str, ...] | None = ALL,
    increment: bool = False,
) -> bool:
    """Return whether the request is over the limit. See `get_usage`."""
    usage = get_usage(request, group, fn, key, rate, method, increment)
    return usage is not None and usage["should_limit"]
