"""Views that are exempt from the middleware's rules."""

from __future__ import annotations

from typing import TypeVar

from django.http import HttpRequest

from ..conf.values import Function
from ..identity.request_state import resolve_route, resolver_of
from .inspection import url_patterns

View = TypeVar("View", bound=Function)
_has_marked_view = False
"""Whether any view of this process is marked, also one that no URLconf contains."""


def ratelimit_exempt(view: View) -> View:
    """Exempt a view, or all views of a class, from the middleware's rules.

    Its own `@ratelimit` still applies.

    >>> @ratelimit_exempt
    ... def health(request):
    ...     return "fine"
    >>> health.ratelimit_exempt
    True
    """
    global _has_marked_view
    _has_marked_view = True
    view.ratelimit_exempt = True  # type: ignore[attr-defined]
    return view


def is_exempt(request: HttpRequest) -> bool:
    """Return whether the view of a request is exempt.

    The request is resolved only if there are exempt views.
    """
    if not _has_exempt_views(request):
        return False
    match = resolve_route(request)
    return match is not None and _is_marked(match.func)


def _has_exempt_views(request: HttpRequest) -> bool:
    """Load the URLconf, and return whether any view of it, or any other imported one, is exempt.

    A process imports its views with its URLconf, when it first resolves a path. So the URLconf is
    loaded here: otherwise the first requests of a new process would miss every exemption. The
    resolver keeps the result.
    """
    attributes = vars(resolver_of(request))
    if "_ratelimit_any_exempt" not in attributes:
        # A list, so that all patterns are visited: the module of an `include()` may be imported
        # only when its patterns are.
        patterns = url_patterns(resolver_of(request))
        are_exempt = [_is_marked(pattern.callback) for pattern, _namespaces in patterns]
        attributes["_ratelimit_any_exempt"] = any(are_exempt)
    return _has_marked_view or attributes["_ratelimit_any_exempt"]


def _is_marked(view: object) -> bool:
    """Return whether a view, or the class that `as_view()` made it from, is marked as exempt."""
    return any(
        getattr(candidate, "ratelimit_exempt", False) is True
        for candidate in (view, getattr(view, "view_class", None), getattr(view, "cls", None))
    )
