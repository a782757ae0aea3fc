"""The two drivers of everything that has to wait: one blocks, the other awaits.

What they drive is written once, as a generator. It yields a `Call` for the store to decide, or a `Wait` for anything
else, and is sent what came of it, or has raised in it what went wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar

from ..conf import conf
from ..limits.call import Call
from ..store import Patience, get_store

T = TypeVar("T")


class Wait(NamedTuple):
    """Something to be waited for, in two forms: a function that blocks, and one that returns an awaitable."""

    blocking: Callable[[], Any]
    awaitable: Callable[[], Awaitable[Any]]


Waiting = Generator[Call | Wait, Any, T]


def run(waiting: Waiting[T], patience: Patience | None = None) -> T:
    """What a generator returns, blocking where it waits. `patience`: how long the store may take for all its calls
    together, by default `RATELIMIT_TIMEOUT`."""
    patience = patience or Patience(conf.TIMEOUT)
    value: Any = None
    error: Exception | None = None
    try:
        while True:
            wait = waiting.send(value) if error is None else waiting.throw(error)
            value = error = None
            try:
                value = get_store().decide(wait, patience) if isinstance(wait, Call) else wait.blocking()
            except Exception as raised:
                error = raised
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    finally:
        waiting.close()  # What it holds is given back now, also where this was interrupted.


async def arun(waiting: Waiting[T], patience: Patience | None = None) -> T:
    """`run`, without blocking the event loop."""
    patience = patience or Patience(conf.TIMEOUT)
    value: Any = None
    error: Exception | None = None
    try:
        while True:
            wait = waiting.send(value) if error is None else waiting.throw(error)
            value = error = None
            try:
                value = await (get_store().adecide(wait, patience) if isinstance(wait, Call) else wait.awaitable())
            except Exception as raised:
                error = raised
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    finally:
        waiting.close()
