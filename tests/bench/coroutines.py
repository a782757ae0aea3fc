"""Decisions a second of one event loop with a hundred coroutines, as a ratio to bare EVALSHAs by
redis.asyncio.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from tests.bench.measure import BARE, DIRECT, limiter
from tests.support.redis_server import url

COROUTINES, CALLS, ROUNDS = 100, 40, 7


def coroutines() -> None:
    """Print the medians of alternating rounds."""
    asyncio.run(_compare())


async def _compare() -> None:
    sha = DIRECT.script_load(BARE)
    one = limiter("bench", "10000000/h", "sliding_window")
    client = Redis.from_url(url())
    cases: dict[str, Callable[[], Awaitable[Any]]] = {
        "bare EVALSHA by redis.asyncio": lambda: client.evalsha(sha, 1, "bench"),
        "RateLimiter.ahit": lambda: one.ahit("someone"),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for number in range(ROUNDS + 1):
        for name, ask in cases.items():
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(_several(ask) for _ in range(COROUTINES)))
            if number:  # The first round is to warm up.
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    alone: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, ask in cases.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(CALLS * 10):
                await ask()
            alone[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    await client.aclose()
    for title, rounds, count in (
        (f"{COROUTINES} coroutines", taken, COROUTINES * CALLS),
        ("one coroutine", alone, CALLS * 10),
    ):
        medians = {
            name: [statistics.median(column) for column in zip(*those, strict=True)]
            for name, those in rounds.items()
        }
        bare_wall, bare_cpu = medians["bare EVALSHA by redis.asyncio"]
        print(f"{title:34}{'a second':>10}{'x bare':>8}{'CPU µs':>9}{'x bare':>8}")
        for name, (wall, cpu) in medians.items():
            print(
                f"{name:34}{count / wall:10.0f}{bare_wall / wall:8.2f}{cpu / count * 1e6:9.1f}{cpu / bare_cpu:8.2f}"  # noqa: E501
            )
    print("aim: 100 coroutines, 1.8 times as many a second\n", flush=True)


async def _several(ask: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(CALLS):
        await ask()
