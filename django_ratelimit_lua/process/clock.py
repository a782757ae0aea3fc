"""The clocks by which this process measures time, even while a test has frozen the time.

freezegun replaces the functions of `time`, and each name in a module that refers to one of them.
Deadlines, leases and remembered refusals must not stop, nor begin in the past or the future.
"""

from __future__ import annotations

import time


class Clock:
    """The functions of `time`. freezegun does not look into classes."""

    monotonic = time.monotonic
    perf_counter = time.perf_counter
    time_ns = time.time_ns
    time = time.time
