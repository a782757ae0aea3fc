"""What a client has left under every limit of a request: as a function, and as a view."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.urls import ResolverMatch
from django.views.decorators.cache import never_cache

from ..engine import DecidedCharge
from ..engine.decide import decide, now_us
from ..exceptions import StoreError
from ..identity.names import unmark_identity
from ..identity.request_state import RequestState, request_state, unwrap_request
from ..identity.routes import resolve_route
from ..limits.limit import Limit
from ..limits.rate import PERIODS, SECOND, boundaries, zone
from ..rules.ruleset import Ruleset
from ..views.exempt import is_exempt
from ..views.inspection import Stack, inspect_view, is_behind_login
from .headers import policy_names
from .overrides import is_unknown
from .plan import Place, RequestPlanner
from .refusal import ErrorDetails
from .responses import asked_for, our_page, projects_page, render_page

PAGE = "ratelimit_usage.html"
_OF_FORMS = ("get", "post", "json", "data", "device")


class LimitUsage(NamedTuple):
    """What a client has used of one limit. Times are seconds from now.

    - `name`: the name that the header `RateLimit-Policy` gives to the limit;
    - `rate`, `limit`: its rate, such as "100/15m", or a number of slots; and its units;
    - `used`, `remaining`: the units counted, and those that are available now;
    - `retry_after`: when a request is allowed (0.0: now; None: never, or not disclosed);
    - `reset_after`: when the limit is completely unused again if nothing else happens;
    - `unit`: "requests", or "concurrent-requests" for slots;
    - `window`: for a quota of a day, week or month: when the present one begins and ends; otherwise
      empty;
    - `message`: the message of the rule or of the block, or empty.
    """

    name: str
    rate: str
    limit: int
    used: int
    remaining: int
    retry_after: float | None
    reset_after: float
    unit: str
    window: Sequence[datetime]
    message: str


def usage(request: HttpRequest) -> list[LimitUsage]:
    """Return what the client has left under every limit of a request. Nothing is counted.

    These are the limits of rules, if `RateLimitMiddleware` runs, and those of the `@ratelimit`
    and of the throttles of the view, in one round trip. Limits in shadow mode are left out.

    Raises:
        StoreError: Redis is unavailable.

    >>> from django.test import RequestFactory
    >>> usage(RequestFactory().get("/"))
    []
    """
    return _usages(_charges(request))


async def ausage(request: HttpRequest) -> list[LimitUsage]:
    """`usage`, for coroutines. It runs in a thread, because throttles may block."""
    return await sync_to_async(usage)(request)


@never_cache
def usage_view(request: HttpRequest, paths: Sequence[str] = ("/",)) -> HttpResponse:
    """Show the caller's own limits, as a page for browsers and as JSON for other clients.

    The request is not counted. Limits that the caller shares with others, such as those of a path
    or of all clients together, are left out. The status is 503 if Redis is unavailable.

    Args:
        request: The request.
        paths: The paths to show the limits of, with a method if it is not GET, such as
            "POST /orders/".
    """
    charges: list[DecidedCharge] = []
    limits: list[LimitUsage] | None = None
    with suppress(StoreError):
        for place in paths:
            charges += filter(_is_own, _charges(_request_at(request, place)))
        limits = _usages(_distinct(charges))
    status = 503 if limits is None else 200
    if asked_for(request) != "page":
        rows = [each._asdict() for each in limits or ()]
        return JsonResponse({"limits": rows}, status=status)
    template = projects_page(PAGE) or our_page(PAGE, ErrorDetails.folder)
    return HttpResponse(render_page(template, request, {"limits": limits}), status=status)


usage_view.ratelimit_exempt = True  # type: ignore[attr-defined]


def _request_at(request: HttpRequest, place: str) -> HttpRequest:
    """Return a request of the same client for another path.

    It has no query and no body, which could contain the name of another client.
    """
    method, _space, path = place.rpartition(" ")
    other = copy(request)
    vars(other).update(
        _ratelimit=RequestState(running=request_state(request).running),
        resolver_match=None,
        method=method or "GET",
        path=path,
        path_info=path,
        META={**request.META, "QUERY_STRING": ""},
        GET=QueryDict(),
        _body=b"",
        _post=QueryDict(),
        content_type="",
    )
    other.resolver_match = resolve_route(other)
    return other


def _is_own(decided: DecidedCharge) -> bool:
    """Return whether a charge is of the caller, not shared, and by no field of a form or query."""
    identity: Any = unmark_identity(decided.identity)
    parts = identity if isinstance(_first(identity), tuple) else (identity,)
    is_of_form = any(_first(part) in _OF_FORMS for part in parts)
    is_shared = all(_first(part) == "kwarg" or is_unknown(part) for part in parts)
    return decided.state.is_block or not (is_of_form or is_shared)


def _first(identity: Any) -> Any:
    return identity[0] if isinstance(identity, tuple) and identity else None


def _charges(request: Any) -> list[DecidedCharge]:
    """Return the decided charges of a request that may refuse it. Raises `StoreError`."""
    planner = _UsagePlanner(request)
    if decide(planner).source == "fallback":
        raise StoreError("Redis is unavailable")
    return [each for each in planner.charges if each.state.mode != "shadow"]


def _distinct(charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
    """Return the charges without those of a count that is charged in several places."""
    counts = {(each.charge.digest, each.charge.limit.key_part): each for each in charges}
    return [*counts.values()]


def _usages(charges: Sequence[DecidedCharge]) -> list[LimitUsage]:
    names = policy_names([decided.state.name for decided in charges])
    return [*map(_usage, names, charges)]


def _usage(name: str, decided: DecidedCharge) -> LimitUsage:
    state = decided.state
    limit = decided.charge.limit
    message = getattr(decided.rule, "message", "")
    if state.block is not None:
        message = state.block.message or message
        if state.block.forbids:  # Its end is not disclosed.
            state = state._replace(retry_after=None, reset_after=0.0)
    return LimitUsage(
        name,
        str(limit.rate),
        state.limit,
        state.used,
        state.remaining,
        state.retry_after,
        state.reset_after,
        "concurrent-requests" if state.is_slots else "requests",
        _window(limit),
        message,
    )


def _window(limit: Limit) -> list[datetime]:
    if limit.align not in PERIODS:
        return []
    starts = boundaries(limit.align, limit.time_zone, now_us())
    return [datetime.fromtimestamp(each / SECOND, zone(limit.time_zone)) for each in starts[:2]]


class _UsagePlanner(RequestPlanner):
    """Plans all limits of a request together, whether they were counted already or not."""

    distinct = staticmethod(_distinct)

    def __init__(self, request: Any) -> None:
        super().__init__(unwrap_request(request), self._places, operation="peek")
        self._stacks: Sequence[Stack] = ()
        self._throttles: Sequence[Any] = ()
        match = resolve_route(self.request)
        if match is None:
            return
        here = inspect_view(match.func, request.method)
        self._stacks = here.stacks
        if not is_logged_in(request):
            self._stacks = [each for each in here.stacks if not is_behind_login(match.func, each)]
        if here.has_throttles:
            from rest_framework.exceptions import APIException

            with suppress(APIException):  # The view refuses the client before its throttles.
                self._view = prepared_view(here.class_view, match, copy(self.request))
                self._throttles = self._view.get_throttles()

    def _places(self, ruleset: Ruleset) -> list[Place]:
        self.counted = {}
        places: list[Place] = []
        if () in self.state.running and not is_exempt(self.request):
            rules = ruleset.matching(self.request)
            self._has_blocks = all(rule.template is not None for rule in rules)
            if self._has_blocks:
                places.append(Place(rules))
        for stack in self._stacks:
            rules_here = ruleset.for_call_sites(stack.rules, stack.group, self.request)
            places.append(Place(rules_here, stack.group))
        for throttle in self._throttles:
            if hasattr(throttle, "is_decided_together"):
                places.append(throttle.place(self._view.request, self._view, ruleset))
        return places


def prepared_view(function: Any, match: ResolverMatch, request: HttpRequest) -> Any:
    """Return the view of Django REST framework for a request, prepared for its throttles.

    Its `request` is DRF's, which is authenticated unless a user is signed in already.
    """
    view = function.cls(**getattr(function, "initkwargs", {}))
    actions = dict(getattr(function, "actions", None) or {})
    if "get" in actions:
        actions.setdefault("head", actions["get"])
    view.action_map = actions
    view.setup(request, *match.args, **match.kwargs)
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    if is_logged_in(request):
        view.request.user = request.user  # As described; otherwise the user of its headers.
    else:
        request.user = view.request.user
    return view


def is_logged_in(request: HttpRequest) -> bool:
    """Return whether a request has a signed-in user."""
    return getattr(getattr(request, "user", None), "is_authenticated", False)
