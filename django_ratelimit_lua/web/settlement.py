"""The end of a request: charges are settled by the response, and slots are released.

A unit is taken before the view and refunded after it, so that simultaneous requests cannot all
pass. A view that is cancelled or interrupted has an outcome, too. If a worker dies in between, its
unit stays counted until it expires.

A request holds its slots until its response is closed. Django closes the request together with the
final response: after the last byte of its body is sent, after the client has disconnected, and
after an exception was converted. Then its slots are released, for views, middleware and throttles.
These cases are different:

- an exception that passes a decorator, a method of a DRF view or the middleware: the slots taken
  there are released;
- a body that raises: Django's ASGI handler does not close such a response;
- under ASGI, a client that disconnects before there is a response, while a view in a thread
  continues: Django signals the end of the request when the thread is done. If a server cancels even
  that, asgiref's context of the request is dropped;
- a response that is never closed: its slots become garbage with the request, and are renewed no
  longer.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from asgiref.sync import SyncToAsync, sync_to_async
from django.core.signals import request_finished
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.utils.encoding import escape_uri_path

from ..engine import DecidedCharge
from ..engine.decide import build_call, deciding_call, forgetting, refunding
from ..engine.holding import Held
from ..engine.run import (
    Waiting,
    await_to_end,
    calling,
    finish_interrupted,
    logging_errors,
    run,
    run_in_thread,
)
from ..identity.request_state import RequestState, unwrap_request
from ..limits.call import Charge, whole_cost
from ..limits.decision import Decision
from ..rules.rule import Rule

logger = logging.getLogger("django_ratelimit_lua")
P = ParamSpec("P")
R = TypeVar("R")
MAX_PATH_LENGTH = 180
"""Letters of a path in the log."""


_held_by_context: weakref.WeakKeyDictionary[object, list[list[Held]]] = weakref.WeakKeyDictionary()
"""The slots of requests by asgiref's context, of which an ASGI server has one for each request."""


def settle(
    request: HttpRequest,
    state: RequestState,
    response: object,
    decision: Decision,
    decided_charges: Sequence[DecidedCharge],
    held: Held | None = None,
) -> Waiting[None]:
    """Settle the charges of a decision by the response, or by the exception that was raised.

    That exception may be the one that stopped the view: `CancelledError`, `KeyboardInterrupt`,
    `SystemExit` or `GeneratorExit`. An exception releases the `held` slots. Otherwise they are
    released when the response is closed.

    Each limit is settled by itself: an error of its functions is logged, and its units stay
    counted.
    """
    if held is not None and isinstance(response, BaseException):
        yield from held.releasing()
    if decision.source == "fallback":
        return  # Nothing was taken that could be given back.
    changes = _Changes([], [], [])
    for decided in decided_charges:
        rule = decided.rule
        if rule is None or decided.charge.limit.holds:
            continue
        try:
            yield from _judge_outcome(request, state, response, decided, rule, changes)
        except Exception:
            logger.exception(
                "A function of the limit %r failed after the view; its units stay counted",
                decided.name,
            )
    yield from refunding(changes.refunds)
    if changes.charges:
        yield from deciding_call(build_call(changes.charges, "charge"))
    if changes.resets:
        yield from forgetting(build_call(changes.resets, "refund"))


class _Changes(NamedTuple):
    """The charges to refund, to count in addition, and to reset, after a view."""

    refunds: list[DecidedCharge]
    charges: list[Charge]
    resets: list[Charge]


def _judge_outcome(
    request: HttpRequest,
    state: RequestState,
    response: object,
    decided: DecidedCharge,
    rule: Rule,
    changes: _Changes,
) -> Waiting[None]:
    """Call the functions of a rule, and add the changes that they decide.

    Raises the exceptions of these functions, and `LimitError` for an invalid cost.
    """
    charge = decided.charge
    if rule.reset_if is not None and (yield from calling(rule.reset_if, request, response)):
        changes.resets.append(charge)
        return
    if rule.cost_after is not None:
        given_cost = yield from calling(rule.cost_after, request, response)
        cost = whole_cost(given_cost, "cost_after gave")
        # A request that passes several decorators of one limit is charged once.
        counter = (charge.digest, charge.limit.key_part)
        if cost and counter not in state.charged:
            state.charged.add(counter)
            changes.charges.append(charge._replace(cost=cost))
    if decided.token is None or rule.count_if is None:
        return
    if not (yield from calling(rule.count_if, request, response)):
        changes.refunds.append(decided)


