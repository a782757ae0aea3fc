"""What a whole request costs: on gunicorn with threads and on uvicorn, one process each."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.bench.measure import DIRECT
from tests.bench.peers.limiters import ASYNC_VIEWS, VIEW, VIEWS, slug, undecorated_name
from tests.bench.peers.load import Load, load
from tests.bench.peers.rounds import IDENTITIES, Failed, failure
from tests.support.processes import await_port, free_port

CONNECTIONS, SECONDS, MAX_ENTRIES = 8, 1.0, 4000
SERVERS = {
    "gunicorn, 8 threads": (
        "gunicorn",
        "tests.bench.peers.site:wsgi",
        "--threads=8",
        "--keep-alive=60",
        "--bind",
    ),
    "uvicorn": ("uvicorn", "tests.bench.peers.site:asgi", "--port"),
}


class Requests(NamedTuple):
    """Requests a second, how many times those of the same view without a limit, and
    milliseconds."""

    per_second: float
    share: float
    p50: float
    p99: float


def _pages(*, is_async: bool) -> dict[str, tuple[str, str]]:
    """The path of each view, and the name of the view without a limit."""
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


@contextmanager
def _serving(command: tuple[str, ...]) -> Iterator[int]:
    """The port of a server."""
    port = free_port()
    at = f"127.0.0.1:{port}" if command[-1] == "--bind" else str(port)
    with subprocess.Popen([sys.executable, "-m", *command, at, "--log-level=error"]) as process:
        try:
            await_port(port)
            yield port
        finally:
            process.terminate()


def measure_requests(rounds: int) -> dict[str, dict[str, Requests | Failed]]:
    """For each server, and each of its views in turn."""
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
    with _serving(command) as port:
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
