"""Processes that begin with the libraries imported: that takes most of the time in which one
starts, and is the same for all of them. What is ours, each imports itself, with settings of its
own.

A nursery is a process of one thread that imports them, and then forks whenever it is asked to: what
is born there is a process of its own, knows nothing of ours yet, and ends as Python's do. Two of
them take turns, so that the processes of a site do not all have one order of hashes.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    "django.contrib.admin",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.test",
    "http_sf",
    "redis.asyncio.cluster",
    "redis.asyncio.sentinel",
    "yaml",
)
"""None reads settings when it is imported."""
MAX_LENGTH = 1_000_000


class Nursery:
    """Started with the first process that is wanted; ends with the process that has started it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def bear(self, told: bytes, *files: int) -> tuple[int, int]:
        """Have that run, with these as its standard input, output and errors. Returns its id and a
        handle of it.
        """
        with self._lock:
            if self._process is None:
                self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with other:
                    command = [
                        sys.executable,
                        "-c",
                        "from tests.support.nursery import main; main()",
                    ]
                    # Without settings: a library that reads them when it is imported fails.
                    own = {
                        name: value
                        for name, value in os.environ.items()
                        if name != "DJANGO_SETTINGS_MODULE"
                    }
                    self._process = subprocess.Popen(
                        command, cwd=ROOT, env=own, stdin=other, start_new_session=True
                    )
            socket.send_fds(self._socket, [told], files)
            pid = int(self._socket.recv(100))
            return pid, os.pidfd_open(
                pid
            )  # It is waited for, at the earliest, when the next is born.

    def close(self) -> None:
        """Bear no more."""
        if self._process is not None:
            self._socket.close()
            self._process.wait(30)
            self._process = None


nurseries = Nursery(), Nursery()
_turns = itertools.cycle(nurseries)


class Born:
    """A process that runs `code`, as `python -c` does: for a test, what `subprocess.Popen` is with
    pipes of text.
    """

    def __init__(
        self, code: str, *arguments: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        given, stdin = os.pipe()
        stdout, said = os.pipe()
        self.stdin: IO[str] = open(stdin, "w", encoding="utf-8")  # noqa: SIM115 - they are closed by who uses them.
        self.stdout: IO[str] = open(stdout, encoding="utf-8")  # noqa: SIM115
        try:
            told = json.dumps([code, arguments, dict(environment)]).encode()
            self.pid, self._handle = next(_turns).bear(told, given, said, 2)
        finally:
            os.close(given)
            os.close(said)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> str:
        """What it says until it has ended, which is told that it hears no more."""
        if self.stdin.closed:
            return ""
        with self.stdin, self.stdout:
            with suppress(BrokenPipeError):
                self.stdin.close()
            said = self.stdout.read()
        self.wait(timeout)
        return said

    def wait(self, seconds: float = 30) -> None:
        """Wait until it has ended."""
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        if not ended.poll(seconds * 1000):
            raise subprocess.TimeoutExpired(str(self.pid), seconds)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


def main() -> None:
    """Bear whatever is asked for, until nobody asks any more."""
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()  # What all have in common, none has to look through.
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            text, files, _, _ = socket.recv_fds(asked, MAX_LENGTH, 3)
            if not text:
                return
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            pid = os.fork()
            if not pid:
                break
            asked.send(b"%d" % pid)
            for file in files:
                os.close(file)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    code, arguments, environment = json.loads(text)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    exec(code, {"__name__": "__main__"})
