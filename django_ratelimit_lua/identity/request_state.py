"""The data that this package stores on a request, with its route and its waiting time.

Functions of the project (a key, a cost, a user) receive the view's request, so that DRF's
authentication counts. The data and the body are those of Django's request, which DRF's wraps.

If the route is needed before Django has resolved it, it is resolved early, and not stored as
`request.resolver_match`: a later middleware may still choose another URLconf (`request.urlconf`) or
another language, and so another view. The early result is compared with Django's when that is
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest
from django.urls import ResolverMatch, URLResolver, get_resolver
from django.utils import translation

from ..conf import conf
from ..process import Clock
from .address import is_trusted_peer

MAX_WAITED_SECONDS = 60.0
"""Longer waiting times are ignored: the clocks of the hosts probably differ."""


@dataclass(slots=True, eq=False, repr=False)
class RequestState:
    """The data of one request, from the middleware to the end of its view.

    - `counted`: the rules that were counted for it, each with its call site;
    - `running`: the charges of each decorator, until its view has ended, and an empty tuple for
      the middleware. An empty list: the request has ended;
    - `charged`: the counters that `cost_after` has charged for it;
    - `has_postponed_rules`: whether some rules wait until the user and the session are known;
    - `throttles`: the decision about all throttles of its DRF view;
    - `held`: the slots that it holds;
    - `groups`: a user, and the names of this user's Django groups;
    - `key_values`: values of registered keys, by name, that an operator or a service has supplied;
    - `is_route_resolved`, `early_match`: whether its route was resolved before Django did, and the
      result;
    - `body`: its parsed `Body`; None before a key needs it;
    - `waited`: the seconds that it waited before this process began with it (None: not known), once
      `is_wait_measured`;
    - `busy`: the limits with the option `waited` that were decided for it, by name, each with the
      seconds after which a refused client may try again;
    - `refusal`: the content of the last refusal;
    - `count`: an optional app's data for counting the request once, at its end;
    - `device_cookie`: the arguments of `set_cookie` after a login.
    """

    counted: dict[str, object] = field(default_factory=dict)
    running: list[Sequence[Any]] = field(default_factory=list)
    charged: set[tuple[bytes, bytes]] = field(default_factory=set)
    has_postponed_rules: bool = False
    throttles: Any = None
    held: list[Any] = field(default_factory=list)
    groups: tuple[object, frozenset[str]] = (None, frozenset())
    key_values: dict[str, object] = field(default_factory=dict)
    is_route_resolved: bool = False
    early_match: ResolverMatch | None = None
    body: Any = None
    waited: float | None = None
    is_wait_measured: bool = False
    busy: dict[str, float] = field(default_factory=dict)
    refusal: Any = None
    count: Any = None
    device_cookie: dict[str, Any] = field(default_factory=dict)


def unwrap_request(request: object) -> Any:
    """Return Django's request, which a request of Django REST framework wraps."""
    # Not by getattr, for which a mock would make up a wrapped request.
    return getattr(request, "__dict__", {}).get("_request", request)


def request_state(request: object) -> RequestState:
    """Return the data of a request, which the middleware, Django views and DRF views share.

    The first call creates it.
    """
    # DRF's own tests call throttles with an empty dict.
    attributes = getattr(request, "__dict__", {})
    if "_request" in attributes:
        attributes = vars(attributes["_request"])
    state: RequestState | None = attributes.get("_ratelimit")
    if state is None:
        state = attributes["_ratelimit"] = RequestState()
    return state


def waiting_time(request: HttpRequest) -> float | None:
    """Measure the seconds that a request has waited, and return them.

    Later calls return the first result. None if no trusted proxy reported when it received the
    request.
    """
    state = request_state(request)
    if not state.is_wait_measured and conf.REQUEST_START is not None:
        state.is_wait_measured = True
        state.waited = _measure_wait(request, conf.REQUEST_START)
    return state.waited


def _measure_wait(request: HttpRequest, header: str) -> float | None:
    """Return the seconds since the moment in a header of a trusted proxy; otherwise None."""
    start: str | None = request.META.get(header)
    if start is None or not is_trusted_peer(request.META.get("REMOTE_ADDR")):
        return None
    waited = Clock.time() - _parse_start(start)
    if 0.0 <= waited <= MAX_WAITED_SECONDS:
        return waited
    return None


def _parse_start(text: str) -> float:
    """Return the seconds since 1970 of a time in seconds, milliseconds or microseconds.

    The result is 0.0 for other text, for example with the comma of a header that was sent twice.

    >>> _parse_start("t=1800000000.5"), _parse_start("1800000000500"), _parse_start("soon")
    (1800000000.5, 1800000000.5, 0.0)
    """
    try:
        seconds = float(text.removeprefix("t="))
    except ValueError:
        return 0.0
    for _unit in ("ms", "µs"):
        if seconds > 1e11:
            seconds /= 1000.0
    return seconds


def resolver_of(request: HttpRequest) -> URLResolver:
    """Return the resolver of a request's path, as middleware has set it so far."""
    return get_resolver(getattr(request, "urlconf", None))


def known_match(request: HttpRequest) -> ResolverMatch | None:
    """Return the route of a request, as resolved by Django or earlier by `resolve_route`.

    None if no route matches, or if it was not resolved yet.
    """
    return request.resolver_match or request_state(request).early_match


def resolve_route(request: HttpRequest) -> ResolverMatch | None:
    """Resolve the route of a request if Django has not done so yet, and return it.

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
    """Resolve the path of a request in the language in which Django will resolve it.

    None if no route matches.
    """
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
