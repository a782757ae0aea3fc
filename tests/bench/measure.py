"""How things are measured: on one server, in rounds in which all take turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import redis

from django_ratelimit_lua import RateLimiter
from tests.support.redis_server import url

BARE = "return redis.call('INCR', KEYS[1])"
DIRECT = redis.Redis.from_url(url())
ROUNDS, CALLS = 9, 400


def interleaved(
    functions: dict[str, Callable[[], Any]], calls: int = CALLS
) -> dict[str, tuple[float, float]]:
    """Microseconds of wall and of this process's CPU per call: the median of rounds in which all
    take turns.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(50):
            function()
    gc.disable()
    for _ in range(ROUNDS):
        for name, function in functions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                function()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    gc.enable()
    return {
        name: tuple(statistics.median(column) / calls * 1e6 for column in zip(*rounds, strict=True))
        for name, rounds in taken.items()
    }


def script_time(batches: dict[str, list[bytes]]) -> dict[str, float]:
    """Microseconds of script time per call as the server counts it: the median of rounds in which
    all take turns, each with its commands in turn, a thousand in four pipelines.
    """
    connection = DIRECT.connection_pool.get_connection()
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, commands in batches.items():
            DIRECT.config_resetstat()
            for _ in range(4):
                connection.send_packed_command([b"".join(commands) * (250 // len(commands))])
                for _ in range(250):
                    connection.read_response()
            used = DIRECT.info("commandstats")["cmdstat_evalsha"]
            taken[name].append(used["usec_per_call"])
    DIRECT.connection_pool.release(connection)
    return {name: statistics.median(rounds) for name, rounds in taken.items()}


def limiter(name: str, rates: Any, algorithm: str, **options: Any) -> RateLimiter:
    if algorithm == "leaky_bucket":
        options.setdefault("queue", 10**6)
    return RateLimiter(name, rates, algorithm=algorithm, **options)
