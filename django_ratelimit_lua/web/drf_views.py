"""Prepares views of Django REST framework for the throttles that they have, without a response."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import ResolverMatch


def prepared_view(function: Any, match: ResolverMatch, request: HttpRequest) -> Any:
    """Return the view of Django REST framework for a request, prepared for its throttles.

    Its `request` is DRF's, which is authenticated unless a user is signed in already.
    """
    view = function.cls(**getattr(function, "initkwargs", {}))
    actions = dict(getattr(function, "actions", None) or {})
    if "get" in actions:
        actions.setdefault("head", actions["get"])
    view.action_map = actions
    for method, action in actions.items():
        setattr(view, method, getattr(view, action))
    view.setup(request, *match.args, **match.kwargs)
    view.headers = {}
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    if is_logged_in(request):
        view.request.user = request.user  # As described; otherwise the user of its headers.
    elif view.request.user is not None:
        request.user = view.request.user
    return view


def is_logged_in(request: HttpRequest) -> bool:
    """Return whether a request has a signed-in user."""
    return getattr(getattr(request, "user", None), "is_authenticated", False)
