"""State and work of one process: its clocks, forks, background tasks, and bounded maps.

This package starts background work when it is first needed, and again after a fork. It imports
nothing from the other rooms, and does not know what the tasks do.
"""

from __future__ import annotations

import time

__all__ = ["Clock", "forks", "tasks"]


class Clock:
    """The clocks by which this process measures time, even while a test has frozen the time.

    freezegun replaces the functions of `time`, and each name in a module that refers to one of
    them, but it does not look into classes. Deadlines, leases and cached refusals must not stop,
    nor begin in the past or the future.
    """

    monotonic = time.monotonic
    perf_counter = time.perf_counter
    time_ns = time.time_ns
    time = time.time
