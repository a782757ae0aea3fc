"""Waiting for a turn that was reserved, and giving it back where the one who waits is stopped.

A turn is taken before it is waited for. Whoever is cancelled or interrupted meanwhile owes it to the others: exactly
that turn, by the moment from which it counts, and whatever else happens to the one who gives it back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..process.tasks import Errand
from ..store import PATIENCE
from .decide import Outcome, refunding
from .run import Waiting, arun, run

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")


def hold(outcome: Outcome) -> None:
    """Sleep until it is one's turn; who is interrupted meanwhile gives it back."""
    try:
        time.sleep(outcome.decision.wait)
    except BaseException as error:
        with unmasked(error):
            run(refunding(outcome.charges))
        raise


async def ahold(outcome: Outcome) -> None:
    """`hold`, for coroutines."""
    try:
        await asyncio.sleep(outcome.decision.wait)
    except BaseException as error:
        await settled(error, refunding(outcome.charges))
        raise


async def settled(error: BaseException, waiting: Waiting[None]) -> None:
    """Do what a coroutine owes that is left by an exception, whatever that is."""
    with unmasked(error):
        if isinstance(error, GeneratorExit):  # The coroutine is closed, and cannot wait for anything more.
            in_thread(lambda: run(waiting))
        else:
            await to_the_end(arun(waiting))


async def to_the_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await it, also where the one who waits is cancelled meanwhile, however often: that is raised afterwards."""
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            break
    if cancelled is None:
        return task.result()
    if not task.cancelled() and task.exception() is not None:
        logger.error("What a cancelled request owes could not be settled", exc_info=task.exception())
    raise cancelled


def in_thread(function: Callable[[], object], *, waits: bool = True, seconds: float = PATIENCE) -> None:
    """Do it in another thread, and wait for that: this one may have an event loop that cannot be waited in. Raises
    `TimeoutError` where it takes longer than so many seconds; it goes on all the same. Without `waits`, it is left to
    that thread.

    Each in a thread of its own: a coroutine may be closed anywhere, also where another one is being settled.
    """
    done = Errand("settling").give(function)
    if done is None:
        function()  # As well as can be.
    elif waits:
        done.result(seconds)


@contextmanager
def unmasked(error: BaseException) -> Iterator[None]:
    """Log what fails while an interruption is dealt with, which must go on whatever happens; raise it otherwise."""
    try:
        yield
    except Exception:
        if isinstance(error, Exception):
            raise
        logger.exception("What an interrupted request owes could not be settled")
