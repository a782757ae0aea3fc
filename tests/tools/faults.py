"""`make faults`: the effect of faults of Redis on requests under load, in one table.

Three processes with two threads each send requests to views with two equal limits: one is "closed"
while Redis is unavailable, the other "local". The fault begins after a second and a half and lasts
two seconds. The run ends after seven seconds, or later on a busy machine, when each limit has got a
quarter more requests than it admits. The status, the duration and the source of each decision are
recorded.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_ratelimit_lua.testing.server import Server
from tests.support import clusters
from tests.support.clusters import client
from tests.support.processes import ChildProcess

PROCESSES, THREADS, PAUSE = 3, 2, 0.016
LIMIT, PERIOD = 650, "12h"
HURT_AT, HEALED_AT, END = 1.5, 3.5, 7.0
DEADLINE = 0.1
BREAKER_OPEN_AFTER = 0.8
LIBFAKETIME = next(
    (str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")),
    shutil.which("libfaketime.so.1"),
)


@dataclass
class Hurt:
    """Servers under test: their `CACHES`, and the beginning and the end of a fault."""

    caches: dict[str, Any]
    inject: Callable[[], Any]
    heal: Callable[[], Any] = lambda: None
    threads: int = THREADS


def alias(url: str, **options: Any) -> dict[str, Any]:
    return {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
    }


def every(seconds: float, act: Callable[[], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that start and stop repeating an action."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat)

    def stop() -> None:
        over.set()
        thread.join()

    return thread.start, stop


@contextmanager
def nothing() -> Iterator[Hurt]:
    with Server() as server:
        yield Hurt(alias(server.url), lambda: None)


@contextmanager
def killed() -> Iterator[Hurt]:
    with Server() as server, contextmanager(_another)(server) as heal:
        yield Hurt(alias(server.url), lambda: clusters.kill(server), heal)


def _another(server: Server, *options: str) -> Iterator[Callable[[], None]]:
    """Yield a function that starts another server on the same port."""
    other = Server(server.binary, *(options or server.options), port=server.port)
    try:
        yield lambda: other.start()
    finally:
        other.stop()


@contextmanager
def hung() -> Iterator[Hurt]:
    with Server() as server:
        try:
            yield Hurt(
                alias(server.url),
                lambda: os.kill(server.pid, signal.SIGSTOP),
                lambda: os.kill(server.pid, signal.SIGCONT),
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)


@contextmanager
def restarted(*options: str, keys: int = 0) -> Iterator[Hurt]:
    with tempfile.TemporaryDirectory() as folder:
        kept = ("--dir", folder)

        def shut_down() -> None:
            with client(server.port) as direct, suppress(Exception):
                direct.shutdown(save=True)

        with (
            Server(None, *kept) as server,
            contextmanager(_another)(server, *kept, *options) as start,
        ):
            with client(server.port) as direct, direct.pipeline() as pipeline:
                for number in range(keys):
                    pipeline.set(f"other {number}", "x" * 100)
                pipeline.execute()

            def hurt() -> None:
                shut_down()
                if keys:  # The server loads them slowly.
                    threading.Thread(target=suppressed(start)).start()

            yield Hurt(alias(server.url), hurt, (lambda: time.sleep(1.5)) if keys else start)


def suppressed(act: Callable[[], Any]) -> Callable[[], None]:
    def acted() -> None:
        with suppress(Exception):
            act()

    return acted


def loading() -> Any:
    return restarted(
        "--key-load-delay", "400", "--loading-process-events-interval-bytes", "1024", keys=4000
    )


@contextmanager
def scripts_flushed() -> Iterator[Hurt]:
    with Server() as server, client(server.port) as direct:
        start, stop = every(0.02, direct.script_flush)
        yield Hurt(alias(server.url), start, stop)


def commanded(hurt: list[Any], heal: list[Any]) -> Callable[[], Any]:
    """Return a fault that a command begins and another one ends."""

    @contextmanager
    def fault() -> Iterator[Hurt]:
        with Server() as server, client(server.port) as direct:
            yield Hurt(
                alias(server.url),
                lambda: direct.execute_command(*hurt),
                (lambda: direct.execute_command(*heal)) if heal else lambda: None,
            )

    return fault


@contextmanager
def busy() -> Iterator[Hurt]:
    with Server(None, "--lua-time-limit", "50") as server, client(server.port) as direct:

        def hog() -> None:
            with client(server.port) as other, suppress(Exception):
                other.eval("while true do end", 0)

        yield Hurt(alias(server.url), threading.Thread(target=hog).start, direct.script_kill)


@contextmanager
def crowded() -> Iterator[Hurt]:
    """One connection for eight threads, to a server that pauses repeatedly."""
    with Server() as server:

        def stall() -> None:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(0.06)
            os.kill(server.pid, signal.SIGCONT)

        start, stop = every(0.02, stall)
        options = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
        yield Hurt(alias(server.url, **options), start, stop, threads=8)


class Wire:
    """A proxy between clients and a server, which can disturb the connections.

    - `delay`: seconds before each reply;
    - `tears`: every third reply is cut, and the connection is reset;
    - `is_deaf`: connections that subscribe get nothing more;
    - `is_cut`: no connection passes anything on.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.tears = self.is_deaf = self.is_cut = False
        self._listening: set[socket.socket] = set()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for ends in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        count, client = 0, target if is_reply else source
        with suppress(OSError), source, target:
            while data := source.recv(65536):
                count += 1
                if b"SUBSCRIBE" in data and not is_reply:
                    self._listening.add(client)
                if self.is_cut or (self.is_deaf and client in self._listening):
                    continue
                if is_reply and self.delay:
                    time.sleep(self.delay)
                if is_reply and self.tears and count % 3 == 0:
                    target.sendall(data[: len(data) // 2])
                    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    # The socket stays open while the other thread reads from it.
                    target.shutdown(socket.SHUT_RD)
                    return
                target.sendall(data)


@contextmanager
def wired(**changes: Any) -> Iterator[Hurt]:
    with Server() as server:
        wire = Wire(server.port)

        def change(**to: Any) -> None:
            vars(wire).update(to)

        try:
            yield Hurt(
                alias(f"redis://127.0.0.1:{wire.port}/0"),
                lambda: change(**changes),
                lambda: change(delay=0.0, tears=False),
            )
        finally:
            wire.close()


@contextmanager
def stepped(hours: int) -> Iterator[Hurt]:
    """The clock of the server jumps once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "offset")
        file.write_text("+0")
        script = Path(folder, "server")
        server = Server()
        script.write_text(
            f"#!/bin/sh\nLD_PRELOAD={LIBFAKETIME} FAKETIME_TIMESTAMP_FILE={file} "
            "FAKETIME_NO_CACHE=1 "
            f'DONT_FAKE_MONOTONIC=1 exec {server.binary} "$@"\n'
        )
        script.chmod(0o755)
        with Server(str(script)) as server:
            yield Hurt(alias(server.url), lambda: file.write_text(f"{hours:+d}h"))


@contextmanager
def sentinel_failover() -> Iterator[Hurt]:
    with clusters.watched() as found:
        yield Hurt(found.cache(), lambda: clusters.kill(found.master()))


def limit_key(found: clusters.Cluster) -> bytes:
    """Return the key of a limit of the load."""
    for server in found.servers:
        with suppress(Exception), client(server.port) as direct:
            for key in direct.keys("rl:*closed*"):
                return bytes(key)
    raise AssertionError("nothing is counted")


@contextmanager
def cluster_failover() -> Iterator[Hurt]:
    with clusters.cluster() as found:
        yield Hurt(found.cache(), lambda: clusters.kill(found.master_of(limit_key(found))))


@contextmanager
def resharding() -> Iterator[Hurt]:
    with clusters.cluster() as found:

        def move() -> None:
            key = limit_key(found)
            source = found.master_of(key)
            target = next(server for server in found.servers[:3] if server is not source)
            found.move(key, target, while_moving=lambda: time.sleep(0.03))

        start, stop = every(0.05, move)
        yield Hurt(found.cache(), start, stop)


FAULTS: dict[str, Callable[[], Any]] = {
    "nothing": nothing,
    "kill -9, restarted empty": killed,
    "hung (SIGSTOP)": hung,
    "restarted with its data": restarted,
    "LOADING": loading,
    "SCRIPT FLUSH, 50 a second": scripts_flushed,
    "FLUSHALL": commanded(["FLUSHALL"], []),
    "READONLY (made a replica)": commanded(
        ["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]
    ),
    "full (maxmemory, noeviction)": commanded(
        ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]
    ),
    "BUSY (a script that never ends)": busy,
    "ACL: EVALSHA taken away": commanded(
        ["ACL", "SETUSER", "default", "-evalsha"], ["ACL", "SETUSER", "default", "+evalsha"]
    ),
    "one connection for 8 threads, stalls": crowded,
    "connections reset in mid-reply": lambda: wired(tears=True),
    "200 ms of latency": lambda: wired(delay=0.2),
    "server's clock + 1 h": lambda: stepped(1),
    "server's clock - 1 h": lambda: stepped(-1),
    "Sentinel: master killed": sentinel_failover,
    "Cluster: master killed": cluster_failover,
    "Cluster: slot moved, 5 a second": resharding,
}
LOSES = {
    "kill -9, restarted empty",
    "FLUSHALL",
    "server's clock - 1 h",
    "Sentinel: master killed",
    "Cluster: master killed",
}
"""Faults that lose data. If the clock is set back by more than a minute, windows and logs
start again.
"""


@dataclass
class Outcome:
    """The requests of a run: (seconds since the start, duration, status, limit, source)."""

    requests: list[tuple[float, float, int, str, str]]
    hurt_at: float = HURT_AT
    """When the fault began, which may be later than planned."""

    def admitted(self, limit: str, until: float = END + 60, source: str | None = None) -> int:
        return sum(
            status == 200 and of == limit and at < until and source in (None, by)
            for at, _, status, of, by in self.requests
        )

    def over(self, limit: str) -> int:
        """Return the number of requests admitted beyond the limit."""
        return max(0, self.admitted(limit) - LIMIT)

    @property
    def failed(self) -> int:
        """Return the number of requests that were neither admitted nor refused."""
        return sum(status not in (200, 429) for _, _, status, _, _ in self.requests)

    def p99(self, since: float, until: float, source: str | None = None) -> float | None:
        """Return the 99th percentile of the duration of requests, in milliseconds."""
        taken = sorted(
            seconds
            for at, seconds, _, _, by in self.requests
            if since <= at < until and source in (None, by)
        )
        return taken[int(len(taken) * 0.99)] * 1000 if taken else None


def run(name: str) -> Outcome:
    """Run the load during a fault."""
    with FAULTS[name]() as hurt:
        environment = {
            **os.environ,
            "RATELIMIT_FAULT": json.dumps({"caches": hurt.caches, "threads": hurt.threads}),
        }
        load = ChildProcess("from tests.tools.faults import load; load()", environment=environment)
        try:
            assert load.stdout.readline() == "ready\n"
            started = time.time() + 0.2
            load.stdin.write(f"{started}\n")
            load.stdin.flush()
            time.sleep(started + HURT_AT - time.time())
            hurt.inject()
            hurt_at = time.time() - started
            time.sleep(max(0.0, started + HEALED_AT - time.time()))
            hurt.heal()
            requests = json.loads(load.communicate(120))
        finally:
            load.kill()
            load.communicate()
    return Outcome([tuple(one) for one in requests], hurt_at)


def load() -> None:
    """Run the load in processes forked from one that has loaded the site, as servers do."""
    import django
    from django.conf import settings

    job = json.loads(os.environ["RATELIMIT_FAULT"])
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        CACHES=job["caches"],
        RATELIMIT_TIMEOUT=DEADLINE,
        LOGGING_CONFIG=None,
    )
    factory = job["caches"]["default"]["OPTIONS"].get("CONNECTION_FACTORY", "")
    if "Sentinel" in factory:
        settings.DJANGO_REDIS_CONNECTION_FACTORY = factory
    django.setup()
    import logging

    import django.test  # The children do not have to import it.

    logging.disable()
    urlpatterns.extend(_views())
    forking = multiprocessing.get_context("fork")
    workers: list[Any] = []
    for _ in range(PROCESSES):
        near, far = forking.Pipe()
        forking.Process(target=work, args=(far, job["threads"], [*workers, near])).start()
        far.close()  # Else the end of a child is not noticed.
        workers.append(near)
    for _ in range(2):  # With the second heartbeat, each counts all processes.
        for worker in workers:
            worker.send(None)
        for worker in workers:
            worker.recv()
    print("ready", flush=True)
    started = float(sys.stdin.readline())
    for worker in workers:
        worker.send(started)
    print(json.dumps([request for worker in workers for request in worker.recv()]), flush=True)


urlpatterns: list[Any] = []


def _views() -> Iterator[Any]:
    """Yield a view for each policy, and one to warm up."""
    from django.http import HttpResponse
    from django.urls import path

    from django_ratelimit_lua import ratelimit

    for name, rate, options in (
        ("closed", f"{LIMIT}/{PERIOD}", {"on_store_error": "closed"}),
        ("local", f"{LIMIT}/{PERIOD}", {"on_store_error": "local"}),
        ("warm", "1000/s", {}),
    ):

        def view(request: Any) -> HttpResponse:
            return HttpResponse("ok")

        limit = ratelimit(name, key=lambda group, request: "everyone", rate=rate, **options)
        yield path(name, limit(view))


def work(pipe: Any, thread_count: int, others: Sequence[Any]) -> None:
    """Send requests in one process of the load."""
    from django.test import Client

    from django_ratelimit_lua.engine.heartbeat import heartbeat

    for other in others:  # The ends of the parent.
        other.close()
    Client().get("/warm")
    for _ in range(2):
        pipe.recv()
        heartbeat.beat()
        pipe.send(None)
    started = pipe.recv()
    found: list[Any] = []
    fewest = 2 * LIMIT * 5 // 4 // (PROCESSES * thread_count)

    def send() -> None:
        browser = Client(raise_request_exception=False)
        number = 0
        while (now := time.time()) < started + END or number < fewest:
            of = ("closed", "local")[number % 2]
            number += 1
            began = time.perf_counter()
            response = browser.get(f"/{of}")
            seconds = time.perf_counter() - began
            decision = getattr(getattr(response, "wsgi_request", None), "ratelimit", None)
            found.append(
                (now - started, seconds, response.status_code, of, getattr(decision, "source", ""))
            )
            time.sleep(PAUSE)

    threads = [threading.Thread(target=send) for _ in range(thread_count)]
    time.sleep(max(0.0, started - time.time()))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(found)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def table(outcomes: dict[str, Outcome]) -> str:
    """Return the outcomes as a table of reStructuredText."""
    head = (
        "Fault",
        "Requests",
        "500s",
        "p99 before, ms",
        "p99 during, ms",
        "p99 once open, ms",
        "Over: closed",
        "local",
    )
    rows = [head]
    for name, outcome in outcomes.items():
        opened = outcome.p99(HURT_AT + BREAKER_OPEN_AFTER, HEALED_AT, "fallback")
        rows.append(
            (
                name + (" *" if name in LOSES else ""),
                str(len(outcome.requests)),
                str(outcome.failed),
                _ms(outcome.p99(0.5, HURT_AT)),
                _ms(outcome.p99(HURT_AT, HEALED_AT)),
                _ms(opened),
                str(outcome.over("closed")),
                str(outcome.over("local")),
            )
        )
    return aligned(rows)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as a table of reStructuredText, with the first row as its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    line = " ".join("=" * width for width in widths)
    lines = [
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([line, lines[0], line, *lines[1:], line])


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    wanted = sys.argv[1:] or [name for name in FAULTS if LIBFAKETIME or "clock" not in name]
    outcomes = {}
    for name in wanted:
        outcomes[name] = run(name)
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(
        f"{PROCESSES} processes; the limit is {LIMIT}/{PERIOD}, the deadline "
        f"{DEADLINE * 1000:.0f} ms\n"
    )
    print(table(outcomes))
    print("\n* loses data: all of it, data that is not replicated, or windows that lie ahead\n")
    if not sys.argv[1:]:
        from tests.tools import holders

        names = [name for name in holders.FAULTS if LIBFAKETIME or "clock" not in name]
        print(holders.table({name: holders.run(name) for name in names}))


if __name__ == "__main__":
    main()
