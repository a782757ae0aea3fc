"""Slots of requests under real servers, with streams, disconnects and crashes."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import redis

from tests.support.held import SlotsInUse
from tests.support.processes import await_port, free_port, until
from tests.support.slots_site import SLOTS

ADDRESS = "127.0.0.1"
N = int(SLOTS)
SLOT_SECONDS = 2.0
CLIENTS = 50
COMMANDS = {
    "wsgi": [
        "gunicorn",
        "tests.support.slots_site:wsgi",
        "--workers=2",
        "--threads=30",
        "--log-level=critical",
    ],
    "asgi": ["uvicorn", "tests.support.slots_site:asgi", "--log-level=critical"],
}
BODIES = {"wsgi": ("plain", "stream", "file"), "asgi": ("plain", "astream", "file")}
_serial = count()
Site = tuple[int, int, SlotsInUse]
"""Its port, the id of its process, and what is held there."""


def start(kind: str, direct: redis.Redis) -> tuple[subprocess.Popen[bytes], Site]:
    port, prefix = free_port(), f"held-served-{kind}-{next(_serial)}:"
    environment = {**os.environ, "SLOTS_PREFIX": prefix, "SLOTS_SECONDS": str(SLOT_SECONDS)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    where = (
        [f"--bind={ADDRESS}:{port}"] if kind == "wsgi" else [f"--host={ADDRESS}", f"--port={port}"]
    )
    command = [sys.executable, "-m", *COMMANDS[kind], *where]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], env=environment)
    await_port(port)
    return process, (port, process.pid, SlotsInUse(direct, prefix, prefix))


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    from tests.support.redis_server import url

    with redis.Redis.from_url(url()) as connection:
        yield connection


@pytest.fixture(scope="module", params=list(COMMANDS))
def site(request: pytest.FixtureRequest, client: redis.Redis) -> Iterator[tuple[str, Site]]:
    process, found = start(request.param, client)
    yield request.param, found
    process.terminate()
    process.wait(30)


def get(port: int, path: str, method: str = "GET") -> int:
    """Read a response to its end, and return its status."""
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "face", ["sync", "async", "class", "drf", "middleware", "middleware/async"]
)
def test_never_more_than_n_requests_run_at_once(site: tuple[str, Site], face: str) -> None:
    """Fifty clients send requests for bodies of every kind. The number of views and bodies that run
    simultaneously, measured inside them, is the limit. Afterwards no slot is held.
    """
    kind, (port, _, slots) = site
    for ending in BODIES[kind]:
        who = f"{face}-{ending}".replace("/", "-")
        for seconds in (0.3, 3):  # A busy machine needs longer to have N of them run at once.
            path = f"/{face}/{ending}/?who={who}&seconds={seconds}"
            with ThreadPoolExecutor(CLIENTS) as pool:
                statuses = Counter(pool.map(lambda _, path=path: get(port, path), range(CLIENTS)))
            assert set(statuses) == {200, 429}
            assert statuses[200] >= N
            if slots.most(who) >= N:
                break
        assert slots.most(who) == N
        slots.until_free()
        assert slots.running(who) == 0


def hang_up(port: int, path: str, when: Callable[[], bool], most: int = 0) -> None:
    """Send a request, and disconnect when the condition is true, after reading some bytes of the
    response.
    """
    with socket.create_connection((ADDRESS, port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(when, "it runs", 20)
        if most:
            client.recv(most)


@pytest.mark.parametrize("face", ["sync", "async", "drf", "middleware"])
def test_a_client_that_disconnects_during_the_body_holds_no_slot(
    site: tuple[str, Site], face: str
) -> None:
    """The server detects the disconnect, and closes the response."""
    kind, (port, _, slots) = site
    who = f"gone-{face}"
    path = f"/{face}/{'stream' if kind == 'wsgi' else 'astream'}/?who={who}&seconds=1&size=3000000"
    hang_up(port, path, lambda: slots.running(who) == 1, most=10)
    assert slots.held <= 1
    slots.until_free()
    assert slots.running(who) == 0


def test_head_requests_and_failing_requests_hold_no_slot_afterwards(site: tuple[str, Site]) -> None:
    """A HEAD request, an exception and a view without a response leave no slot, in any number."""
    _, (port, _, slots) = site
    for _ in range(N + 1):
        assert get(port, "/sync/stream/?who=head", "HEAD") in (200, 500)
        assert get(port, "/sync/raises/?who=head") == 500
        assert get(port, "/drf/raises/?who=head") == 500
        assert get(port, "/middleware/nothing/?who=head") == 500
        slots.until_free()


def workers(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
