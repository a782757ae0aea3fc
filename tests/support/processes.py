"""Processes of tests: servers on a port, forked children, and sites that evaluate lines.

Importing the libraries takes most of the time in which a process starts. So a `ForkServer` imports
them once, and forks a `ChildProcess` on demand, which imports the package with settings of its own.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import redis
from django.conf import settings as session_settings

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
"""None of them reads settings when it is imported."""
MAX_LENGTH = 1_000_000


def free_port() -> int:
    """Return a port of the loopback interface that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether a process listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def await_port(port: int, seconds: float = 30) -> None:
    """Wait until a process listens on a port."""
    end = time.monotonic() + seconds
    while not listens(port):
        assert time.monotonic() < end, f"no process listens on port {port}"
        time.sleep(0.05)


def until(ready: Callable[[], bool], condition: str, seconds: float = 30) -> None:
    """Wait until a function returns True. Errors of connections count as False."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(redis.RedisError, OSError):
            if ready():
                return
        time.sleep(0.05)
    raise AssertionError(f"{condition}: not within {seconds} seconds")


@contextmanager
def running(command: list[str], port: int, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that listens on a port, and terminate it at the end."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        end = time.monotonic() + 30
        while not listens(port):
            assert process.poll() is None, f"{command} has ended"
            assert time.monotonic() < end, f"{command} does not listen"
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ForkServer:
    """A process with one thread that has imported the libraries, and forks.

    It starts with the first fork, and ends with the process that has started it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def fork(self, order: bytes, *files: int) -> tuple[int, int]:
        """Fork a child with these standard streams, and return its id and a file descriptor of it.

        The child is reaped when the next one is forked, at the earliest.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start()
            socket.send_fds(self._socket, [order], files)
            pid = int(self._socket.recv(100))
            return pid, os.pidfd_open(pid)

    def _start(self) -> subprocess.Popen[bytes]:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = "from tests.support.processes import serve_forks; serve_forks()"
        environment = {**os.environ}
        # A library that reads settings when it is imported fails.
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with other:
            return subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env=environment,
                stdin=other,
                start_new_session=True,
            )

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._socket.close()
            self._process.wait(30)
            self._process = None


fork_servers = ForkServer(), ForkServer()
"""They take turns, so that the processes of a site have two different orders of hashes."""
_turns = itertools.cycle(fork_servers)


class ChildProcess:
    """A process that runs `code` as `python -c` does, with the pipes of `subprocess.Popen`."""

    def __init__(
        self, code: str, *arguments: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        input_reader, input_writer = os.pipe()
        output_reader, output_writer = os.pipe()
        self.stdin: IO[str] = open(input_writer, "w", encoding="utf-8")  # noqa: SIM115 - the caller closes both.
        self.stdout: IO[str] = open(output_reader, encoding="utf-8")  # noqa: SIM115
        try:
            order = json.dumps([code, arguments, dict(environment)]).encode()
            self.pid, self._handle = next(_turns).fork(order, input_reader, output_writer, 2)
        finally:
            os.close(input_reader)
            os.close(output_writer)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> str:
        """Close the input, wait for the end, and return the output."""
        if self.stdin.closed:
            return ""
        with self.stdin, self.stdout:
            with suppress(BrokenPipeError):
                self.stdin.close()
            output = self.stdout.read()
        self.wait(timeout)
        return output

    def wait(self, seconds: float = 30) -> None:
        """Wait until the process has ended."""
        ended = select.poll()
        ended.register(self._handle, select.POLLIN)
        if not ended.poll(seconds * 1000):
            raise subprocess.TimeoutExpired(str(self.pid), seconds)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


def serve_forks() -> None:
    """Fork a child for each order, until the socket is closed. A child returns from its code."""
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()  # No child has to look through the objects of the libraries.
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            order, files, _, _ = socket.recv_fds(orders, MAX_LENGTH, 3)
            if not order:
                return
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            pid = os.fork()
            if not pid:
                break
            orders.send(b"%d" % pid)
            for file in files:
                os.close(file)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    code, arguments, environment = json.loads(order)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    exec(code, {"__name__": "__main__"})


class Worker:
    """A process of a site (`tests.support.worker_site`) that evaluates lines.

    `worker("ask()")` returns the value of that expression there. The annexes are those of the test
    session by default.
    """

    def __init__(
        self,
        prefix: str,
        databases: dict[str, Path],
        *,
        compare_seconds: float = 3600.0,
        at: str = "",
        annexes: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        from tests.support.redis_server import url  # A fork server must not import the package.

        site = {
            "url": at or url(),
            "prefix": prefix,
            "databases": {name: str(path) for name, path in databases.items()},
            "apps": _apps(annexes),
            "settings": settings,
            "compare_seconds": compare_seconds,
        }
        environment = {**os.environ, "RATELIMIT_TEST_SITE": json.dumps(site)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        code = "from tests.support.worker_site import main; main()"
        self._process = ChildProcess(code, environment=environment)
        self.pid = self._process.pid

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Send a line, without waiting for its value."""
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the value of the line that was sent."""
        answer = self._process.stdout.readline()
        assert answer, "the process has ended"
        succeeded, value = json.loads(answer)
        assert succeeded, value
        return value

    def kill(self) -> None:
        """Kill the process, as an operator's `kill -9` does."""
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *args: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _apps(annexes: Sequence[str] | None) -> list[str]:
    """Return the package and these annexes, or None: those of the test session."""
    name = "django_ratelimit_lua"
    if annexes is None:
        return [app for app in session_settings.INSTALLED_APPS if app.startswith(name)]
    return [name, *(f"{name}.contrib.{annex}" for annex in annexes)]


def migrated(path: Path, *annexes: str) -> Path:
    """Create a migrated database at a path."""
    path.write_bytes(_migrated(annexes))
    return path


@cache
def _migrated(annexes: tuple[str, ...]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "db.sqlite3")
        with Worker("migrations:", {"default": path}, annexes=annexes or None) as worker:
            worker("call_command('migrate', verbosity=0)")
        return path.read_bytes()


def copy(source: Path, target: Path) -> Path:
    """Replace a database by a copy of another one, which no process writes to, in one step."""
    new = target.with_name(target.name + ".new")
    shutil.copyfile(source, new)
    os.replace(new, target)
    return target
