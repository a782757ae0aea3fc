"""`health`: check whether limits can be decided at the moment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from django.core.management.base import CommandError

from ...conf import conf
from ...engine.listener import listener
from ...operations.health import health
from ...process import Clock
from ...process.tasks import Task, all_tasks
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.status import problems
from ...web.refusal import duration_words
from . import Printer, VerbOptions, verb

LISTEN_SECONDS = 2.0
"""How long the check waits for a message about changes."""
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "listener": "receives changes of rules and resets, and checks twice a second whether the "
        "rules are current",
        "slots": "renews the slots of concurrency limits that this process holds, four times "
        "before they expire",
        "flush": "reports once a second that this process is running, gives back leased units, "
        "and writes data that was collected in memory (new bans for the list, and counts of "
        "optional apps)",
        "availability": "tests, up to four times a second, whether a server that failed repeatedly "
        "answers again",
        "publishing": "compares the published rules with the database, every ten seconds in one "
        "of the processes, and publishes changes that could not be published when they were "
        "saved, after 0.5 to 30 seconds",
        "job": "does single tasks for which no request waits long: reads or publishes rules, "
        "fetches leased units, settles a closed coroutine, sends `slot_lost`, or "
        "copies statistics to the database",
    }
)
"""The background tasks of the core, by name, in the order in which the check lists them."""
TEMPORARY = ("availability", "job")
"""The tasks that are listed only while they run."""


def background_tasks() -> list[Task]:
    """Return the background tasks of this process.

    The store's availability task is listed once for each server that has failed. A one-off task is
    listed while it runs.
    """
    names = list(TASKS)
    tasks = [task for task in all_tasks() if task.is_running or task.name not in TEMPORARY]
    return sorted(tasks, key=lambda task: names.index(task.name))


def _describe_state(task: Task) -> str:
    """Return whether a task runs, when it was done last, or why it failed."""
    if task.error is not None:
        return f"failed: {type(task.error).__name__}: {task.error}"
    state = "running" if task.is_running else "idle"
    if task.done_at == float("-inf"):  # It was never done.
        return state
    return f"{state}, last {Clock.monotonic() - task.done_at:.1f} s ago"


@verb(
    "health",
    "let Redis make a decision without counting it, and list the background tasks; exit with 1 if "
    "that fails",
)
def _check_health(command: Printer, options: VerbOptions) -> None:
    """Print a decision, the tasks, the processes and the problems of this site."""
    health()  # The first decision has to connect.
    status = health()
    if not status.ok:
        raise CommandError(
            f"Redis is unavailable: {status.error}; RATELIMIT_ON_STORE_ERROR is "
            f"{conf.ON_STORE_ERROR!r}"
        )
    revision = provider.reload_ruleset().revision.number
    rules = f"rules of revision {revision} are published" if revision else "no rules are published"
    command.write(f"a decision takes {status.seconds * 1000:.2f} ms; {rules}")
    for task in background_tasks():
        command.write(f"{task.name}: {TASKS[task.name]} ({_describe_state(task)})")
    for process in status.processes:
        age = duration_words(time.time() - process.since)
        command.write(f"process {process.pid} on {process.host}, up for {age}")
    if not listener.wait_until_listening(LISTEN_SECONDS):
        reason = listener.error or "the thread of the listener is not running"
        command.warn(f"changes of rules are not pushed, but polled: {reason}")
    for problem in dict.fromkeys([migration_problem(with_annexes=True), *problems.collect()]):
        if problem:
            command.warn(f"problem: {problem}")
