"""Waiting for a turn that was reserved, and giving it back where the one who waits is stopped.

A turn is taken before it is waited for. Whoever is cancelled or interrupted meanwhile owes it to the others: exactly
that turn, by the moment from which it counts, and whatever else happens to the one who gives it back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from ..limits.call import Call, Charge
from ..limits.decision import Decision
from .decide import build_call

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")


def refunds(decision: Decision, taken: Iterable[tuple[Charge, int]]) -> list[Call]:
    """The calls that give back what a decision took: charges, each with the moment from which it counts.

    A moment of 0 is the decision's own.
    """
    by_moment: dict[int, list[Charge]] = {}
    for charge, moment in taken:
        by_moment.setdefault(moment or decision.counted_at(charge.digest), []).append(charge)
    return [replace(build_call(charges, "refund"), hit_at=moment) for moment, charges in by_moment.items()]


def hold(seconds: float, give_back: Callable[[], object]) -> None:
    """Sleep until it is one's turn; who is interrupted meanwhile gives it back."""
    try:
        time.sleep(seconds)
    except BaseException as error:
        with unmasked(error):
            give_back()
        raise


async def ahold(
    seconds: float, give_back: Callable[[], Coroutine[Any, Any, object]], give_back_now: Callable[[], object]
) -> None:
    """`hold`, for coroutines. `give_back_now` is for a coroutine that is closed, and cannot wait for anything more."""
    try:
        await asyncio.sleep(seconds)
    except GeneratorExit as error:
        with unmasked(error):
            in_thread(give_back_now)
        raise
    except BaseException as error:
        with unmasked(error):
            await to_the_end(give_back())
        raise


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


def in_thread(function: Callable[[], object]) -> None:
    """Do it in a thread of its own, and wait for that: this one may have an event loop that cannot be waited in."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call, name="ratelimit-settle", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@contextmanager
def unmasked(error: BaseException) -> Iterator[None]:
    """Log what fails while an interruption is dealt with, which must go on whatever happens; raise it otherwise."""
    try:
        yield
    except Exception:
        if isinstance(error, Exception):
            raise
        logger.exception("What an interrupted request owes could not be settled")
