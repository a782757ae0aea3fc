"""The route of a request, resolved before Django resolves it if it is needed earlier.

It is not stored as `request.resolver_match`, which only Django sets: a later middleware may still
choose another URLconf (`request.urlconf`) or another language, and so another view. So the early
result is stored separately, and compared with Django's when that is known.
"""

from __future__ import annotations

from contextlib import nullcontext

from django.conf import settings
from django.http import Http404, HttpRequest
from django.urls import ResolverMatch, URLResolver, get_resolver
from django.utils import translation

from .request_state import RequestState, request_state


def resolver_of(request: HttpRequest) -> URLResolver:
    """Return the resolver of a request's path, as middleware has set it so far."""
    return get_resolver(getattr(request, "urlconf", None))


def known_match(request: HttpRequest) -> ResolverMatch | None:
    """Return the route of a request, as resolved by Django or earlier by `resolve_route`.

    None if no route matches, or if it was not resolved yet.
    """
    return request.resolver_match or request_state(request).early_match


def resolve_route(request: HttpRequest) -> ResolverMatch | None:
    """Return the route of a request, and resolve it if Django has not done so yet.

    None if no route matches.
    """
    if request.resolver_match is not None:
        return request.resolver_match
    state = request_state(request)
    if not state.is_route_resolved:
        state.early_match = _resolve_early(request)
        state.is_route_resolved = True
    return state.early_match


def is_expected_view(request: HttpRequest, state: RequestState) -> bool:
    """Return whether Django has resolved the same view as the early resolution.

    True if there was no early resolution.
    """
    if not state.is_route_resolved:
        return True
    early = state.early_match
    match = request.resolver_match
    if early is None or match is None:
        return early is match
    return (early.func, early.view_name, early.route) == (match.func, match.view_name, match.route)


def _resolve_early(request: HttpRequest) -> ResolverMatch | None:
    """Resolve the path of a request in the language in which Django will resolve it."""
    active = translation.get_language()
    language = active
    if not hasattr(request, "LANGUAGE_CODE"):
        # LocaleMiddleware has not run, so the active language is that of this thread's previous
        # request. The path decides: with a prefix it resolves in that language only, without one in
        # the default language.
        language = translation.get_language_from_path(request.path_info) or settings.LANGUAGE_CODE
    activated = nullcontext() if language == active else translation.override(language)
    with activated:
        try:
            return resolver_of(request).resolve(request.path_info)
        except Http404:  # Resolver404, or an error of a converter.
            return None
