"""The cost of a whole request on gunicorn with threads and on uvicorn, with one process each."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.bench.measure import DIRECT
from tests.bench.peers.limiters import ASYNC_VIEWS, VIEW, VIEWS, slug, undecorated_name
from tests.bench.peers.rounds import IDENTITIES, Failed, failure
from tests.support.processes import free_port, running

CONNECTIONS, SECONDS, MAX_ENTRIES = 8, 1.0, 4000
SERVERS = {
    "gunicorn, 8 threads": (
        "gunicorn",
        "tests.bench.peers.site:wsgi",
        "--threads=8",
        "--keep-alive=60",
        "--bind=127.0.0.1:{port}",
    ),
    "uvicorn": ("uvicorn", "tests.bench.peers.site:asgi", "--port={port}"),
}


class Load(NamedTuple):
    """Requests per second, and percentiles of their milliseconds."""

    per_second: float
    p50: float
    p99: float


class Unanswered(Exception):  # noqa: N818 - the answer is not the one
    """A response had another status than 200."""


async def load(
    port: int, path: str, identities: list[str], connections: int, seconds: float, most: int
) -> Load:
    """Send requests for a number of seconds, at most `most`, each as the next identity.

    Each connection sends the next request after a response, which needs a Content-Length.
    """
    turns, took = itertools.islice(itertools.cycle(identities), most), list[float]()
    started = time.perf_counter()
    await asyncio.gather(
        *(_ask(port, path, turns, started + seconds, took) for _ in range(connections))
    )
    whole = time.perf_counter() - started
    took.sort()
    return Load(len(took) / whole, took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3)


async def _ask(port: int, path: str, turns: Iterator[str], until: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for identity in turns:
            started = time.perf_counter()
            if started > until:
                break
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Client: {identity}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            took.append(time.perf_counter() - started)
            if lines[0].split()[1] != b"200":
                raise Unanswered(f"{path}: {lines[0].decode()}")
    finally:
        writer.close()


class Requests(NamedTuple):
    """Requests per second, their ratio to the view without a limit, and milliseconds."""

    per_second: float
    share: float
    p50: float
    p99: float


def _pages(*, is_async: bool) -> dict[str, tuple[str, str]]:
    """Return the path of each view, and the name of the view without a limit."""
    pages = {}
    for name in VIEWS:
        base = undecorated_name(name)
        pages[name] = f"/plain/{slug(name)}/1", base
        if name != base and "smart" not in name:
            pages[f"{name}, 3 limits"] = f"/plain/{slug(name)}/3", base
    if is_async:
        for name in ASYNC_VIEWS:
            pages[f"{name}, async def"] = f"/async/{slug(name)}/1", f"{VIEW}, async def"
    return pages


def measure_requests(rounds: int) -> dict[str, dict[str, Requests | Failed]]:
    """Return the cost of each view, by server."""
    return {
        name: _measure(command, _pages(is_async=name == "uvicorn"), rounds)
        for name, command in SERVERS.items()
    }


def _measure(
    command: tuple[str, ...], pages: dict[str, tuple[str, str]], rounds: int
) -> dict[str, Requests | Failed]:
    DIRECT.flushdb()
    taken: dict[str, list[Load]] = {name: [] for name in pages}
    failed: dict[str, Failed] = {}
    port = free_port()
    server = [sys.executable, "-m", *command[:-1], command[-1].format(port=port)]
    with running([*server, "--log-level=error"], port):
        for turn in range(rounds + 1):  # The first warms up.
            for name, (path, _) in pages.items():
                if name in failed:
                    continue
                seconds, most = (SECONDS, MAX_ENTRIES) if turn else (SECONDS / 4, 200)
                try:
                    found = asyncio.run(load(port, path, IDENTITIES, CONNECTIONS, seconds, most))
                except Exception as error:
                    failed[name] = failure(error)
                else:
                    taken[name] += [found] if turn else []
    middle = {
        name: Load(*(statistics.median(column) for column in zip(*loads, strict=True)))
        for name, loads in taken.items()
        if name not in failed
    }
    return {
        name: failed.get(name)
        or Requests(
            middle[name].per_second,
            middle[name].per_second / middle[base].per_second,
            middle[name].p50,
            middle[name].p99,
        )
        for name, (_, base) in pages.items()
    }
