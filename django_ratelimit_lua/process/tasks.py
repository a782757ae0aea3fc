"""What a process does beside its requests: tasks, each in a thread of its own while there is something to do.

A task starts with the first who needs it, anew in a child process, and ends with the process. `engine/background.py`
lists them all.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from .forks import renew_after_fork, start_thread

RETRY_SECONDS = 1.0
"""After so long a step that failed is done again, and a thread that could not be started is tried to be started."""

tasks: WeakSet[Task] = WeakSet()


class Task:
    """Does `step` again and again, from `start` on, until there is nothing more to do.

    `step` returns after how many seconds it is to be done again, or None where there is nothing more to do; what it
    raises is kept as `error`, and it is done again. `delay`: seconds from the start to the first step; `at_exit`: what
    the process has to do when it ends.

    Where no thread can be started, `start` tells so: whoever needs the task does without it, and later calls try again.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        delay: Callable[[], float] | float = 0.0,
        at_exit: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._delay = delay
        self.at_exit = at_exit
        self._begin()
        renew_after_fork(self._begin)
        tasks.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.is_running = self._is_wanted = False
        self._refused_at = self.done_at = float("-inf")
        self.error: Exception | None = None

    def start(self) -> bool:
        """See to it that a step is done, or done once more; whether it will be."""
        if self._is_wanted:
            return True
        with self._lock:
            if not self.is_running and time.monotonic() - self._refused_at >= RETRY_SECONDS:
                self.is_running = start_thread(self._run, f"ratelimit-{self.name}") is not None
                self._refused_at = float("-inf") if self.is_running else time.monotonic()
            self._is_wanted = self.is_running
            return self.is_running

    def _run(self) -> None:
        try:
            pause: float | None = self._first_pause()
            while pause is not None:
                if pause > 0.0:
                    time.sleep(pause)
                # Who starts it from now on may have more to do than this step sees.
                self._is_wanted = False
                pause = self._do()
                if pause is None:
                    with self._lock:
                        if not self._is_wanted:
                            self.is_running = False
                            return
                    pause = self._first_pause()
        except BaseException:  # Not otherwise: another thread may run by now.
            self.is_running = self._is_wanted = False
            raise

    def _first_pause(self) -> float:
        return self._delay() if callable(self._delay) else self._delay

    def _do(self) -> float | None:
        try:
            pause = self._step()
        except Exception as error:
            self.error = error
            return RETRY_SECONDS
        self.error, self.done_at = None, time.monotonic()
        return pause


@atexit.register
def _at_exit() -> None:
    for task in list(tasks):
        with suppress(Exception):
            if task.at_exit is not None:
                task.at_exit()
