"""Measurements on one server, in rounds in which all cases take turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.limits.call import Call
from django_ratelimit_lua.store import commands
from tests.support.redis_server import url

BARE = "return redis.call('INCR', KEYS[1])"
DIRECT = redis.Redis.from_url(url())
ROUNDS, CALLS = 9, 400


def interleaved(
    functions: dict[str, Callable[[], Any]], calls: int = CALLS
) -> dict[str, tuple[float, float]]:
    """Return the microseconds per call, by the clock and of this process: medians of rounds."""
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
    """Return the microseconds of script time per call, as the server counts it: medians of rounds.

    A round sends a thousand commands of each case in four pipelines.
    """
    connection = DIRECT.connection_pool.get_connection()
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, batch in batches.items():
            DIRECT.config_resetstat()
            for _ in range(4):
                connection.send_packed_command([b"".join(batch) * (250 // len(batch))])
                for _ in range(250):
                    connection.read_response()
            used = DIRECT.info("commandstats")["cmdstat_evalsha"]
            taken[name].append(used["usec_per_call"])
    DIRECT.connection_pool.release(connection)
    return {name: statistics.median(rounds) for name, rounds in taken.items()}


def encode(call: Call) -> bytes:
    """Return the command that decides a call, and load its script into the server."""
    command = commands.decision_command(call)
    assert command.program is not None
    DIRECT.script_load(command.program.source)
    return command.data


def limiter(name: str, rates: Any, algorithm: str, **options: Any) -> RateLimiter:
    if algorithm == "leaky_bucket":
        options.setdefault("queue", 10**6)
    return RateLimiter(name, rates, algorithm=algorithm, **options)
