"""The list of all background tasks, and the state of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..extension import extensions
from ..process.tasks import all_tasks

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "listener": "receives changes of rules and resets, and checks twice a second whether the "
        "rules are current",
        "heartbeat": "reports every two seconds that this process is running, while limits are "
        "shared among processes",
        "leases": "returns unspent leased units, ten times a second while there are any",
        "slots": "renews the slots of concurrency limits that this process holds, four times "
        "before they expire",
        "flush": "writes data that was collected in memory (evidence of bans, and counts of "
        "optional apps), once a second while there is any",
        "breaker": "tests, up to four times a second, whether a server that failed repeatedly "
        "answers again",
        "fallback": "reports to Redis, five times a second, the units that were admitted without "
        "it, until all are reported",
        "publishing": "compares the published rules with the database, every ten seconds in one "
        "of the processes, and publishes changes that could not be published when they were "
        "saved, after 0.5 to 30 seconds",
        "errand": "does single tasks for which no request waits long: reads or publishes rules, "
        "settles a closed coroutine, sends `slot_lost`, or records the use of a token",
    }
)
"""By name, in the order in which they matter; optional apps have further ones."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a background task of this process."""

    name: str
    purpose: str
    is_running: bool
    seconds_ago: float | None
    error: str


def background_tasks() -> list[TaskState]:
    """Return the background tasks of this process.

    The store's availability task is listed once for each server that has failed. A one-off task is
    listed while it runs.
    """
    now = time.monotonic()
    states = []
    purposes = dict(TASKS)
    for extension in extensions:
        purposes.update(extension.tasks)
    for task in sorted(all_tasks(), key=lambda task: list(purposes).index(task.name)):
        ago = None
        if task.done_at != float("-inf"):
            ago = now - task.done_at
        error = ""
        if task.error is not None:
            error = f"{type(task.error).__name__}: {task.error}"
        if task.is_running or task.name not in ("breaker", "errand"):
            states.append(TaskState(task.name, purposes[task.name], task.is_running, ago, error))
    return states
