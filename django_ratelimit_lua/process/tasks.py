"""Background work of a process: tasks, each in its own thread while it has work.

A task starts with the first caller that needs it, again in a child process, and ends with the
process. `management/verbs/site.py` lists them. This is the only module that starts threads, and
that hooks the end of the process: by Python's `atexit`, or by multiprocessing, because its children
end without `atexit`.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from . import Clock
from .forks import renew_after_fork

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")

RETRY_SECONDS = 1.0
"""Seconds until a failed step is repeated, and until another attempt to start a thread."""
STEP_SECONDS = 20.0
"""How long the thread of a restarted task waits for the previous one, which may be in a step."""
LAST_SECONDS = 0.25
"""For how long a process that ends waits for what its tasks are doing."""
LAST_OF_ALL = -1000
"""The priority of the finalizer in multiprocessing: after others, and after the process's own
children, which may still decide.
"""

tasks: WeakSet[Task] = WeakSet()
_has_finalizer = False
"""Whether the finalizer is registered, if this process is a child of multiprocessing."""


@renew_after_fork
def _forget_finalizer() -> None:
    global _has_finalizer
    _has_finalizer = False


def all_tasks() -> list[Task]:
    """Return the tasks of this process, even while another thread makes one."""
    while True:
        try:
            return list(tasks)
        except RuntimeError:  # The set has changed its size during the iteration.
            continue


class Task:
    """Repeats `step`, from `start` on, until there is no more work.

    - `step`: returns the seconds until it is repeated, or None if there is no more work. If it
      raises, the exception is stored as `error`, and the step is repeated. The log reports the
      first failure and the recovery;
    - `meanwhile`: the consequence of a failure, for the log;
    - `delay`: the seconds from the start to the first step;
    - `wake`: ends a wait in a step, so that the task can be stopped at once;
    - `at_stop`: called last by its thread when the task is stopped;
    - `at_exit`: called when the process ends, whether a thread runs or not.

    If no thread can be started, `start` returns False. The caller works without the task, and later
    calls try again.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        meanwhile: str = "limits are decided as usual",
        delay: Callable[[], float] | float = 0.0,
        wake: Callable[[], object] | None = None,
        at_stop: Callable[[], object] | None = None,
        at_exit: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._meanwhile = meanwhile
        self._delay = delay
        self._wake = wake
        self._at_stop = at_stop
        self.at_exit = at_exit
        self._begin()
        renew_after_fork(self._begin)
        tasks.add(self)

    def _begin(self) -> None:
        """Set the state of a task that has not been started, in this process."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        """Ends the latest thread as soon as it is set."""
        self._at_work = self._is_over
        """That of the thread that is running steps. An earlier thread may still be in its step."""
        self.is_running = False
        self._is_wanted = False
        """Whether the task was started since its thread began with the latest step."""
        self._refused_at = float("-inf")
        self.done_at = float("-inf")
        self.error: BaseException | None = None

    def start(self) -> bool:
        """Ensure that a step of the task runs, or runs once more. Return whether it will."""
        if self._is_wanted:
            return True
        with self._lock:
            _register_finalizer()
            if not self.is_running and Clock.monotonic() - self._refused_at >= RETRY_SECONDS:
                self._start_new_thread()
            self._is_wanted = self.is_running
            return self.is_running

    def _start_new_thread(self) -> None:
        """Start the thread, and set `is_running` if the system did not refuse one.

        The caller holds the lock.
        """
        self.is_running = True  # Before the start: a thread that fails at once sets it to False.
        self._is_over = threading.Event()
        self.error = None
        arguments = (self._is_over, self._thread)
        thread = _start_thread(self._run, f"ratelimit-{self.name}", *arguments)
        if thread is None:
            self.is_running = False
            self._refused_at = Clock.monotonic()
        else:
            self._thread = thread

    def stop(self) -> threading.Thread | None:
        """Run no step of the task after the current one, until the task is started again.

        Return the thread that ends, if there is one.
        """
        with self._lock:
            thread = None
            if self.is_running:
                thread = self._thread
            self._is_over.set()
            self.is_running = False
            self._is_wanted = False
        if self._wake is not None:
            self._wake()
        return thread

    def _run(self, is_over: threading.Event, previous: threading.Thread | None) -> None:
        """Repeat the step in this thread until there is no more work, or `is_over` is set.

        The thread first waits for the `previous` one, which may be in a step.
        """
        try:
            if previous is not None:
                previous.join(STEP_SECONDS)
            self._at_work = is_over
            pause: float | None = self._first_pause()
            while not is_over.wait(pause):
                # A caller that starts the task from now on may have more work than this step does.
                self._is_wanted = False
                pause = self._run_step()
                if pause is None:
                    if self._end_unless_wanted(is_over):
                        return
                    pause = self._first_pause()
            # If the last step took too long, another thread is at work.
            if self._at_stop is not None and self._at_work is is_over:
                self._at_stop()
        except BaseException:
            if not is_over.is_set():  # Otherwise another thread may run by now.
                self.is_running = False
                self._is_wanted = False
            raise

    def _end_unless_wanted(self, is_over: threading.Event) -> bool:
        """End the task, unless it was started or stopped again. Return whether it has ended."""
        with self._lock:
            if self._is_wanted or is_over.is_set():
                return False
            self.is_running = False
            return True

    def _first_pause(self) -> float:
        if callable(self._delay):
            return self._delay()
        return self._delay

    def _run_step(self) -> float | None:
        """Run the step once, and log if it fails or works again.

        Return the seconds until the next step, or None if there is no more work.
        """
        try:
            pause = self._step()
        except Exception as error:
            if self.error is None:
                logger.warning(
                    "The background task %r failed and is retried: %s: %s. Until it succeeds, %s",
                    self.name,
                    type(error).__name__,
                    error,
                    self._meanwhile,
                )
            self.error = error
            return RETRY_SECONDS
        if self.error is not None:
            logger.warning("The background task %r works again", self.name)
        self.error = None
        self.done_at = Clock.monotonic()
        return pause


class JobRunner:
    """Runs one-off jobs, each in its own thread, for callers that may wait for the result."""

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._latest: Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether the latest job is not done yet."""
        return self._latest is not None and not self._latest.done()

    def submit(self, job: Callable[[], T]) -> Future[T] | None:
        """Start a job, and return its future; None if no thread can be started.

        The future is cancelled if the process ends before the job begins.
        """
        future: Future[T] = Future()

        def run_job() -> None:
            if future.done():  # A task may run its step once more than it was started.
                return
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self._latest = future
        if Task("job", run_job, at_stop=future.cancel).start():
            return future
        future.cancel()
        return None

    def wait(self, seconds: float) -> bool:
        """Wait until the latest job is done, for at most `seconds`. Return whether it is done."""
        latest = self._latest
        with suppress(Exception):
            if latest is not None:
                latest.exception(seconds)
        return latest is None or latest.done()


