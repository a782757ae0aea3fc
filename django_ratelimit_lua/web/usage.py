"""What a client has left under every limit of a request: as a function, and as a view."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse, QueryDict
from django.urls import ResolverMatch
from django.views.decorators.cache import never_cache

from ..engine import DecidedCharge
from ..engine.decide import decide, now_us
from ..exceptions import StoreError
from ..identity.names import unmark_identity
from ..identity.request_state import RequestState, request_state, resolve_route, unwrap_request
from ..limits.limit import Limit
from ..limits.rate import PERIODS, SECOND, boundaries, zone
from ..rules.ruleset import Ruleset
from ..views.exempt import is_exempt
from ..views.inspection import Stack, inspect_view, is_behind_login
from .headers import policy_names
from .overrides import is_unknown
from .plan import Place
from .refusal import ErrorDetails
from .request_plan import RequestPlanner
from .responses import accepted_form, package_page, project_page, render_page

PAGE = "ratelimit_usage.html"
_FORM_FIELDS = ("get", "post", "json", "data", "device")
"""The kinds of fields that may contain the name of another client."""
_METHODS = ("GET", "HEAD")


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
    return _describe_charges(_peek(request))


async def ausage(request: HttpRequest) -> list[LimitUsage]:
    """`usage`, for coroutines. It runs in a thread, because throttles may block."""
    return await sync_to_async(usage)(request)


@never_cache
def usage_view(request: HttpRequest, paths: Sequence[str] = ("/",)) -> HttpResponse:
    """Show the caller's own limits, as a page for browsers and as JSON for other clients.

    The request is not counted. Limits that the caller shares with others, such as those of a path
    or of all clients together, are left out.

    Args:
        request: The request.
        paths: The paths to show the limits of, with a method if it is not GET, such as
            "POST /orders/".

    Returns:
        The response. Its status is 503 if Redis is unavailable, and 405 for another method than GET
            and HEAD.

    Raises:
        TypeError: `paths` is a text instead of a list.
    """
    if request.method not in _METHODS:
        return HttpResponseNotAllowed(_METHODS)
    if isinstance(paths, str):
        raise TypeError(f"usage_view: paths is {paths!r}, a text; write a list: [{paths!r}]")
    status = 200
    limits: list[LimitUsage] | None = None
    try:
        limits = _describe_own(request, paths)
    except StoreError:
        status = 503
    if accepted_form(request) != "page":
        rows = [each._asdict() for each in limits or ()]
        return JsonResponse({"limits": rows}, status=status)
    template = project_page(PAGE) or package_page(PAGE, ErrorDetails.folder)
    return HttpResponse(render_page(template, request, {"limits": limits}), status=status)


usage_view.ratelimit_exempt = True  # type: ignore[attr-defined]


def _describe_own(request: HttpRequest, paths: Sequence[str]) -> list[LimitUsage]:
    """Return the usage of the caller's own limits at these paths. Raises `StoreError`."""
    charges: list[DecidedCharge] = []
    for path in paths:
        decided_charges = _peek(_copy_for_path(request, path))
        charges += [decided for decided in decided_charges if _is_own(decided)]
    return _describe_charges(_drop_repeated(charges))


def _copy_for_path(request: HttpRequest, place: str) -> HttpRequest:
    """Return a request of the same client for another path, which a method may precede.

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
    if decided.state.is_block:
        return True
    identity: Any = unmark_identity(decided.identity)
    parts = identity if isinstance(_kind_of(identity), tuple) else (identity,)
    if any(_kind_of(part) in _FORM_FIELDS for part in parts):
        return False
    return not all(_kind_of(part) == "kwarg" or is_unknown(part) for part in parts)


def _kind_of(identity: Any) -> Any:
    """Return the kind of key of an identity, such as "ip".

    For an identity of several keys, it is the first of their identities, which is a tuple. None if
    the identity is not a tuple.
    """
    return identity[0] if isinstance(identity, tuple) and identity else None


def _peek(request: Any) -> list[DecidedCharge]:
    """Return the decided charges of a request that may refuse it. Raises `StoreError`."""
    planner = _UsagePlanner(request)
    if decide(planner).source == "fallback":
        raise StoreError("Redis is unavailable")
    return [each for each in planner.charges if each.state.mode != "shadow"]


def _drop_repeated(charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
    """Return the charges without those of a count that is charged in several places."""
    counts = {(each.charge.digest, each.charge.limit.key_part): each for each in charges}
    return list(counts.values())


def _describe_charges(charges: Sequence[DecidedCharge]) -> list[LimitUsage]:
    names = policy_names([decided.state.name for decided in charges])
    return list(map(_describe_charge, names, charges))


def _describe_charge(name: str, decided: DecidedCharge) -> LimitUsage:
    """Return the usage of one limit under the name in `RateLimit-Policy`."""
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
        _calendar_window(limit),
        message,
    )


def _calendar_window(limit: Limit) -> list[datetime]:
    """Return when the present window of a calendar begins and ends; empty for other limits."""
    if limit.align not in PERIODS:
        return []
    starts = boundaries(limit.align, limit.time_zone, now_us())
    return [datetime.fromtimestamp(each / SECOND, zone(limit.time_zone)) for each in starts[:2]]


class _UsagePlanner(RequestPlanner):
    """Plans all limits of a request together, whether they were counted already or not."""

    distinct = staticmethod(_drop_repeated)

    def __init__(self, request: Any) -> None:
        """Find the decorators and throttles of the view that the client can reach."""
        super().__init__(unwrap_request(request), self._find_places, operation="peek")
        self._stacks: Sequence[Stack] = ()
        self._throttles: Sequence[Any] = ()
        match = resolve_route(self.request)
        if match is None:
            return
        inspected = inspect_view(match.func, request.method)
        self._stacks = inspected.stacks
        if not is_logged_in(request):
            self._stacks = [
                stack for stack in inspected.stacks if not is_behind_login(match.func, stack)
            ]
        if inspected.has_throttles:
            from rest_framework.exceptions import APIException

            with suppress(APIException):  # The view refuses the client before its throttles.
                self._view = prepare_view(inspected.class_view, match, copy(self.request))
                self._throttles = self._view.get_throttles()

    def _find_places(self, ruleset: Ruleset) -> list[Place]:
        """Return the places of the middleware, the decorators and the throttles.

        The planner then ignores which rules were counted for the request, to display them, too.
        """
        self.counted = {}
        places: list[Place] = []
        runs_middleware = () in self.state.running
        if runs_middleware and not is_exempt(self.request):
            rules = ruleset.matching(self.request)
            self._blocks_uncharged = all(rule.template is not None for rule in rules)
            if self._blocks_uncharged:
                places.append(Place(rules))
        for stack in self._stacks:
            stack_rules = ruleset.for_call_sites(stack.rules, stack.group, self.request)
            places.append(Place(stack_rules, stack.group))
        for throttle in self._throttles:
            if hasattr(throttle, "is_decided_together"):
                places.append(throttle.place(self._view.request, self._view, ruleset))
        return places


def prepare_view(function: Any, match: ResolverMatch, request: HttpRequest) -> Any:
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
        view.request.user = request.user
    else:
        request.user = view.request.user  # The user that DRF has authenticated by the headers.
    return view


def is_logged_in(request: HttpRequest) -> bool:
    """Return whether a request has a signed-in user."""
    return getattr(getattr(request, "user", None), "is_authenticated", False)
