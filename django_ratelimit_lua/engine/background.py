"""The list of all background tasks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..process.tasks import Task, all_tasks

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
"""What each does, by its name, in the order in which they matter."""
AT_TIMES = ("availability", "job")
"""Those that are listed only while they run."""


def background_tasks() -> list[Task]:
    """Return the background tasks of this process.

    The store's availability task is listed once for each server that has failed. A one-off task is
    listed while it runs.
    """
    names = list(TASKS)
    tasks = [task for task in all_tasks() if task.is_running or task.name not in AT_TIMES]
    return sorted(tasks, key=lambda task: names.index(task.name))
