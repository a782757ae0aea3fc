"""The memory of an identity in Redis."""

from __future__ import annotations

import statistics
from typing import Any

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.program import program_for
from django_ratelimit_lua.process.tasks import stop
from tests.bench.measure import DIRECT, encode

CROWD, PERIOD_US, START_US = 100_000, 3_600_000_000, 1_750_000_000_000_000
STOP_SECONDS = 10.0


def with_time(call: Call, now: int) -> list[Any]:
    """Return the words of the command that decides a call at a time."""
    call = call._replace(now=now)
    source = program_for(call.algorithms).source
    return ["EVAL", source, len(call.keys()), *call.keys(), *call.args()]


def memory() -> None:
    """Print the bytes of an identity that has used up limits of different sizes."""
    sizes = (10, 100, 1000, 10_000, 100_000)
    print(f"{'bytes, limit used up':24}" + "".join(f"{size:>10}" for size in sizes))
    for algorithm in BY_RATE:
        row = []
        for size in sizes:
            who = RateLimiter(
                "mem",
                f"{size}/h",
                algorithm=algorithm,
                **({"queue": size - 1} if algorithm == "leaky_bucket" else {}),
            )
            # Spread over a period, so that a sliding window uses all its segments.
            parts = 20 if algorithm == "sliding_window" else 1
            key = None
            for part in range(parts):
                call = build_call(
                    [Charge(limit, b"m" * 32, max(1, size // parts)) for limit in who.limits]
                )
                start = START_US + part * PERIOD_US // parts
                DIRECT.execute_command(*with_time(call, start))
                key = call.keys()[0]
            row.append(DIRECT.memory_usage(key, samples=0))
            DIRECT.delete(key)
        print(f"{algorithm:24}" + "".join(f"{used:>10}" for used in row))
    print("aim: flat for all but the log\n")


def crowd_memory() -> None:
    """Print the bytes of an identity among 100,000, each with ten hits.

    The hits of a sliding window are spread over a period, so that it uses all its segments.
    """
    print(f"{f'{CROWD:,} identities, 10 hits each':34}{'MEMORY USAGE':>14}{'used_memory':>14}")
    stop(STOP_SECONDS)  # No task writes earlier counts.
    connection = DIRECT.connection_pool.get_connection()
    for algorithm in ("token_bucket", "fixed_window", "sliding_window"):
        DIRECT.execute_command("FLUSHDB", "SYNC")
        before = DIRECT.info("memory")["used_memory"]
        (limit,) = RateLimiter("mem", "100/h", algorithm=algorithm).limits
        pause = PERIOD_US // 10 if algorithm == "sliding_window" else 100_000
        for hit in range(10):
            call = build_call([Charge(limit, b"m" * 32)], now=START_US + hit * pause)
            command = encode(call)
            for first in range(0, CROWD, 500):
                commands = [
                    command.replace(b"m" * 32, b"%032d" % number)
                    for number in range(first, first + 500)
                ]
                connection.send_packed_command([b"".join(commands)])
                for _ in commands:
                    connection.read_response()
        assert DIRECT.dbsize() == CROWD
        (key,) = call.keys()
        keys = [key.replace(b"m" * 32, b"%032d" % number) for number in range(0, CROWD, 1000)]
        usual = statistics.median(DIRECT.memory_usage(key, samples=0) for key in keys)
        print(
            f"{algorithm:34}{usual:14.0f}{(DIRECT.info('memory')['used_memory'] - before) / CROWD:14.0f}"  # noqa: E501
        )
    DIRECT.flushdb()
    DIRECT.connection_pool.release(connection)
    print(
        "aim, by MEMORY USAGE: token bucket and fixed window at most 120, sliding window at most "
        "272\n"
    )
