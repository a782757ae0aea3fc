"""`@ratelimit`, for function views, methods of class-based views (`method_decorator`) and `async` views."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase

from .engine.decide import adecide, decide
from .engine.run import arun, run
from .engine.waiting import ahold, hold, settled, to_the_end, unmasked
from .exceptions import Ratelimited
from .identity.keys import KeyLike
from .limits.options import Options
from .limits.rate import LimitError
from .rules.callsite import CallSite, call_site, group_of, known_call_sites
from .rules.fallbacks import NO_FALLBACK, afall_back, async_mismatch, fall_back
from .rules.methods import ALL, UNSAFE
from .rules.rule import Outcome, Rule
from .rules.stacks import TRIAL, Stack, register, stack_of
from .rules.template import CostLike, RateLike
from .web.holding import hold_slots, watch_body
from .web.plan import RequestPlanner
from .web.responses import add_ratelimit_headers, arefused_response, attach_decision, refused_response
from .web.settlement import settle

View = TypeVar("View", bound=Callable[..., Any])


class _Ratelimit:
    """Limit a view.

    >>> @ratelimit(key="ip", rate="5/m")
    ... def search(request):
    ...     return HttpResponse("found")

    - `group`: what the count is kept under; by default the view's module and name;
    - `key`: what to count by: all (every caller together), ip, user, user_or_ip, get:NAME, post:NAME, header:NAME,
      cookie:NAME, a callable (group, request), its dotted path, or a tuple of these. Text that clients write counts in
      one spelling, with exact: in front letter by letter;
    - `rate`: "N/[k]unit", (count, seconds), None for no limit, a callable (group, request) or its dotted path; or a
      list of these, decided together, all or nothing;
    - `method`: ALL, UNSAFE, or the methods to count; GET is HEAD too, which runs the same view;
    - `block`: answer 429 when over the limit; else only set `request.limited` and let the view decide;
    - `cost`: the units a request takes, or a callable (group, request), or its dotted path;
    - `count_if`, `reset_if`, `cost_after`: called with the request and its response, or the exception it raised. Where
      `count_if` says no, the units are given back; where `reset_if` says yes, the identity is cleared; `cost_after`
      says how many more units the request turned out to cost;
    - `fallback`: what answers a refused request in the place of 429: a view, which gets the same arguments; on a
      function that is not a view and has a request as its first argument, a value or a callable. Of several decorators
      on one view, the outermost that has a fallback;
    - `durable`: keep its statistics of each hour in the database, for `RATELIMIT_HISTORY_DAYS`;
    - the options of `Limit`: algorithm, burst, initial, queue, segments, align, time_zone, max_wait,
      count_denied, mode.

    The view finds the decision as `request.ratelimit`. A limit with `max_wait` or a leaky bucket holds the request
    until its turn; a leaky bucket without a `max_wait` for five seconds at most, and what would take
    longer is refused. With `algorithm="concurrency"`, or beside rates in a list, a number alone ("5") says how many
    requests may run at the same time, each until its response is closed. Raises `LimitError` for what cannot be
    understood, when the decorator is written.
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
        fallback: Any = NO_FALLBACK,
        durable: bool = False,
        **options: Unpack[Options],
    ) -> Callable[[View], View]:
        rule = call_site(
            group, key, rate, method, cost, options,
            block=block, count_if=count_if, reset_if=reset_if, cost_after=cost_after,
        )  # fmt: skip

        if fallback is not NO_FALLBACK and not block:
            raise LimitError("fallback answers refused requests, and block=False refuses none: leave one of them out")
        if isinstance(fallback, HttpResponseBase):
            raise LimitError("fallback is a response, which all requests would share: write a view that returns it")

        def decorate(view: View) -> View:
            return cast(View, _checked(view, rule, fallback, durable=durable))

        return decorate


ratelimit = _Ratelimit()


def is_async(view: Any) -> bool:
    """Whether calling the view makes a coroutine. `View.dispatch` does where its class has async handlers."""
    if iscoroutinefunction(view) or inspect.iscoroutinefunction(view):
        return True
    while isinstance(view, functools.partial):
        view = view.func
    owner = getattr(view, "__self__", None)
    return getattr(view, "__name__", "") == "dispatch" and getattr(type(owner), "view_is_async", False) is True


