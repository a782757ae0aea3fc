"""A coroutine that is stopped at one of the points at which it waits, whichever that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Literal

How = Literal["cancelled", "cancelled when answered", "closed"]
HOW: tuple[How, ...] = ("cancelled", "cancelled when answered", "closed")
MAX_WAITS = 100


class Interrupted:
    """Awaits a coroutine and stops it at its wait of a number: when it begins to wait, or when it
    has just ended.

    `cancel`: by default it cancels the task. `reached`: whether there was a wait of that number.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        number: int,
        how: How,
        cancel: Callable[[], Any] | None = None,
    ) -> None:
        self.reached = False
        self._coroutine, self._number, self._how, self._cancel = coroutine, number, how, cancel

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        cancel = self._cancel or task.cancel
        value: Any = None
        error: BaseException | None = None
        count = 0
        while True:
            try:
                future = (
                    self._coroutine.send(value) if error is None else self._coroutine.throw(error)
                )
            except StopIteration as finished:
                return finished.value
            value = error = None
            count += 1
            if count == self._number:
                self.reached = True
                if self._how == "closed":
                    self._coroutine.close()
                    raise asyncio.CancelledError
                if self._how == "cancelled" or future is None:
                    cancel()
                else:
                    future.add_done_callback(lambda _: cancel())
            try:
                value = yield future
            except BaseException as raised:
                error = raised


def interrupt_each_wait(make: Callable[[], Coroutine[Any, Any, Any]], how: How) -> Iterator[int]:
    """Run a coroutine again and again, and stop it one wait later each time."""

    async def run(number: int) -> bool:
        interrupted = Interrupted(make(), number, how)

        async def wait() -> None:
            await interrupted

        task = asyncio.ensure_future(wait())
        await asyncio.wait([task])
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                raise error
        return interrupted.reached

    for number in range(1, MAX_WAITS):
        if not asyncio.run(run(number)):
            return
        yield number
    raise AssertionError("it waits for ever")
