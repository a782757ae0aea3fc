"""Slots of requests under real servers, with streams, disconnects and crashes."""

from __future__ import annotations

import http.client
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.acceptance.slots.slot_urls import RULES, SLOTS, SlotsInUse
from tests.support.processes import until
from tests.support.redis_server import url
from tests.support.served_site import serve

N = int(SLOTS)
CLIENTS = 50
URLS = "tests.acceptance.slots.slot_urls"
SERVERS = {
    "wsgi": ("gunicorn", ["--workers=2", "--threads=30"], ""),
    "asgi": ("uvicorn", [], "tests.support.served_site:asgi_with_shutdown"),
}
"""By kind: the server, its options and the application, if it is not Django's own."""
BODIES = {"wsgi": ("plain", "stream", "file"), "asgi": ("plain", "astream", "file")}
Site = tuple[int, SlotsInUse]
"""The port of a server, and its slots."""


@pytest.fixture(scope="module", params=list(SERVERS))
def site(request: pytest.FixtureRequest) -> Iterator[tuple[str, Site]]:
    server, options, application = SERVERS[request.param]
    prefix = f"held-served-{request.param}:"
    settings = {
        "RATELIMIT_CACHE_PREFIX": prefix,
        "RATELIMIT_RULES": RULES,
        "RATELIMIT_SLOT_SECONDS": 2.0,
    }
    with (
        redis.Redis.from_url(url()) as direct,
        serve(server, URLS, *options, application=application, **settings) as served,
    ):
        yield request.param, (served.port, SlotsInUse(direct, prefix))


def get(port: int, path: str, method: str = "GET") -> int:
    """Read a response to its end, and return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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
    """Fifty clients send requests for bodies of every kind."""
    kind, (port, slots) = site
    for ending in BODIES[kind]:
        who = f"{face}-{ending}".replace("/", "-")
        for seconds in (0.3, 3):  # A busy machine needs longer to have N of them run at once.
            path = f"/{face}/{ending}/?who={who}&seconds={seconds}"
            with ThreadPoolExecutor(CLIENTS) as pool:
                statuses = Counter(pool.map(lambda _, path=path: get(port, path), range(CLIENTS)))
            assert set(statuses) == {200, 429}
            assert statuses[200] >= N
            if slots.max_running(who) >= N:
                break
        assert slots.max_running(who) == N
        slots.until_free()
        assert slots.running(who) == 0


def hang_up(port: int, path: str, when: Callable[[], bool], most: int = 0) -> None:
    """Send a request, and disconnect when the condition is true."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(when, "it runs", 20)
        if most:
            client.recv(most)


@pytest.mark.parametrize("face", ["sync", "async", "drf", "middleware"])
def test_a_client_that_disconnects_during_the_body_holds_no_slot(
    site: tuple[str, Site], face: str
) -> None:
    """The server detects the disconnect, and closes the response."""
    kind, (port, slots) = site
    who = f"gone-{face}"
    path = f"/{face}/{'stream' if kind == 'wsgi' else 'astream'}/?who={who}&seconds=1&size=3000000"
    hang_up(port, path, lambda: slots.running(who) == 1, most=10)
    assert slots.held <= 1
    slots.until_free()
    assert slots.running(who) == 0


def test_head_requests_and_failing_requests_hold_no_slot_afterwards(site: tuple[str, Site]) -> None:
    """A HEAD request, an exception and a view without a response leave no slot, in any number."""
    _, (port, slots) = site
    for _ in range(N + 1):
        assert get(port, "/sync/stream/?who=head", "HEAD") in (200, 500)
        assert get(port, "/sync/raises/?who=head") == 500
        assert get(port, "/drf/raises/?who=head") == 500
        assert get(port, "/middleware/nothing/?who=head") == 500
        slots.until_free()