def hold_slots(
    request: Any, state: RequestState, decision: Decision, charges: Sequence[DecidedCharge]
) -> Held | None:
    """Hold the slots of a decision until the response to the request is closed.

    Return the held slots; None if the decision granted none.
    """
    if not any(decided.slot for decided in charges):
        return None
    django_request = unwrap_request(request)
    # Escaped, so that a client cannot write a line break into a log.
    path = escape_uri_path(django_request.path)[:MAX_PATH_LENGTH]
    held = Held(decision, charges, what=f"{django_request.method} {path}")
    if not state.held:
        _release_when_closed(django_request, state.held)
    state.held.append(held)
    return held


def releasing(state: RequestState) -> Waiting[None]:
    """Release all that a request holds."""
    while state.held:
        yield from state.held.pop().releasing()


def watch_body(state: RequestState, response: R) -> R:
    """Return the response. If its body raises, the slots of the request are released."""
    if isinstance(response, StreamingHttpResponse) and not isinstance(response, FileResponse):
        watch = _awatch_content if response.is_async else _watch_content
        response.streaming_content = watch(state, response.streaming_content)  # type: ignore[arg-type]
    return response


def watch_method(state: RequestState, held: Held, method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that makes a response, and releases the slots if it raises.

    It also handles exceptions that Django never converts to a response, such as `SystemExit`.
    """

    @wraps(method)
    def call_method(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return watch_body(state, method(*args, **kwargs))
        except BaseException:
            held.release()
            raise

    return call_method


async def arelease_after_error(state: RequestState, error: BaseException) -> None:
    """Release the slots of a request that ends with an exception.

    If the request was cancelled, its view may still run in a thread. The slots are released
    afterwards.
    """
    if not state.held:
        return
    if isinstance(error, asyncio.CancelledError):
        with logging_errors(error):
            await await_to_end(sync_to_async(run)(releasing(state)))
    else:
        await finish_interrupted(error, releasing(state))


def _watch_content(state: RequestState, content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the parts of a body. If it raises, the slots are released."""
    try:
        yield from content
    except Exception:
        run(releasing(state))
        raise


async def _awatch_content(
    state: RequestState, content: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """`_watch_content`, for coroutines."""
    try:
        async for part in content:
            yield part
    except Exception as error:
        await finish_interrupted(error, releasing(state))
        raise


def _current_context() -> object | None:
    """Return the context that asgiref has for the present request of an ASGI server, or None."""
    return SyncToAsync.thread_sensitive_context.get(None)


def _release_when_closed(request: Any, held: list[Held]) -> None:
    """Release these slots when the response to the request is closed, or its context ends."""
    close = request.close

    def close_and_release() -> None:
        try:
            close()
        finally:
            _release_all(held)

    request.close = close_and_release
    context = _current_context()
    if context is not None:
        _held_by_context.setdefault(context, []).append(held)


def _release_all(held: list[Held]) -> None:
    """Release these slots, in another thread if an event loop runs in this one."""
    slots = held[:]
    held.clear()
    if not slots:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _release_each(slots)
    else:  # A coroutine has closed the response. Django's handlers close it in a thread.
        run_in_thread(partial(_release_each, slots), waits=False)


def _release_each(slots: list[Held]) -> None:
    for held in slots:
        held.release()


def _release_finished(sender: object, **kwargs: object) -> None:
    """Release the slots of requests that have ended.

    The signal has no sender if the closed response is not the final one.
    """
    context = _current_context()
    if sender is None or context is None:
        return
    for held in _held_by_context.pop(context, ()):
        _release_all(held)


request_finished.connect(_release_finished, dispatch_uid="django_ratelimit_lua.slots")
