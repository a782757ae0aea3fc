"""Where a request leads: found out ahead of Django, where that has to be known before Django looks.

Nothing of this is left as `request.resolver_match`, which is Django's to set: a middleware that runs later may still
choose another URLconf (`request.urlconf`) or another language, and by that another view. So what was found ahead is
kept apart, and compared with what Django found when that is known.
"""

from __future__ import annotations

from contextlib import nullcontext

from django.conf import settings
from django.http import Http404, HttpRequest
from django.urls import ResolverMatch, URLResolver, get_resolver
from django.utils import translation

from .request_state import request_state


def resolver_of(request: HttpRequest) -> URLResolver:
    """What resolves a request's path, as far as middleware has said until now."""
    return get_resolver(getattr(request, "urlconf", None))


def known_match(request: HttpRequest) -> ResolverMatch | None:
    """Where a request leads: as Django found, or as was found ahead of it; None if nowhere, or if nobody looked."""
    return request.resolver_match or request_state(request).ahead


def resolved(request: HttpRequest) -> ResolverMatch | None:
    """Where a request leads: as Django found; else it is found ahead, once. None if nowhere."""
    if request.resolver_match is not None:
        return request.resolver_match
    state = request_state(request)
    if not state.looked_ahead:
        state.ahead, state.looked_ahead = _ahead(request), True
    return state.ahead


def was_foreseen(request: HttpRequest) -> bool:
    """Whether Django found the view that was found ahead; also where nobody looked ahead."""
    state = request_state(request)
    if not state.looked_ahead:
        return True
    ahead, match = state.ahead, request.resolver_match
    if ahead is None or match is None:
        return ahead is match
    return (ahead.func, ahead.view_name, ahead.route) == (match.func, match.view_name, match.route)


def _ahead(request: HttpRequest) -> ResolverMatch | None:
    language = active = translation.get_language()
    if not hasattr(request, "LANGUAGE_CODE"):
        # LocaleMiddleware has not run, so what is active is the language of the request that this thread served before.
        # The path says it: one with a prefix leads somewhere in that language only, one without in the default one.
        language = translation.get_language_from_path(request.path_info) or settings.LANGUAGE_CODE
    with nullcontext() if language == active else translation.override(language):
        try:
            return resolver_of(request).resolve(request.path_info)
        except Http404:  # Resolver404, or what a converter says.
            return None
