"""Health checks, for an endpoint and as a command."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_ratelimit_lua.extension import extensions
from django_ratelimit_lua.management.verbs.site import TASKS, background_tasks
from django_ratelimit_lua.operations.health import ahealth, health
from django_ratelimit_lua.process.tasks import Task, tasks

AT_TIMES = {"availability", "job"}
"""The tasks that are shown only while they run."""


def test_health_reports_that_limits_can_be_decided(direct: redis.Redis, prefix: str) -> None:
    """The check is a decision that counts nothing."""
    found = health()
    assert (found.ok, found.error, found.revision, found.is_paused) == (True, None, 0, False)
    assert 0 < found.seconds < 10
    assert asyncio.run(ahealth()).ok
    assert direct.keys(f"{prefix}*") == []


def test_health_reports_problems_within_the_deadline(settings: Any) -> None:
    """The result also says whether calls are paused. The command fails."""
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    found = [health() for _ in range(4)]
    assert not any(one.ok for one in found)
    assert "Connection refused" in str(found[0].error)
    assert [one.is_paused for one in found] == [False, False, True, True]
    assert not asyncio.run(ahealth()).ok
    with pytest.raises(CommandError, match="Redis is unavailable"):
        call_command("ratelimit", "health")


def test_the_health_command_shows_the_state() -> None:
    """The first line has the state, and each further line has a background task."""
    output = io.StringIO()
    call_command("ratelimit", "health", stdout=output, stderr=io.StringIO())
    first, *tasks = output.getvalue().splitlines()
    assert first.startswith("a decision takes ")
    assert first.endswith("no rules are published")
    # Each once: what other tests have made of the same kind may not have been let go of yet.
    names = list(dict.fromkeys(task.partition(":")[0] for task in tasks))
    of_annexes = [name for extension in extensions for name in extension.tasks]
    assert [name for name in names if name not in AT_TIMES] == [
        name for name in (*TASKS, *of_annexes) if name not in AT_TIMES
    ]
    assert all(task.endswith(")") for task in tasks)


def test_every_background_task_is_listed() -> None:
    """Each task has a name in the list, and a failed task has its error."""
    task = Task("flush", lambda: 1 / 0)
    task.start()
    end = time.monotonic() + 10
    while task.error is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert {found.name for found in background_tasks()} >= set(TASKS) - AT_TIMES
    assert {found.name for found in tasks} <= {
        *TASKS,
        *(name for each in extensions for name in each.tasks),
    }
    assert any("ZeroDivisionError" in repr(found.error) for found in background_tasks())
    del task


def test_a_task_restarts_if_it_is_started_while_it_ends() -> None:
    """Work that is added while the task ends is done, by the same thread."""
    left, done = [3], []
    threads = set()

    def step() -> float | None:
        threads.add(threading.get_ident())
        done.append(left[0])
        if left[0]:
            left[0] -= 1
            task.start()
        return None

    task = Task("slots", step)
    assert task.start()
    end = time.monotonic() + 10
    while task.is_running:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (done, len(threads)) == ([3, 2, 1, 0], 1)


def test_a_failing_task_is_logged_once_and_its_recovery_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This holds for any number of errors. The warning names the consequences of the failure."""
    errors = [ValueError("first"), KeyError("second"), None, None, OSError("third"), None]

    def step() -> float | None:
        error = errors.pop(0)
        if error is not None:
            raise error
        return 0.0 if errors else None

    caplog.set_level(logging.INFO, "django_ratelimit_lua")
    task = Task("slots", step, meanwhile="the sun shines")
    task.start()
    end = time.monotonic() + 20
    while task.is_running:
        assert time.monotonic() < end
        time.sleep(0.01)
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    fails = "The background task 'slots' failed and is retried"
    works = "The background task 'slots' works again"
    assert said == [
        ("WARNING", f"{fails}: ValueError: first. Until it succeeds, the sun shines"),
        ("WARNING", works),
        ("WARNING", f"{fails}: OSError: third. Until it succeeds, the sun shines"),
        ("WARNING", works),
    ]
