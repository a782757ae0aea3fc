"""A load of bounded length: so many connections that are kept open, each of which asks again when
it is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple


class Load(NamedTuple):
    """Requests a second, and milliseconds that half, and 99 of 100, of them took at most."""

    per_second: float
    p50: float
    p99: float


class Unanswered(Exception):  # noqa: N818 - the answer is not the one
    """A request was answered by something else than 200."""


async def load(
    port: int, path: str, identities: list[str], connections: int, seconds: float, most: int
) -> Load:
    """Ask for a path for so many seconds, and not more often than `most`, each time as the next
    identity.

    Raises `Unanswered`; answers have to say how long they are.
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
