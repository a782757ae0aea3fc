"""The flusher: the one task that writes collected data from memory, once a second."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..process.tasks import Task
from .deadline import Deadline, exit_deadline

FLUSH_SECONDS = 1.0

Flush = Callable[[Deadline | None], bool]
"""Writes what was collected, and returns whether to flush again a second later. Raises
`StoreError`.

The argument is None, or the time that is left if the process ends.
"""


class Flusher(Task):
    """Calls each of its functions once a second, and once more when the process ends.

    It runs from `start` until no function has more to write. A failure of one function does not
    delay the others.
    """

    def __init__(self) -> None:
        meanwhile = "limits are decided as usual, and collected data is kept up to a maximum"
        super().__init__(
            "flush",
            self._flush_all,
            meanwhile=meanwhile,
            delay=FLUSH_SECONDS,
            at_exit=self._flush_last,
        )
        self._flushes: list[Flush] = []

    def add(self, flush: Flush, *, is_urgent: bool = False) -> None:
        """Call this function with each flush.

        Urgent functions are called first, because others may take seconds.
        """
        if is_urgent:
            self._flushes.insert(0, flush)
        else:
            self._flushes.append(flush)

    def _flush_all(self) -> float | None:
        """Call all functions. Return the seconds until the next time, or None.

        Raises the last error of a function after all were called.
        """
        error: Exception | None = None
        is_needed_again = False
        for flush in self._flushes:
            try:
                if flush(None):
                    is_needed_again = True
            except Exception as raised:
                error = raised
        if error is not None:
            raise error.with_traceback(None)  # `Task.error` keeps it, without the frames.
        if not is_needed_again:
            return None
        return FLUSH_SECONDS

    def _flush_last(self) -> None:
        """Call all functions once more, because the process ends."""
        deadline = exit_deadline()
        for flush in self._flushes:
            with suppress(Exception):
                flush(deadline)


flusher = Flusher()
