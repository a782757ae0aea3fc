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
from .identity.request_state import RequestState, is_expected_view, request_state
from .rules.rule import Rule
from .rules.ruleset import Ruleset, settings_rules
from .store import Deadline
from .views.exempt import is_exempt
from .web.plan import Place
from .web.refusal import details_of
from .web.request_plan import RequestPlanner
from .web.responses import (
    add_ratelimit_headers,
    attach_decision,
    compose,
    refusing,
    too_many_requests,
)
from .web.settlement import arelease_after_error, hold_slots, releasing, watch_body

_Choose = Callable[[HttpRequest, RequestState, Ruleset], list[Rule] | None]
"""Returns the rules to decide, or None if a rule exempts the request."""


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
        """Apply the rules early, call the view unless they refuse, and finish the response."""
        if self.is_async:
            return self._acall(request)
        state = request_state(request)
        state.running.append(())  # Stands for the middleware: see `RequestState.running`.
        try:
            response = self._apply_rules(request, state, _choose_early)
            if response is None:
                response = self._get_response(request, state)
            return _finish_response(request, state, response)
        finally:
            state.running.remove(())

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        """`__call__`, for coroutines."""
        state = request_state(request)
        state.running.append(())
        try:
            response = await self._aapply_rules(request, state, _choose_early)
            if response is None:
                response = await self._aget_response(request, state)
            return _finish_response(request, state, response)
        finally:
            state.running.remove(())

    def _get_response(self, request: HttpRequest, state: RequestState) -> HttpResponseBase:
        """Return the response of the view, and release the slots if the view raises."""
        try:
            return cast(HttpResponseBase, self.get_response(request))
        except BaseException as error:
            with logging_errors(error):
                run(releasing(state))
            raise

    async def _aget_response(self, request: HttpRequest, state: RequestState) -> HttpResponseBase:
        """`_get_response`, for coroutines."""
        try:
            return cast(HttpResponseBase, await self.get_response(request))
        except BaseException as error:
            await arelease_after_error(state, error)
            raise

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | Awaitable[HttpResponseBase | None] | None:
        """Apply the rules that need the user or the session, and those of an unexpected view.

        Return the response if they refuse the request. None: Django calls the view.
        """
        state = request_state(request)
        if not _take_postponed(request, state):
            return None
        return self._apply_rules(request, state, _choose_postponed)

    async def _aprocess_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        """`process_view`, for coroutines."""
        state = request_state(request)
        if not _take_postponed(request, state):
            return None
        return await self._aapply_rules(request, state, _choose_postponed)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Convert `Ratelimited` to the 429, and exceptions of optional apps to their responses.

        None for any other exception.
        """
        if isinstance(exception, Ratelimited):
            return too_many_requests(request, exception.decision)
        details = details_of(exception)
        if details is None:
            return None
        return run(compose(request, details))

    def _apply_rules(
        self, request: HttpRequest, state: RequestState, choose: _Choose
    ) -> HttpResponseBase | None:
        """Decide the chosen rules, and return the response if they refuse the request, or None."""
        if is_exempt(request):
            return None
        deadline = Deadline(conf.TIMEOUT)
        return run(_applying_rules(request, state, choose, deadline), deadline)

    async def _aapply_rules(
        self, request: HttpRequest, state: RequestState, choose: _Choose
    ) -> HttpResponseBase | None:
        """`_apply_rules`, for coroutines."""
        if is_exempt(request):
            return None
        deadline = Deadline(conf.TIMEOUT)
        return await arun(_applying_rules(request, state, choose, deadline), deadline)


def _finish_response(
    request: HttpRequest, state: RequestState, response: HttpResponseBase
) -> HttpResponseBase:
    """Add the cookie and the headers, and release slots if the body raises."""
    if state.held:
        watch_body(state, response)
    if state.device_cookie:
        response.set_cookie(**state.device_cookie)
    if hasattr(request, "ratelimit"):
        return add_ratelimit_headers(request, response)
    return response


def _applying_rules(
    request: HttpRequest, state: RequestState, choose: _Choose, deadline: Deadline
) -> Waiting[HttpResponseBase | None]:
    """Decide the chosen rules, and wait for the turn of the request.

    Return the response if the rules refuse it, or None.
    """

    def choose_places(ruleset: Ruleset) -> list[Place] | None:
        rules = choose(request, state, ruleset)
        if rules is None:
            return None
        return [Place(rules)]

    planner = RequestPlanner(request, choose_places, blocks_uncharged=True)
    decision = yield from deciding(planner, deadline)
    hold_slots(request, state, decision, planner.charges)
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


def _match_rules(request: HttpRequest, ruleset: Ruleset) -> list[Rule] | None:
    """Return the rules that match a request, or None if one of them exempts the request."""
    rules = ruleset.matching(request)
    if any(rule.template is None for rule in rules):
        return None
    return rules


def _choose_early(request: HttpRequest, state: RequestState, ruleset: Ruleset) -> list[Rule] | None:
    """Choose the rules to decide first, and record in the state whether others are postponed.

    A rule that needs the user or the session is postponed until `process_view` if that is not known
    yet. None: a rule exempts the request.
    """
    rules = _match_rules(request, ruleset)
    if rules is None or (hasattr(request, "user") and hasattr(request, "session")):
        return rules
    early = [rule for rule in rules if not _must_wait(rule, request)]
    state.has_postponed_rules = len(early) < len(rules)
    return early


def _must_wait(rule: Rule, request: HttpRequest) -> bool:
    """Return whether a rule needs the user or the session from a middleware below."""
    needs_user = rule.needs_user and not hasattr(request, "user")
    return needs_user or (rule.needs_session and not hasattr(request, "session"))


def _take_postponed(request: HttpRequest, state: RequestState) -> bool:
    """Clear `has_postponed_rules`, and return whether rules are to be decided before the view."""
    has_postponed_rules = state.has_postponed_rules
    state.has_postponed_rules = False
    return has_postponed_rules or not is_expected_view(request, state)


def _choose_postponed(
    request: HttpRequest, state: RequestState, ruleset: Ruleset
) -> list[Rule] | None:
    """Choose the rules that need the user or the session. None: a rule exempts the request.

    If a middleware below has chosen another URLconf or language, Django has resolved another view
    than expected. In that case, choose all rules for that view, and forget that those by route were
    counted: the identities of keys that use the route differ.
    """
    rules = _match_rules(request, ruleset)
    if not rules:
        return rules
    if is_expected_view(request, state):
        return [rule for rule in rules if rule.needs_user or rule.needs_session]
    for rule in rules:
        if rule.needs_route:
            state.counted.pop(rule.name, None)
    return rules
