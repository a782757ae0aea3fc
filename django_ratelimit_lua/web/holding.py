"""Slots that a request holds until its response is closed.

Django closes the request together with the final response: after the last byte of its body is sent,
after the client has disconnected, and after an exception was converted. Then its slots are
released, for views, middleware and throttles. These cases are different:

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
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import SyncToAsync, sync_to_async
from django.core.signals import request_finished
from django.http import FileResponse, StreamingHttpResponse
from django.utils.encoding import escape_uri_path

from ..engine import DecidedCharge
from ..engine.holding import Held
from ..engine.run import (
    Waiting,
    await_to_end,
    finish_interrupted,
    logging_errors,
    run,
    run_in_thread,
)
from ..identity.request_state import plain, request_state
from ..limits.decision import Decision

P = ParamSpec("P")
R = TypeVar("R")
MAX_PATH_LENGTH = 180
"""Letters of a path in the log."""


_by_context: weakref.WeakKeyDictionary[object, list[list[Held]]] = weakref.WeakKeyDictionary()
"""The slots of the requests in one context of asgiref: an ASGI server has one for each request."""


def hold_slots(request: Any, decision: Decision, charges: Sequence[DecidedCharge]) -> Held | None:
    """Hold the slots of a decision until the response to the request is closed.

    Return the held slots, or None.
    """
    if not any(decided.slot for decided in charges):
        return None
    request = plain(request)
    # Escaped: no line break of a client's gets into a log.
    what = f"{request.method} {escape_uri_path(request.path)[:MAX_PATH_LENGTH]}"
    held = Held(decision, charges, what)
    of_request = request_state(request).held
    if not of_request:
        _release_when_closed(request, of_request)
    of_request.append(held)
    return held


def releasing(request: object) -> Waiting[None]:
    """Release all that a request holds."""
    of_request = request_state(request).held
    while of_request:
        yield from of_request.pop().releasing()


def watch_body(request: object, response: R) -> R:
    """Return the response. If its body raises, the slots of the request are released."""
    if isinstance(response, StreamingHttpResponse) and not isinstance(response, FileResponse):
        watched = _awatched if response.is_async else _watched
        response.streaming_content = watched(request, response.streaming_content)  # type: ignore[arg-type]
    return response


def watched_method(request: object, held: Held, method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that makes a response, and releases the slots if it raises.

    It also handles exceptions that Django never converts to a response, such as `SystemExit`.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return watch_body(request, method(*args, **kwargs))
        except BaseException:
            held.release()
            raise

    return called


async def release_left(request: object, error: BaseException) -> None:
    """Release the slots of a request that ends with an exception.

    If the request was cancelled, its view may still run in a thread. The slots are released
    afterwards.
    """
    if not request_state(request).held:
        return
    if isinstance(error, asyncio.CancelledError):
        with logging_errors(error):
            await await_to_end(sync_to_async(run)(releasing(request)))
    else:
        await finish_interrupted(error, releasing(request))


def _watched(request: object, content: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from content
    except Exception:
        run(releasing(request))
        raise


async def _awatched(request: object, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    except Exception as error:
        await finish_interrupted(error, releasing(request))
        raise


def _context() -> object | None:
    return SyncToAsync.thread_sensitive_context.get(None)


def _release_when_closed(request: Any, of_request: list[Held]) -> None:
    close = request.close

    def close_and_release() -> None:
        try:
            close()
        finally:
            _release(of_request)

    request.close = close_and_release
    context = _context()
    if context is not None:
        _by_context.setdefault(context, []).append(of_request)


def _release(of_request: list[Held]) -> None:
    held = of_request[:]
    of_request.clear()
    if not held:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _release_each(held)
    else:  # Closed by hand, in a coroutine: Django's handlers close responses in a thread.
        run_in_thread(partial(_release_each, held), waits=False)


def _release_each(held: list[Held]) -> None:
    for each in held:
        each.release()


def _finished(sender: object, **kwargs: object) -> None:
    """Release the slots of requests that have ended.

    The signal has no sender if the closed response is not the final one.
    """
    context = _context()
    if sender is None or context is None:
        return
    for of_request in _by_context.pop(context, ()):
        _release(of_request)


request_finished.connect(_finished, dispatch_uid="django_ratelimit_lua.slots")
