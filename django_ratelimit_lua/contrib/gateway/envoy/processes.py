"""Several processes that listen on one port (`SO_REUSEPORT`).

The kernel gives each connection to one of them.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("django_ratelimit_lua")
MIN_SECONDS = 2.0
"""A process that ends sooner than this has failed to start, and is not restarted."""


class ProcessEndedError(RuntimeError):
    """A process ended unexpectedly."""


@contextmanager
def reserve_port(host: str, port: int) -> Iterator[int]:
    """Reserve a port on which several processes may listen: the given one, or a free one for 0.

    Raises `OSError`.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        # Bound, and not listening: it takes the port and none of the connections.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
        yield holder.getsockname()[1]


def fork_processes(count: int) -> int | None:
    """Continue in this number of processes, which are restarted if they end.

    SIGTERM and SIGINT end all of them.

    Args:
        count: The number of processes.

    Returns:
        The number of the process, from 0; a restarted one has a new number. In the original
        process None, when all have ended after a signal.

    Raises:
        ProcessEndedError: A process ended right after its start.
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    started: dict[int, float] = {}
    numbers = itertools.count()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        while True:
            while len(started) < count:
                number = next(numbers)
                pid = os.fork()
                if not pid:
                    return number
                started[pid] = time.monotonic()
            if signal.sigwait(signals) != signal.SIGCHLD:
                _stop(started)
                return None
            _reap(started)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _stop(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _reap(started: dict[int, float]) -> None:
    """Remove the processes that have ended. Raises `ProcessEndedError` for one at its start."""
    for pid in list(started):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        seconds = time.monotonic() - started.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if seconds < MIN_SECONDS:
            _stop(started)
            raise ProcessEndedError(
                f"a gateway process ended at its start with the exit code {code}"
            )
        logger.error("A gateway process ended with the exit code %s, and is restarted", code)
