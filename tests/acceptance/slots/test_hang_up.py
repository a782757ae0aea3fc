"""Clients that disconnect during a view are charged: real clients of a real server."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from tests.support.processes import until
from tests.support.served_site import serve

URLS = "tests.acceptance.slots.hang_up_urls"
OURS = "django_ratelimit_lua.middleware.RateLimitMiddleware"
MIDDLEWARE = {"plain": [OURS], "blocking": [f"{URLS}.Blocking", OURS]}


@pytest.fixture(scope="module", params=list(MIDDLEWARE))
def site(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """Yield the port of a server with one process, and the prefix of its counts."""
    prefix = f"hangup-{request.param}:"
    middleware = MIDDLEWARE[request.param]
    with serve("uvicorn", URLS, RATELIMIT_CACHE_PREFIX=prefix, MIDDLEWARE=middleware) as site:
        yield site.port, prefix


def status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    found = connection.getresponse().status
    connection.close()
    return found


def used(name: str, who: str) -> int:
    return RateLimiter(f"{name}:*:get:who:100/h", "100/h").peek(("get", "who", who)).limits[0].used


def hang_up(port: int, kind: str, name: str, who: str, seconds: float) -> None:
    """Request a view of this duration, and disconnect when it has begun."""
    before = used(name, who)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(
            f"GET /{kind}/{name}/?who={who}&seconds={seconds} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()  # noqa: E501
        )
        until(lambda: used(name, who) == before + 1, "its unit is taken", 10)


def settled(name: str, who: str, units: int) -> bool:
    until(lambda: used(name, who) == units, f"{name}: {units} units of {who}", 10)
    return True


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_expensive_view_is_charged_if_its_client_disconnects(
    site: tuple[int, str], kind: str, settings: Any
) -> None:
    """A client that starts it and disconnects again and again is refused."""
    port, settings.RATELIMIT_CACHE_PREFIX = site
    who, seconds = f"mallory-{kind}", 60 if kind == "async" else 0.2
    for run in range(4):
        hang_up(port, kind, "costs", who, seconds)
        assert settled("costs", who, 31 * (run + 1))
    assert [status(port, f"/{kind}/costs/?who={who}") for _ in range(3)] == [429, 429, 429]
    assert status(port, f"/{kind}/costs/?who=honest-{kind}") == 200
    assert settled("costs", f"honest-{kind}", 31)


UNITS = {"counts": (1, 0), "acounts": (1, 0), "returns": (0, 1), "resets": (0, 1), "keeps": (1, 0)}
"""By limit: units that count of who hung up, and of who stayed."""


@pytest.mark.parametrize("name", UNITS)
def test_a_view_whose_client_disconnects_has_an_outcome(
    site: tuple[int, str], name: str, settings: Any
) -> None:
    """An async view ends with the cancellation, by which units are kept, refunded or reset once."""
    port, settings.RATELIMIT_CACHE_PREFIX = site
    hung_up, stayed = UNITS[name]
    for kind, who, seconds in (("async", "gone", 60), ("sync", "thread", 0.3)):
        hang_up(port, kind, name, who, seconds)
    assert status(port, f"/async/{name}/?who=there") == 200
    assert settled(name, "there", stayed)
    assert settled(name, "thread", stayed)
    assert settled(name, "gone", hung_up)
