"""Views that the middleware leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, resolve

View = TypeVar("View", bound=Callable[..., Any])
_any_view_is = False


def ratelimit_exempt(view: View) -> View:
    """Exempt a view from the middleware's rules; its own `@ratelimit` goes on counting.

    >>> @ratelimit_exempt
    ... def health(request):
    ...     return "fine"
    >>> health.ratelimit_exempt
    True
    """
    global _any_view_is
    _any_view_is = True
    view.ratelimit_exempt = True  # type: ignore[attr-defined]
    return view


def is_exempt(request: HttpRequest) -> bool:
    """Whether the view that a request leads to is exempt. Only looks where it leads if any view is."""
    if not _any_view_is:
        return False
    match = resolved(request)
    return match is not None and getattr(match.func, "ratelimit_exempt", False) is True


def resolved(request: HttpRequest) -> ResolverMatch | None:
    """Where a request leads, found out ahead of Django if need be; None if nowhere."""
    if request.resolver_match is None:
        with suppress(Resolver404):
            request.resolver_match = resolve(request.path_info, getattr(request, "urlconf", None))
    return request.resolver_match
