"""What a client has left under every limit of a request: as a function, and as a view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import Any, Literal, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from ..engine.decide import decide, now_us
from ..engine.decided_charge import DecidedCharge
from ..engine.run import Waiting
from ..exceptions import StoreError
from ..identity.names import original
from ..identity.request_state import RequestState, plain, request_state
from ..identity.routes import resolved
from ..limits.calendar import PERIODS, boundaries, zone
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..rules.exempt import is_exempt
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.stacks import Stack, is_behind_login, on_view
from .drf_views import is_logged_in, prepared_view
from .durations import duration_words, in_time
from .headers import policy_names
from .overrides import is_unknown
from .plan import Place, RequestPlanner, limit_key
from .refusal import ErrorDetails
from .responses import asked_for, our_page, projects_page, render_page

PAGE = "ratelimit_usage.html"


class LimitUsage(NamedTuple):
    """What a client has used of one limit. Times are seconds from now.

    - `name`: the name that the header `RateLimit-Policy` gives to the limit;
    - `limit`, `period`: the units of its rate, and its seconds (0.0: they are slots);
    - `used`, `remaining`: the units counted, and those that are available now;
    - `retry_after`: when a request is allowed (0.0: now; None: never, or not disclosed);
    - `reset_after`: when the limit is completely unused again if nothing else happens;
    - `unit`: "requests", or "concurrent-requests" for slots;
    - `window`: for a quota of a day, week or month: when the present one begins and ends;
    - `message`: the message of the rule or of the block, or empty.
    """

    name: str
    limit: int
    period: float
    used: int
    remaining: int
    retry_after: float | None
    reset_after: float
    unit: Literal["requests", "concurrent-requests"]
    window: tuple[datetime, datetime] | None
    message: str

    def span(self) -> str:
        """Return the time for which the limit counts, in words."""
        if self.window is not None:
            start, end = self.window
            words = {"start": date_format(start), "end": date_format(end), "zone": start.tzinfo}
            return _("from %(start)s to %(end)s (%(zone)s)") % words
        if not self.period:
            return _("at the same time")
        return _("in %(time)s") % {"time": duration_words(self.period)}

    def when(self) -> str:
        """Return when a request is allowed, or when the limit is unused again, in words."""
        if self.retry_after is None:
            return _("You are blocked.")
        words = {"in_time": in_time(math.ceil(self.retry_after or self.reset_after))}
        if self.retry_after:
            return _("Try again %(in_time)s.") % words
        return _("Unused again %(in_time)s.") % words


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
        paths: The paths whose limits are shown, with a method if it is not GET, such as
            "POST /orders/".
    """
    found: dict[tuple[object, ...], DecidedCharge] = {}
    limits: list[LimitUsage] | None = None
    with suppress(StoreError):
        for place in paths:
            for charge in _charges(_request_at(request, place)):
                if charge.state.is_block or _is_own(charge.identity):
                    found[limit_key(charge)] = charge
        limits = _usages([*found.values()])
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
        _post=QueryDict(),
        content_type="",
    )
    return other


def _is_own(identity: Any) -> bool:
    """Return whether an identity is of the caller, and not shared with other clients."""
    identity = original(identity)
    if is_unknown(identity):
        return False
    if isinstance(identity[0], tuple):
        return any(map(_is_own, identity))
    return bool(identity[0] != "kwarg")


def _charges(request: Any) -> list[DecidedCharge]:
    """Return the decided charges of a request that may refuse it. Raises `StoreError`."""
    planner = _UsagePlanner(request)
    if decide(planner).source == "fallback":
        raise StoreError("Redis is unavailable")
    return [each for each in planner.charges if each.state.mode != "shadow"]


def _usages(charges: Sequence[DecidedCharge]) -> list[LimitUsage]:
    names = policy_names([decided.state.name for decided in charges])
    return [_usage(*each) for each in zip(names, charges, strict=True)]


def _usage(name: str, decided: DecidedCharge) -> LimitUsage:
    state = decided.state
    message = getattr(decided.rule, "message", "")
    if state.block is not None:
        message = state.block.message or message
        if state.block.forbids:  # Its end is not disclosed.
            state = state._replace(retry_after=None, reset_after=0.0)
    return LimitUsage(
        name,
        state.limit,
        state.period,
        state.used,
        state.remaining,
        state.retry_after,
        state.reset_after,
        "concurrent-requests" if state.is_slots else "requests",
        _window(decided.charge.limit),
        message,
    )


def _window(limit: Limit) -> tuple[datetime, datetime] | None:
    if limit.align not in PERIODS:
        return None
    start, end, _next = boundaries(limit.align, limit.time_zone, now_us())
    tz = zone(limit.time_zone)
    return datetime.fromtimestamp(start / SECOND, tz), datetime.fromtimestamp(end / SECOND, tz)


class _UsagePlanner(RequestPlanner):
    """Plans all limits of a request together, whether they were counted already or not."""

    def __init__(self, request: Any) -> None:
        super().__init__(plain(request), self._places, operation="peek")
        self._stacks: list[Stack] = []
        self._throttles: list[Any] = []
        match = resolved(self.request)
        if match is None:
            return
        here = on_view(match.func, request.method)
        for stack in here.stacks:
            if is_logged_in(request) or not is_behind_login(match.func, stack):
                self._stacks.append(stack)
        if here.has_throttles:
            from rest_framework.exceptions import APIException

            user = getattr(self.request, "user", None)
            with suppress(APIException):  # The view refuses the client before its throttles.
                self._view = prepared_view(here.class_view, match, self.request)
                for throttle in self._view.get_throttles():
                    if hasattr(throttle, "is_decided_together"):
                        self._throttles.append(throttle)
            self.request.user = user

    def _places(self, ruleset: Ruleset) -> list[Place]:
        self.counted = {}
        self._owners: dict[tuple[object, ...], Place] = {}
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
            places.append(throttle.place(self._view.request, self._view, ruleset))
        return places

    def _add(self, rule: Rule, place: Place) -> Waiting[None]:
        """Add the charges of a rule, unless another place has counted the request by it."""
        before = len(place.charges)
        yield from super()._add(rule, place)
        for charge in place.charges[before:]:
            if self._owners.setdefault(limit_key(charge), place) is not place:
                place.charges.remove(charge)
        if rule.name:
            self.counted[rule.name] = None
