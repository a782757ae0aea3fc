"""Many processes and threads at once, against one identity: exactly N, never one more or less."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.limits.algorithms import BY_RATE
from tests.support.processes import Worker

pytestmark = pytest.mark.engine

PROCESSES, THREADS, HITS, LIMIT = 8, 4, 12, 150


@pytest.fixture(scope="module")
def crowd() -> Iterator[list[Worker]]:
    """Yield processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(Worker("", {})) for _ in range(PROCESSES)]


def admitted(crowd: list[Worker], prefix: str, algorithm: str, *rates: str) -> int:
    """Let the threads of all processes hit at once, and return the number of admitted hits."""
    limiter = f"RateLimiter('crowd', {[*rates]!r}, algorithm={algorithm!r})"
    pool = "from concurrent.futures import ThreadPoolExecutor as Pool ;; pool = Pool({})"
    for worker in crowd:
        worker(f"restart({prefix!r}) ;; crowd = {limiter} ;; {pool.format(THREADS)}")
    for worker in crowd:
        worker.send(f"sum(map(bool, pool.map(crowd.hit, ['everyone'] * {THREADS * HITS})))")
    return sum(worker.answer() for worker in crowd)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_eight_processes_of_four_threads_admit_exactly_n(
    algorithm: str, crowd: list[Worker], prefix: str
) -> None:
    """384 simultaneous hits on a limit of 150 admit 150."""
    assert PROCESSES * THREADS * HITS > 2 * LIMIT
    assert admitted(crowd, prefix, algorithm, f"{LIMIT}/h") == LIMIT


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_call_that_one_limit_refuses_costs_the_others_nothing(
    algorithm: str, crowd: list[Worker], prefix: str
) -> None:
    """One call has three limits, the smallest of 40."""
    rates = [f"{LIMIT}/h", "100000/h", "40/h"]
    assert admitted(crowd, prefix, algorithm, *rates) == 40
    states = RateLimiter("crowd", rates, algorithm=algorithm).peek("everyone").limits
    assert states[2].used == 40
    if algorithm == "leaky_bucket":
        return  # Its turns are charged when they come, which is long after they were given.
    assert states[0].used == 40
    # A bucket of 100000 an hour leaks 28 units a second while the crowd is at it.
    assert states[1].used == 40 or algorithm == "token_bucket"
