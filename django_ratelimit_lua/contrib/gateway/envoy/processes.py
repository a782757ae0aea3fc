"""Several processes that listen on one port: the kernel gives each connection to one of them
(`SO_REUSEPORT`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger("django_ratelimit_lua")
MIN_SECONDS = 2.0
"""A process that ends sooner than this has failed to start, and is not restarted."""


class ProcessEndedError(RuntimeError):
    """A process ended that should not have."""


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """A port that several processes may listen on: the given one, or a free one for 0.

    Raises `OSError`.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        # Bound, and not listening: it takes the port and none of the connections.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
        yield holder.getsockname()[1]


def in_processes(count: int) -> int | None:
    """Continue in this number of processes.

    Returns the number of each, from 0, and None in the original one, when all have ended after a
    signal. It forwards SIGTERM and SIGINT, and restarts processes that have ended, with new
    numbers.

    Raises `ProcessEndedError` if one ends right after its start.
    """
    watch = _Watch()
    for number in range(count):
        if watch.begin():
            return number
    return watch.keep(count)


class _Watch:
    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._is_stopping = False
        self._before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)
        }

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        self._tell_all()

    def _tell_all(self) -> None:
        for pid in list(self._began):
            os.kill(pid, signal.SIGTERM)

    def begin(self) -> bool:
        """Begin one; true in it."""
        # A signal waits until its receiver is clear: in the child it must not reach the handler of
        # this process, and here not before the child is in the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        pid = 0
        try:
            pid = os.fork()
            if not pid:
                for number, handler in self._before.items():
                    signal.signal(number, handler)
                return True
            self._began[pid] = time.monotonic()
            if self._is_stopping:
                os.kill(pid, signal.SIGTERM)
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)

    def keep(self, number: int) -> int | None:
        """Wait for all of them; the number, from this one on, in one that was begun again."""
        while self._began:
            pid, status = os.wait()
            began = self._began.pop(pid, None)
            if began is None or self._is_stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            if time.monotonic() - began < MIN_SECONDS:
                self._is_stopping = True
                self._tell_all()
                while self._began:
                    self._began.pop(os.wait()[0], None)
                raise ProcessEndedError(f"a process ended as soon as it had begun, with {code}")
            logger.error("A process of the gateway has ended with %s, and is begun again", code)
            if self.begin():
                return number
            number += 1
        return None
