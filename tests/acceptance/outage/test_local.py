"""The policy `local`: while Redis is unavailable, each process admits its part of a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from django.http import HttpResponse

from django_ratelimit_lua import Ratelimited, RateLimiter, ratelimit
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.testing.server import Server
from tests.support.processes import ChildProcess
from tests.support.redis_server import caches

PROCESSES = 4


@pytest.fixture
def own(quiet: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of this test's own, that four processes share, as no heartbeat of this one finds."""
    with Server() as server:
        settings.CACHES = caches(server.url)
        settings.RATELIMIT_ON_STORE_ERROR = "local"
        monkeypatch.setattr(heartbeat, "count", PROCESSES)
        reset_rules()
        yield server


def admitted(limiter: RateLimiter, times: int, who: str = "x") -> int:
    decisions = [limiter.hit(who) for _ in range(times)]
    assert {decision.source for decision in decisions} == {"fallback"}
    return sum(map(bool, decisions))


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_each_process_admits_its_part_in_an_outage(algorithm: str, own: Server) -> None:
    """The part is a quarter. A refusal has a retry time."""
    own.stop()
    limiter = RateLimiter("x", "100/h", algorithm=algorithm)
    assert admitted(limiter, 60) == 25
    decision = limiter.hit("x")
    assert decision.retry_after is not None
    assert 0 < decision.retry_after <= 3600
    assert (decision.limits[0].limit, decision.remaining) == (100, 0)
    assert admitted(limiter, 10, "another") == 10


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_redis_continues_after_an_outage_from_what_it_had_counted(
    algorithm: str, own: Server
) -> None:
    """It never learns what a process admitted in the outage."""
    limiter = RateLimiter("x", "16/h", algorithm=algorithm)
    for _ in range(6):
        limiter.hit("x")
    with redis.Redis.from_url(own.url) as direct:
        direct.replicaof("127.0.0.1", 1)  # A replica refuses to write.
        assert admitted(limiter, 9) == 4
        direct.replicaof("NO", "ONE")
        (state,) = limiter.peek("x").limits
        assert 5 <= state.used <= 6
        decisions = [limiter.hit("x") for _ in range(4)]
        assert [(one.allowed, one.source) for one in decisions] == [(True, "redis")] * 4
        assert state.used + 3 <= limiter.peek("x").limits[0].used <= 10


def slots(limiter: RateLimiter, times: int) -> list[ExitStack]:
    """Return the slots that were granted in this number of attempts."""
    granted = []
    for _ in range(times):
        stack = ExitStack()
        try:
            stack.enter_context(limiter.slot("x"))
        except Ratelimited:
            continue
        granted.append(stack)
    return granted


def release(granted: list[ExitStack]) -> None:
    for stack in granted:
        stack.close()


def test_the_slots_that_are_held_count_in_an_outage(own: Server) -> None:
    """A process counts exactly the slots that it holds, whenever they were granted or released."""
    limiter = RateLimiter("x", "8", algorithm="concurrency")
    with redis.Redis.from_url(own.url) as direct:
        before = slots(limiter, 1)
        direct.replicaof("127.0.0.1", 1)  # A replica refuses to write.
        during = slots(limiter, 4)
        assert len(during) == 1
        release(during)
        during = slots(limiter, 4)
        assert len(during) == 1
        direct.replicaof("NO", "ONE")
        release(before)
        release(during)
        direct.replicaof("127.0.0.1", 1)
        for _ in range(2):
            again = slots(limiter, 4)
            assert len(again) == 2
            release(again)


def test_threads_take_exactly_the_slots_of_the_part(own: Server) -> None:
    """Threads that ask at the same moment in an outage get exactly the part of the process."""
    own.stop()
    limiter = RateLimiter("x", "40", algorithm="concurrency")
    granted: list[ExitStack] = []
    barrier = threading.Barrier(8)

    def take() -> None:
        barrier.wait()
        granted.extend(slots(limiter, 5))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 10
    release(granted)


def test_views_and_shadow_limits_work_in_an_outage(own: Server, rf: Any) -> None:
    """A view is limited in an outage. A shadow limit refuses no request."""
    own.stop()

    @ratelimit(key="ip", rate="8/h")
    @ratelimit("shadow", key="ip", rate="0/h", mode="shadow")
    def view(request: Any) -> Any:
        return HttpResponse("ok")

    assert [view(rf.get("/")).status_code for _ in range(4)] == [200, 200, 429, 429]


WORKER = """
import sys
import django
django.setup()
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django.test import override_settings
caches = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}}
with override_settings(CACHES=caches, RATELIMIT_CACHE_PREFIX="cut off:", RATELIMIT_ON_STORE_ERROR="local"):
    limiter = RateLimiter("x", "102/h")
    for line in sys.stdin:
        if line == "beat\\n":
            limiter.peek("x")
            print(heartbeat.beat(), flush=True)
        else:
            print(sum(limiter.hit("x").allowed for _ in range(150)), flush=True)
"""  # noqa: E501


def test_processes_in_an_outage_together_admit_no_more_than_the_limit() -> None:
    """Four real processes admit N / P units each, rounded down, after Redis was killed."""
    with Server() as server:
        workers = [ChildProcess(WORKER, server.url) for _ in range(PROCESSES)]

        def tell(order: str) -> list[int]:
            for worker in workers:
                worker.stdin.write(f"{order}\n")
                worker.stdin.flush()
            return [int(worker.stdout.readline()) for worker in workers]

        tell("beat")
        assert tell("beat") == [PROCESSES] * PROCESSES
    shares = tell("hit")
    for worker in workers:
        worker.communicate()
    assert shares == [102 // PROCESSES] * PROCESSES
