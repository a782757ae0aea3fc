"""`RateLimitMiddleware` applies the rules to every request, and converts `Ratelimited` to a 429."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase
from django.template.response import SimpleTemplateResponse

from .conf import conf
from .engine.decide import deciding
from .engine.holding import waiting_turn
from .engine.run import Wait, Waiting, arun, logging_errors, run
from .exceptions import Ratelimited
from .identity.request_state import request_state
from .identity.routes import was_foreseen
from .rules.rule import Rule
from .rules.ruleset import Ruleset, settings_rules
from .store import Deadline
from .views.exempt import is_exempt
from .web.holding import hold_slots, release_left, releasing, watch_body
from .web.plan import Place, RequestPlanner
from .web.refusal import details_of
from .web.responses import (
    add_ratelimit_headers,
    attach_decision,
    compose,
    refusing,
    too_many_requests,
)

_Choose = Callable[[HttpRequest, Ruleset], list[Rule] | None]


class RateLimitMiddleware:
    """Limits requests by the rules of `RATELIMIT_RULES` and of the admin.

    Below `AuthenticationMiddleware`, all rules are decided together, in one call. Above it, the
    rules that need the user or the session are decided just before the view. Paths without a view
    are limited too.

    It works in synchronous and asynchronous stacks, without a thread in between. It raises no
    exception unless `RATELIMIT_EXCEPTION_CLASS` is set.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        if conf.ENABLE:
            settings_rules()  # An invalid rule raises when the server starts, not in each request.
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        running = request_state(request).running
        running.append(())
        try:
            response = self._refused(request, _now)
            if response is None:
                try:
                    response = cast(HttpResponseBase, self.get_response(request))
                except BaseException as error:
                    with logging_errors(error):
                        run(releasing(request))
                    raise
            return self._with_headers(request, response)
        finally:
            running.remove(())

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        running = request_state(request).running
        running.append(())
        try:
            response = await self._arefused(request, _now)
            if response is None:
                try:
                    response = cast(HttpResponseBase, await self.get_response(request))
                except BaseException as error:
                    await release_left(request, error)
                    raise
            return self._with_headers(request, response)
        finally:
            running.remove(())

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | Awaitable[HttpResponseBase | None] | None:
        """Apply the rules that need the user or the session, and those of an unexpected view."""
        if not _waits(request):
            return None
        return self._refused(request, _later)

    async def _aprocess_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        if not _waits(request):
            return None
        return await self._arefused(request, _later)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Convert `Ratelimited` to the 429, and exceptions of optional apps to their responses."""
        if isinstance(exception, Ratelimited):
            return too_many_requests(request, exception.decision)
        details = details_of(exception)
        if details is None:
            return None
        return run(compose(request, details))

    def _refused(self, request: HttpRequest, choose: _Choose) -> HttpResponseBase | None:
        if is_exempt(request):
            return None
        deadline = Deadline(conf.TIMEOUT)
        return run(_refusing(request, choose, deadline), deadline)

    async def _arefused(self, request: HttpRequest, choose: _Choose) -> HttpResponseBase | None:
        if is_exempt(request):
            return None
        deadline = Deadline(conf.TIMEOUT)
        return await arun(_refusing(request, choose, deadline), deadline)

    @staticmethod
    def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        state = request_state(request)
        if state.held:
            watch_body(request, response)
        if state.device_cookie:
            response.set_cookie(**state.device_cookie)
        if hasattr(request, "ratelimit"):
            return add_ratelimit_headers(request, response)
        return response


def _refusing(
    request: HttpRequest, choose: _Choose, deadline: Deadline
) -> Waiting[HttpResponseBase | None]:
    """Return the response to a request that rules refuse, or None."""
    planner = _planner(request, choose)
    decision = yield from deciding(planner, deadline)
    hold_slots(request, decision, planner.charges)
    if decision and decision.wait > 0:
        yield from waiting_turn(decision.wait, planner.charges)
    if decision.limits:
        attach_decision(request, decision)
    if decision:
        return None
    response: HttpResponseBase = yield from refusing(request, decision)
    # `RATELIMIT_VIEW` may return a `TemplateResponse`, which Django renders only if a view does.
    if not getattr(response, "is_rendered", True):
        render = cast(SimpleTemplateResponse, response).render
        response = yield Wait(render, sync_to_async(render))
    return response


def _planner(request: HttpRequest, choose: _Choose) -> RequestPlanner:
    def places(ruleset: Ruleset) -> list[Place] | None:
        rules = choose(request, ruleset)
        if rules is None:
            return None
        return [Place(rules)]

    return RequestPlanner(request, places, has_blocks=True)


def _matching(request: HttpRequest, ruleset: Ruleset) -> list[Rule] | None:
    """Return the rules that match a request, or None if one of them exempts the request."""
    rules = ruleset.matching(request)
    if any(rule.template is None for rule in rules):
        return None
    return rules


def _now(request: HttpRequest, ruleset: Ruleset) -> list[Rule] | None:
    """Return the rules that can be decided now: all, or those without the user and the session."""
    rules = _matching(request, ruleset)
    if rules is None or (hasattr(request, "user") and hasattr(request, "session")):
        return rules
    now = [rule for rule in rules if not _needs_more(rule, request)]
    request_state(request).waits = len(now) < len(rules)
    return now


def _waits(request: HttpRequest) -> bool:
    state = request_state(request)
    waits, state.waits = state.waits, False
    return waits or not was_foreseen(request)


def _later(request: HttpRequest, ruleset: Ruleset) -> list[Rule] | None:
    """Return the rules that need the user or the session.

    If a middleware below has chosen another URLconf or language, Django has resolved another view
    than expected. In that case, return all rules for that view: they were not applied yet, and the
    identities of keys that use the route differ.
    """
    rules = _matching(request, ruleset)
    if not rules or was_foreseen(request):
        return rules and [rule for rule in rules if rule.needs_user or rule.needs_session]
    counted = request_state(request).counted
    for rule in rules:
        if rule.needs_route:
            counted.pop(rule.name, None)
    return rules


def _needs_more(rule: Rule, request: HttpRequest) -> bool:
    """Return whether a rule needs the user or the session from a middleware below."""
    needs_user = rule.needs_user and not hasattr(request, "user")
    return needs_user or (rule.needs_session and not hasattr(request, "session"))
