"""The background tasks of a process, which start, run and stop in the same way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from django_ratelimit_lua.process import tasks
from django_ratelimit_lua.process.tasks import JobRunner, Task, stop

SOON = 20.0
"""Seconds within which a thread has its turn, on a machine that is busy."""


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Task]]:
    """Replace the tasks of the process by those of the test."""
    own: set[Task] = set()
    monkeypatch.setattr(tasks, "tasks", own)
    yield own
    stop(SOON)


def test_tasks_started_during_a_stop_are_stopped_as_well(made: set[Task]) -> None:
    """If the step of a task that is being stopped starts a second task, that one is stopped too."""
    begun = threading.Event()
    second = Task("publishing", lambda: 3600.0)

    def step() -> None:
        begun.set()
        assert first_is_stopped.wait(SOON)
        second.start()

    first_is_stopped = threading.Event()
    first = Task("slots", step, wake=first_is_stopped.set)
    first.start()
    assert begun.wait(SOON)
    stop(SOON)
    assert [task.is_running for task in made] == [False, False]
    assert not [thread for thread in threading.enumerate() if thread.name == "ratelimit-publishing"]


def test_one_off_work_that_cannot_run_blocks_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process ends before the work begins, its future is cancelled."""
    jobs, start = JobRunner(), threading.Thread.start

    def stop_first(thread: threading.Thread) -> None:
        for task in tasks.all_tasks():
            task._is_over.set()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", stop_first)
    submitted = jobs.submit(lambda: None)
    assert submitted is not None
    with pytest.raises(CancelledError):
        submitted.result(SOON)
    assert not jobs.is_busy

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert jobs.submit(lambda: None) is None
    assert not jobs.is_busy
    assert jobs.wait(SOON)


@pytest.mark.parametrize("errs", [False, True], ids=["stops", "cannot be stopped"])
def test_a_process_flushes_before_it_ends(errs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final functions run even if tasks are created meanwhile or a task cannot be stopped."""
    said = []

    class Growing(set[Task]):
        def __iter__(self) -> Iterator[Task]:
            for number, task in enumerate(super().__iter__()):
                if number == 0 and len(self) < 5:
                    self.add(Task("slots", lambda: None))
                yield task

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "tasks", Growing())
        Task(
            "flush",
            lambda: None,
            wake=lambda: errs and 1 / 0,
            at_exit=lambda: said.append("goodbye"),
        )
        tasks.finish()
        assert len(tasks.all_tasks()) == 5
    assert said == ["goodbye"]


def test_the_latest_piece_of_work_is_the_last_one_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second piece is submitted while the first one is being started."""
    jobs, may_go = JobRunner(), threading.Event()
    start, later = Task.start, []

    def overtaken(task: Task) -> bool:
        monkeypatch.setattr(Task, "start", start)
        later.append(jobs.submit(lambda: may_go.wait(SOON)))
        return start(task)

    monkeypatch.setattr(Task, "start", overtaken)
    first = jobs.submit(lambda: None)
    assert first is not None
    first.result(SOON)
    assert jobs.is_busy
    may_go.set()
    assert jobs.wait(SOON)
    assert later[0].done()


def test_a_restarted_task_waits_for_its_previous_thread() -> None:
    """The old thread completes its final step before the new thread begins."""
    begun, may_go, said = threading.Semaphore(0), threading.Event(), []

    def step() -> float:
        said.append("step")
        begun.release()
        assert may_go.wait(SOON)
        return 3600.0

    task = Task("listener", step, at_stop=lambda: said.append("end"))
    task.start()
    assert begun.acquire(timeout=SOON)
    threads = [task.stop()]
    task.start()
    threads.append(task.stop())  # Also where one that has not begun is stopped.
    task.start()
    assert not begun.acquire(timeout=0.05)
    may_go.set()
    assert begun.acquire(timeout=SOON)
    assert said == ["step", "end", "end", "step"]
    for thread in threads:
        assert thread is not None
        thread.join(SOON)


def test_a_hanging_step_delays_no_other_thread_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted task waits only a limited time for its hanging thread."""
    monkeypatch.setattr(tasks, "STEP_SECONDS", 0.01)
    begun, may_go, ended = threading.Semaphore(0), threading.Event(), []

    def step() -> float:
        begun.release()
        assert may_go.wait(SOON)
        return 3600.0

    task = Task("listener", step, at_stop=lambda: ended.append(threading.current_thread()))
    task.start()
    assert begun.acquire(timeout=SOON)
    hung = task.stop()
    task.start()
    assert begun.acquire(timeout=SOON)
    may_go.set()
    assert hung is not None
    hung.join(SOON)
    assert not ended
