"""Many processes and threads at once, against one identity: exactly N, never one more or less."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.limits.algorithms import BY_RATE
from tests.support.processes import ChildProcess

pytestmark = pytest.mark.engine

PROCESSES, THREADS, HITS, LIMIT = 8, 4, 12, 150

WORKER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import django
from django.conf import settings
django.setup()
from django_ratelimit_lua import RateLimiter
limiters = {}
print("ready", flush=True)
for line in sys.stdin:
    prefix, algorithm, limit, blocked, threads, hits = line.split()
    settings.RATELIMIT_CACHE_PREFIX = prefix
    from django.core.signals import setting_changed
    setting_changed.send(None, setting="RATELIMIT_CACHE_PREFIX", value=prefix, enter=True)
    rates = [f"{limit}/h", "100000/h", f"{blocked}/h"] if int(blocked) >= 0 else f"{limit}/h"
    limiter = RateLimiter("crowd", rates, algorithm=algorithm)
    with ThreadPoolExecutor(int(threads)) as pool:
        decisions = pool.map(limiter.hit, ["everyone"] * (int(threads) * int(hits)))
        print(sum(map(bool, decisions)), flush=True)
"""


@pytest.fixture(scope="module")
def crowd() -> Iterator[list[ChildProcess]]:
    """Yield processes that hit what a line names, and print the number of admitted hits."""
    workers = [ChildProcess(WORKER) for _ in range(PROCESSES)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    yield workers
    for worker in workers:
        worker.communicate()


def admitted(crowd: list[ChildProcess], *order: Any) -> int:
    for worker in crowd:
        worker.stdin.write(" ".join(map(str, order)) + "\n")
        worker.stdin.flush()
    return sum(int(worker.stdout.readline()) for worker in crowd)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_eight_processes_of_four_threads_admit_exactly_n(
    algorithm: str, crowd: list[ChildProcess], prefix: str
) -> None:
    """384 simultaneous hits on a limit of 150 admit 150."""
    assert PROCESSES * THREADS * HITS > 2 * LIMIT
    assert admitted(crowd, prefix, algorithm, LIMIT, -1, THREADS, HITS) == LIMIT


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_call_that_one_limit_refuses_costs_the_others_nothing(
    algorithm: str, crowd: list[ChildProcess], prefix: str
) -> None:
    """One call has three limits, the smallest of 40."""
    assert admitted(crowd, prefix, algorithm, LIMIT, 40, THREADS, HITS) == 40
    limiter = RateLimiter("crowd", [f"{LIMIT}/h", "100000/h", "40/h"], algorithm=algorithm)
    states = limiter.peek("everyone").limits
    assert states[2].used == 40
    if algorithm == "leaky_bucket":
        return  # Its turns are charged when they come, which is long after they were given.
    assert states[0].used == 40
    # A bucket of 100000 an hour leaks 28 units a second while the crowd is at it.
    assert states[1].used == 40 or algorithm == "token_bucket"


def test_threads_share_connections_safely() -> None:
    """Thirty-two threads of one process take exactly the available units."""
    limiter = RateLimiter("threads", "100/h")
    with ThreadPoolExecutor(32) as pool:
        assert sum(bool(decision) for decision in pool.map(limiter.hit, ["one"] * 500)) == 100
