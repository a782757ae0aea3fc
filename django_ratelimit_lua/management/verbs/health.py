"""`health`: check whether limits can be decided at the moment."""

from __future__ import annotations

import time

from django.core.management.base import CommandError

from ...conf import conf
from ...engine.background import TASKS, background_tasks
from ...engine.listener import listener
from ...operations.health import health
from ...process.clock import Clock
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.problems import problems
from ...web.durations import duration_words
from . import Printer, VerbOptions, verb

LISTEN_SECONDS = 2.0
"""How long the check waits for a message about changes."""


@verb(
    "health",
    "let Redis make a decision without counting it, and list the background tasks; exit with 1 if "
    "that fails",
)
def _health(command: Printer, options: VerbOptions) -> None:
    health()  # The first decision has to connect.
    status = health()
    if not status.ok:
        raise CommandError(
            f"Redis is unavailable: {status.error}; RATELIMIT_ON_STORE_ERROR is "
            f"{conf.ON_STORE_ERROR!r}"
        )
    revision = provider.reload().revision.number
    rules = f"rules of revision {revision} are published" if revision else "no rules are published"
    command.say(f"a decision takes {status.seconds * 1000:.2f} ms; {rules}")
    for task in background_tasks():
        state = "idle"
        if task.error is not None:
            state = f"failed: {type(task.error).__name__}: {task.error}"
        elif task.is_running:
            state = "running"
        if task.done_at != float("-inf") and task.error is None:
            state += f", last {Clock.monotonic() - task.done_at:.1f} s ago"
        command.say(f"{task.name}: {TASKS[task.name]} ({state})")
    for process in status.processes:
        age = duration_words(time.time() - process.since)
        command.say(f"process {process.pid} on {process.host}, up for {age}")
    if not listener.wait(LISTEN_SECONDS):
        reason = listener.error or "the thread of the listener is not running"
        command.warn(f"changes of rules are not pushed, but polled: {reason}")
    for problem in dict.fromkeys([migration_problem(with_annexes=True), *problems.found()]):
        if problem:
            command.warn(f"problem: {problem}")
