"""`@ratelimit` for function views, class-based views (`method_decorator`) and `async` views."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase

from .engine.decide import adecide, decide
from .engine.holding import Held, await_turn, wait_turn
from .engine.run import arun, await_to_end, finish_interrupted, logging_errors, run
from .exceptions import Ratelimited
from .identity.keys import KeyLike
from .limits.decision import Decision
from .limits.options import Options
from .limits.rate import LimitError
from .rules.conditions import ALL, UNSAFE
from .rules.rule import Outcome, Rule
from .rules.template import CostLike, RateLike
from .views.call_sites import CallSite, compile_call_site, known_call_sites
from .views.fallback import NO_FALLBACK, afall_back, async_mismatch, fall_back
from .views.inspection import (
    DECORATORS_MODULE,
    Stack,
    attach_stack,
    decoration_problem,
    default_group,
    stack_of,
    strip_partials,
)
from .web.request_plan import RequestPlanner
from .web.responses import (
    add_ratelimit_headers,
    arefused_response,
    attach_decision,
    refused_response,
)
from .web.settlement import hold_slots, settle, watch_body

View = TypeVar("View", bound=Callable[..., object])


class _Ratelimit:
    """Limit a view.

    >>> @ratelimit(key="ip", rate="5/m")
    ... def search(request):
    ...     return HttpResponse("found")

    The view can read the decision from `request.ratelimit`. A limit with `max_wait` and a leaky
    bucket hold the request until its turn. A leaky bucket without `max_wait` refuses a request that
    would have to wait for more than five seconds.

    Write it below decorators that register the function, such as `@api.get` of django-ninja.
    A limit that decorators repeat around one view counts a request once.

    Args:
        group: The name of the count. Default: the view's module and name.
        key: What to count by: all (every client together), ip, user, user_or_ip, get:NAME,
            post:NAME, header:NAME, cookie:NAME, a callable (group, request), its dotted path, or a
            tuple of these. Values that clients write are normalized (case, spaces, Unicode); with
            the prefix exact: they are not, and with int: all spellings of a number are one.
        rate: "N/[k]unit", (count, seconds), a callable (group, request), its dotted path, or None
            for no limit. With algorithm="concurrency", a plain number such as "5" is a maximum of
            concurrent requests, each until its response is closed. A list of these is decided
            together, all or nothing.
        method: ALL, UNSAFE, or the methods to count. GET includes HEAD, which runs the same view.
        block: Answer 429 if the request is over the limit. Otherwise only set `request.limited`,
            and let the view decide.
        cost: The units that a request takes, a callable (group, request), or its dotted path.
        count_if: A function of the request and its response (or the exception that it raised). If
            it returns false, the units are refunded.
        reset_if: The same. If it returns true, the count of the identity is reset.
        cost_after: The same. It returns the number of units to charge in addition.
        fallback: A view that answers refused requests instead of the 429, with the same arguments.
            On a function that is not a view but has a request as its first argument: a value or a
            callable. Of several decorators on one view, the outermost with a fallback applies.
        durable: Keep hourly statistics in the database, for `RATELIMIT_HISTORY_DAYS`.
        **options: The options of `Limit`: algorithm, burst, queue, segments, align,
            time_zone, max_wait, count_denied, mode.

    Raises:
        LimitError: An argument is invalid. It is raised when the module is imported, not by the
            first request.
    """

    ALL = ALL
    UNSAFE = UNSAFE

    def __call__(
        self,
        group: str | None = None,
        key: KeyLike | None = None,
        rate: RateLike | list[RateLike] = None,
        method: str | list[str] | tuple[str, ...] | None = ALL,
        block: bool = True,
        *,
        cost: CostLike = 1,
        count_if: Outcome | None = None,
        reset_if: Outcome | None = None,
        cost_after: Outcome | None = None,
        fallback: object = NO_FALLBACK,
        durable: bool = False,
        **options: Unpack[Options],
    ) -> Callable[[View], View]:
        rule = compile_call_site(
            group,
            key,
            rate,
            method,
            cost,
            options,
            block=block,
            count_if=count_if,
            reset_if=reset_if,
            cost_after=cost_after,
        )
        if rule.group is not None:
            known_call_sites.add_name(rule.group)
        if fallback is not NO_FALLBACK and not block:
            raise LimitError("fallback has no effect with block=False: remove one of them")
        if isinstance(fallback, HttpResponseBase):
            raise LimitError(
                "fallback is a response, which all requests would share: use a view that returns it"
            )

        def decorate(view: View) -> View:
            return cast(View, _limit_view(view, rule, fallback, durable=durable))

        return decorate


ratelimit = _Ratelimit()


def is_async(view: object) -> bool:
    """Return whether a call of the view returns a coroutine.

    This includes `View.dispatch` of a class with async handlers.
    """
    if iscoroutinefunction(view) or inspect.iscoroutinefunction(view):
        return True
    function = strip_partials(view)
    if getattr(function, "__name__", "") != "dispatch":
        return False
    owner = getattr(function, "__self__", None)
    return getattr(type(owner), "view_is_async", False) is True


def _raise_if_not_view(view: Callable[..., object]) -> None:
    """Raise `LimitError` if the decorated object is no function of a request."""
    if isinstance(view, type):
        remedy = f"@method_decorator(ratelimit(...), name='dispatch') on {view.__name__}"
        raise LimitError(
            f"@ratelimit is for functions, and {view.__qualname__} is a class: use {remedy}"
        )
    if problem := decoration_problem(view):
        raise LimitError(f"@ratelimit {problem}")
    if not inspect.isfunction(view):
        return
    owner = view.__qualname__.rpartition(".")[0]  # Empty for a function of a module.
    is_in_class = owner != "" and not owner.endswith("<locals>")
    code = view.__code__
    if is_in_class and code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls"):
        raise _method_error(view)


def _method_error(view: Callable[..., object]) -> LimitError:
    """Return the error for a function whose first argument is not a request."""
    name = getattr(view, "__qualname__", repr(view))
    return LimitError(
        f"@ratelimit on {name}: its first argument is not a request. On a method, use "
        "@method_decorator(ratelimit(...)); on a function without a request, use a RateLimiter "
        "as the decorator"
    )


def _limit_view(
    view: Callable[..., Any], rule: Rule, fallback: object, *, durable: bool
) -> Callable[..., object]:
    """Return the view with a limit.

    Directly above another `@ratelimit`, one function decides both limits, in one call.
    """
    _raise_if_not_view(view)
    rules: tuple[Rule, ...] = (rule,)
    target = view
    below = stack_of(view)
    if below is not None:
        rules = (rule, *below.rules)
        target = below.view
        if fallback is NO_FALLBACK:
            fallback = below.fallback
    group = default_group(target)
    _register_call_site(rule, group, durable=durable)
    is_coroutine = is_async(target)
    if problem := async_mismatch(fallback, is_async=is_coroutine):
        raise LimitError(f"fallback {problem}", "fallback")
    wrap = _wrap_coroutine_function if is_coroutine else _wrap_function
    wrapper = wrap(view, target, rules, group, fallback)
    return attach_stack(Stack(wrapper, target, rules, group, fallback))


def _register_call_site(rule: Rule, group: str, *, durable: bool) -> None:
    """Add a call site with a limit to those that operators see.

    A view that `method_decorator` has wrapped is left out: its group names Django's wrapper.
    """
    template = rule.template
    if template is None or template.key is None or group.startswith(DECORATORS_MODULE):
        return
    known_call_sites.add(rule.group or group, CallSite.of_decorator(rule, group))
    if durable:
        known_call_sites.mark_durable(rule.name_at(group))


def _wrap_function(
    decorated: Callable[..., object],
    view: Callable[..., object],
    rules: Sequence[Rule],
    group: str,
    fallback: object,
) -> Callable[..., object]:
    """Return a function that decides the rules before it calls the view.

    It replaces the `decorated` function, which is the view, or the wrapper of another decorator
    whose rules are among these.
    """
    blocks = any(rule.block for rule in rules)
    settles = any(rule.settles for rule in rules)

    @functools.wraps(decorated)
    def limited(request: HttpRequest, *args: object, **kwargs: object) -> object:
        if not hasattr(request, "META"):
            raise _method_error(decorated)
        planner = RequestPlanner(request, rules, group, call_site=rules, once=True)
        decision = decide(planner)
        charges = planner.charges
        running = planner.state.running
        running.append(charges)
        try:
            attach_decision(request, decision)
            if blocks and not decision.allowed:
                if fallback is NO_FALLBACK:
                    return refused_response(request, decision)
                answer = fall_back(fallback, Ratelimited(decision), request, *args, **kwargs)
                return add_ratelimit_headers(request, answer)
            held = None
            if [decided for decided in charges if decided.slot]:
                held = hold_slots(request, planner.state, decision, charges)
            if blocks and decision.wait > 0:
                wait_turn(decision.wait, charges)
            if settles or held is not None:
                call = functools.partial(view, request, *args, **kwargs)
                response = _call_and_settle(call, planner, decision, held)
            else:
                response = view(request, *args, **kwargs)
            return add_ratelimit_headers(request, response)
        finally:
            running.remove(charges)

    return limited


def _call_and_settle(
    call: Callable[[], object], planner: RequestPlanner, decision: Decision, held: Held | None
) -> object:
    """Call a view, and settle the charges by its response, or by the exception that it raises."""
    request = planner.request
    state = planner.state
    try:
        response = call()
    except BaseException as error:
        with logging_errors(error):
            run(settle(request, state, error, decision, planner.charges, held))
        raise
    run(settle(request, state, response, decision, planner.charges))
    if held is None:
        return response
    return watch_body(state, response)


def _wrap_coroutine_function(
    decorated: Callable[..., object],
    view: Callable[..., Awaitable[object]],
    rules: Sequence[Rule],
    group: str,
    fallback: object,
) -> Callable[..., object]:
    """`_wrap_function`, for a view that is a coroutine function."""
    blocks = any(rule.block for rule in rules)
    settles = any(rule.settles for rule in rules)

    @functools.wraps(decorated)
    async def limited(request: HttpRequest, *args: object, **kwargs: object) -> object:
        if not hasattr(request, "META"):
            raise _method_error(decorated)
        planner = RequestPlanner(request, rules, group, call_site=rules, once=True)
        decision = await adecide(planner)
        charges = planner.charges
        running = planner.state.running
        running.append(charges)
        try:
            attach_decision(request, decision)
            if blocks and not decision.allowed:
                if fallback is NO_FALLBACK:
                    return await arefused_response(request, decision)
                answer = await afall_back(
                    _adapt_fallback(fallback), Ratelimited(decision), request, *args, **kwargs
                )
                return add_ratelimit_headers(request, answer)
            held = None
            if [decided for decided in charges if decided.slot]:
                held = hold_slots(request, planner.state, decision, charges)
            if blocks and decision.wait > 0:
                await await_turn(decision.wait, charges)
            if settles or held is not None:
                call = functools.partial(view, request, *args, **kwargs)
                response = await _acall_and_settle(call, planner, decision, held)
            else:
                response = await view(request, *args, **kwargs)
            return add_ratelimit_headers(request, response)
        finally:
            running.remove(charges)

    return limited


async def _acall_and_settle(
    call: Callable[[], Awaitable[object]],
    planner: RequestPlanner,
    decision: Decision,
    held: Held | None,
) -> object:
    """`_call_and_settle`, for coroutines."""
    request = planner.request
    state = planner.state
    charges = planner.charges
    try:
        response = await call()
    except BaseException as error:
        await finish_interrupted(error, settle(request, state, error, decision, charges, held))
        raise
    try:
        await await_to_end(arun(settle(request, state, response, decision, charges)))
    except BaseException as error:
        if held is not None:  # No caller gets the response, so it may never be closed.
            await finish_interrupted(error, held.releasing())
        raise
    if held is None:
        return response
    return watch_body(state, response)


def _adapt_fallback(fallback: object) -> Any:
    """Return the fallback for a coroutine function: a plain callable runs in a thread."""
    if callable(fallback) and not is_async(fallback):
        return sync_to_async(fallback)
    return fallback
