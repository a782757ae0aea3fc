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
        "listener": "hears of changes of rules and of resets, and asks twice a second whether the "
        "rules are current",
        "heartbeat": "says every two seconds that this process is there, where its share of a "
        "limit may be needed",
        "leases": "gives back what was taken ahead of hot limits and not spent, ten times a "
        "second while any is left",
        "slots": "renews the slots of concurrency limits that this process holds, four times "
        "while they last",
        "flush": "writes what was collected in memory (evidence of bans, and what annexes count), "
        "a second "
        "after the first of it",
        "breaker": "tries, up to four times a second, whether a server answers again that has "
        "failed repeatedly",
        "fallback": "tells Redis five times a second what was admitted without it, until all is "
        "told",
        "publishing": "compares what is published with the database, every ten seconds of one of "
        "the processes, and "
        "publishes what could not be published when it was saved, after half a second to thirty",
        "errand": "does once what no request may wait for long: reads or publishes rules, settles "
        "what a closed "
        "coroutine owes, sends `slot_lost`, or records the use of a token",
    }
)
"""By name, in the order in which they matter; annexes have further ones."""


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
