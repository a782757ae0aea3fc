"""The two drivers of everything that waits: one blocks, the other awaits.

The work is written once, as a generator. It yields a `Call` for the store to decide, or a `Wait`
for anything else. The driver sends the result into the generator, or throws the error.

An interruption (a cancelled task, a closed coroutine, Ctrl-C) is thrown into the generator like any
error. A generator that has something to give back then yields `settling`, and raises the
interruption again. Those steps always run to their end: a coroutine that is cancelled again waits
for them, and for a closed coroutine a thread runs them.

A function that returns such a generator has a participle as its name: `deciding`, `refunding`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync

from ..conf import conf
from ..limits.call import Call
from ..process.tasks import JobRunner
from ..store import BACKGROUND_SECONDS, Deadline, get_store

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")


class Wait(NamedTuple):
    """Something to wait for: a function that blocks, and one that returns an awaitable."""

    blocking: Callable[[], object]
    awaitable: Callable[[], Awaitable[object]]


Waiting = Generator[Call | Wait, Any, T]
_settling = JobRunner()


def calling(function: Callable[..., Any], *arguments: object) -> Waiting[Any]:
    """Return the result of a user's function, awaited if it is awaitable."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = yield waiting_for(value)
    return value


def waiting_for(value: Awaitable[object]) -> Wait:
    """Return a `Wait` for the awaitable that a user's function has returned."""

    async def result() -> object:
        return await value

    return Wait(async_to_sync(result), result)


def run(waiting: Waiting[T], deadline: Deadline | None = None) -> T:
    """Run a generator to its end, blocking, and return its result.

    Args:
        waiting: The generator.
        deadline: The time for all its calls of the store together. Default: `RATELIMIT_TIMEOUT`.
    """
    deadline = deadline or Deadline(conf.TIMEOUT)
    value: object = None
    error: BaseException | None = None
    try:
        while True:
            wait = waiting.send(value) if error is None else waiting.throw(error)
            value = error = None
            try:
                if isinstance(wait, Call):
                    value = get_store().decide(wait, deadline)
                else:
                    value = wait.blocking()
            except BaseException as raised:
                error = raised
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]


async def arun(waiting: Waiting[T], deadline: Deadline | None = None) -> T:
    """`run`, without blocking the event loop."""
    deadline = deadline or Deadline(conf.TIMEOUT)
    value: object = None
    error: Exception | None = None
    try:
        while True:
            wait = waiting.send(value) if error is None else waiting.throw(error)
            value = error = None
            try:
                if isinstance(wait, Call):
                    value = await get_store().adecide(wait, deadline)
                else:
                    value = await wait.awaitable()
            except Exception as raised:
                error = raised
            except BaseException as stopped:
                await _stop(waiting, stopped)
                raise
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]


async def _stop(waiting: Waiting[object], error: BaseException) -> None:
    """Throw the exception that stops a coroutine into its generator, and run the owed steps."""
    thrown = error
    if isinstance(error, GeneratorExit):
        # It would close the generators that this one delegates to, and could not be raised in them.
        thrown = asyncio.CancelledError()
    try:
        wait = waiting.throw(thrown)
    except BaseException as raised:
        if raised is not thrown:
            raise
    else:
        await finish_interrupted(error, _continuing(waiting, wait, thrown))


def _continuing(
    waiting: Waiting[object], wait: Call | Wait, thrown: BaseException
) -> Waiting[None]:
    """Run a generator on from this wait, until it raises the thrown exception again."""
    try:
        while True:
            try:
                value = yield wait
            except Exception as error:
                wait = waiting.throw(error)
            else:
                wait = waiting.send(value)
    except BaseException as raised:
        if raised is not thrown:
            raise


def settling(error: BaseException, waiting: Waiting[object]) -> Waiting[None]:
    """Run the steps that a generator still owes when an error stops it.

    No step runs before this generator yields. A coroutine may be closed by the garbage collector,
    at any point of the program, even while this thread holds a lock.
    """
    with logging_errors(error):
        yield Wait(partial(run, waiting), partial(arun, waiting))


async def finish_interrupted(error: BaseException, waiting: Waiting[None]) -> None:
    """Run the steps that a coroutine still owes when an exception ends it."""
    with logging_errors(error):
        # The coroutine is closed, and cannot wait for anything more.
        if isinstance(error, GeneratorExit):
            run_in_thread(lambda: run(waiting))
        else:
            await await_to_end(arun(waiting))


async def await_to_end(coroutine: Awaitable[T]) -> T:
    """Await a coroutine to its end, even if the caller is cancelled repeatedly.

    The cancellation is raised afterwards.
    """
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            if not task.done():  # The caller is closed. The task continues.
                raise
            break
    if cancelled is None:
        return task.result()
    if not task.cancelled() and task.exception() is not None:
        logger.error("A cancelled request could not be settled", exc_info=task.exception())
    raise cancelled


def run_in_thread(
    function: Callable[[], object], *, waits: bool = True, seconds: float = BACKGROUND_SECONDS
) -> None:
    """Run a function in another thread, because an event loop in this one may not block.

    Args:
        function: The function.
        waits: Whether to wait for its end.
        seconds: The maximum time to wait.

    Raises:
        TimeoutError: The time is over. The thread continues.
    """
    future = _settling.submit(function)
    if future is None:  # No thread can be started.
        function()
    elif waits:
        future.result(seconds)


@contextmanager
def logging_errors(error: BaseException) -> Iterator[None]:
    """Log an error that occurs during an interruption, so that the interruption goes on.

    If there is no interruption, raise the error.
    """
    try:
        yield
    except Exception:
        if isinstance(error, Exception):
            raise
        logger.exception("An interrupted request could not be settled")