def _check_function(view: Callable[..., Any]) -> None:
    """Raises `LimitError` for what can never be called with a request in front."""
    if isinstance(view, type):
        right = f"@method_decorator(ratelimit(...), name='dispatch') on {view.__name__}"
        raise LimitError(f"@ratelimit is for functions, and {view.__qualname__} is a class: write {right}")
    if not inspect.isfunction(view):
        return
    arguments = view.__code__.co_varnames[: view.__code__.co_argcount]
    if arguments[:1] == ("self",) and view.__qualname__.rpartition(".")[0][-1:] not in ("", ">"):
        raise _on_method(view)


def _on_method(view: Callable[..., Any]) -> LimitError:
    name = getattr(view, "__qualname__", repr(view))
    return LimitError(
        f"@ratelimit on {name}: its first argument is no request. On a method, write "
        f"@method_decorator(ratelimit(...)), from django.utils.decorators; on a function without a request, use a "
        f"RateLimiter as the decorator"
    )


def _checked(view: Callable[..., Any], rule: Rule, fallback: Any, *, durable: bool) -> Callable[..., Any]:
    # Right on top of another @ratelimit: one function checks both, in one call.
    _check_function(view)
    below = stack_of(view)
    rules: tuple[Rule, ...] = (rule,)
    checked = view
    if below is not None:
        checked, rules = below.view, (rule, *below.rules)
        if fallback is NO_FALLBACK:
            fallback = below.fallback
    group = group_of(checked)
    template = rule.template
    if template is not None and template.key is not None and not group.startswith(TRIAL):
        known_call_sites.add(rule.group or group, CallSite.of(rule, group))
        if durable:
            known_call_sites.keep_statistics(rule.name_at(group))
    if problem := async_mismatch(fallback, is_async=is_async(checked)):
        raise LimitError(f"fallback {problem}", "fallback")
    blocks = any(rule.block for rule in rules)
    settles = any(rule.settles for rule in rules)

    @functools.wraps(view)
    def checker(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(request, "META"):
            raise _on_method(view)
        outcome = decide(RequestPlanner(request, rules, group))
        decision = attach_decision(request, outcome.decision)
        if blocks and not decision.allowed:
            if fallback is NO_FALLBACK:
                return refused_response(request, decision)
            answer = fall_back(fallback, Ratelimited(decision), request, *args, **kwargs)
            return add_ratelimit_headers(request, answer)
        held = hold_slots(request, outcome) if outcome.slot else None
        if blocks and decision.wait > 0:
            hold(outcome)
        if not settles and held is None:
            return add_ratelimit_headers(request, checked(request, *args, **kwargs))
        try:
            response = checked(request, *args, **kwargs)
        except BaseException as error:
            with unmasked(error):
                run(settle(request, error, outcome, held))
            raise
        run(settle(request, response, outcome))
        return add_ratelimit_headers(request, response if held is None else watch_body(request, response))

    @functools.wraps(view)
    async def achecker(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(request, "META"):
            raise _on_method(view)
        outcome = await adecide(RequestPlanner(request, rules, group))
        decision = attach_decision(request, outcome.decision)
        if blocks and not decision.allowed:
            if fallback is NO_FALLBACK:
                return await arefused_response(request, decision)
            answer = await afall_back(in_thread(fallback), Ratelimited(decision), request, *args, **kwargs)
            return add_ratelimit_headers(request, answer)
        held = hold_slots(request, outcome) if outcome.slot else None
        if blocks and decision.wait > 0:
            await ahold(outcome)
        if not settles and held is None:
            return add_ratelimit_headers(request, await checked(request, *args, **kwargs))
        try:
            response = await checked(request, *args, **kwargs)
        except BaseException as error:
            await settled(error, settle(request, error, outcome, held))
            raise
        try:
            await to_the_end(arun(settle(request, response, outcome)))
        except BaseException as error:
            if held is not None:  # The response is lost, and may never be closed.
                await settled(error, held.releasing())
            raise
        return add_ratelimit_headers(request, response if held is None else watch_body(request, response))

    wrapper: Any = achecker if is_async(checked) else checker
    return register(Stack(wrapper, checked, rules, group, fallback))


def in_thread(fallback: Any) -> Any:
    """The fallback of a coroutine function: a plain callable may block, and so runs in a thread."""
    return sync_to_async(fallback) if callable(fallback) and not is_async(fallback) else fallback