def stop(seconds: float) -> None:
    """End all tasks, and wait for their steps for at most `seconds`.

    Each starts again with the next caller that needs it.
    """
    end = Clock.monotonic() + seconds
    while True:
        threads = [thread for task in all_tasks() if (thread := task.stop()) is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - Clock.monotonic()))
        # The last step of a task may have started another task.
        if not threads or Clock.monotonic() >= end:
            return


def _start_thread(
    work: Callable[..., object], name: str, *arguments: object
) -> threading.Thread | None:
    """Start a daemon thread. Return it, or None if it cannot be started.

    The system may refuse another thread, and Python 3.12 starts none while the interpreter ends.
    """
    try:
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
    except (RuntimeError, MemoryError):
        return None
    return thread


def _register_finalizer() -> None:
    """Register the finalizer once, if this process is a child of multiprocessing.

    Such a child ends by `os._exit`, without Python's `atexit`. It is registered when a task starts,
    and not earlier, because the child drops earlier registrations when it begins.
    """
    global _has_finalizer
    if _has_finalizer:
        return
    _has_finalizer = True
    multiprocessing = sys.modules.get("multiprocessing")  # Else this is no child of it.
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=LAST_OF_ALL)


@atexit.register
def finish() -> None:
    """Do the last work of the process, for servers that end processes without `atexit`."""
    with suppress(Exception):
        stop(LAST_SECONDS)
    for task in all_tasks():
        with suppress(Exception):
            if task.at_exit is not None:
                task.at_exit()
