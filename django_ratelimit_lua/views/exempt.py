"""Views that are exempt from the middleware's rules."""

from __future__ import annotations

from typing import TypeVar

from django.http import HttpRequest

from ..conf.values import Function
from ..identity.routes import resolve_route, resolver_of
from .inspection import url_patterns

View = TypeVar("View", bound=Function)
_any_view_is = False


def ratelimit_exempt(view: View) -> View:
    """Exempt a view, or all views of a class, from the middleware's rules.

    Its own `@ratelimit` still applies.

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
    """Return whether the view of a request is exempt.

    The request is resolved only if there are exempt views.
    """
    if not _any_is(request):
        return False
    match = resolve_route(request)
    return match is not None and _says_so(match.func)


def _any_is(request: HttpRequest) -> bool:
    """Return whether any view of the URLconf, or any other imported view, is exempt.

    A process imports its views with its URLconf, when it first resolves a path. So the URLconf is
    loaded here, once: otherwise the first requests of a new process would miss every exemption.
    """
    attributes = vars(resolver_of(request))
    if "_ratelimit_any_exempt" not in attributes:
        # To the end: what an `include()` names may not have been imported before it is gone
        # through.
        exempt = [
            _says_so(pattern.callback) for pattern, _space in url_patterns(resolver_of(request))
        ]
        attributes["_ratelimit_any_exempt"] = any(exempt)
    return _any_view_is or attributes["_ratelimit_any_exempt"]


def _says_so(view: object) -> bool:
    return any(
        getattr(candidate, "ratelimit_exempt", False) is True
        for candidate in (view, getattr(view, "view_class", None), getattr(view, "cls", None))
    )
