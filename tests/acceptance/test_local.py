"""The policy `local`: while Redis cannot be asked, each process keeps its share of a limit."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.counters import counters
from django_ratelimit_lua.engine.fallback import fallback_limiter
from django_ratelimit_lua.engine.heartbeat import Heartbeat, heartbeat
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.rules.provider import start_fresh
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.testing.server import Server
from tests import clusters
from tests.clusters import until
from tests.nursery import Born
from tests.worker import Worker

PROCESSES = 4


@pytest.fixture
def own(quiet: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of this test's own, that four processes share, as no heartbeat of this one finds."""
    with Server() as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        settings.RATELIMIT_ON_STORE_ERROR = "local"
        monkeypatch.setattr(heartbeat, "count", PROCESSES)
        start_fresh()
        fallback_limiter.clear()
        yield server


def admitted(limiter: RateLimiter, times: int, who: str = "x") -> int:
    decisions = [limiter.hit(who) for _ in range(times)]
    assert {decision.source for decision in decisions} == {"fallback"}
    return sum(map(bool, decisions))


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_each_process_admits_its_share_in_an_outage(algorithm: str, own: Server) -> None:
    """The share is a quarter of the limit, under every algorithm. A refusal has a retry time."""
    own.stop()
    limiter = RateLimiter("x", "100/h", algorithm=algorithm)
    assert admitted(limiter, 60) == 25
    decision = limiter.hit("x")
    assert decision.retry_after is not None
    assert 0 < decision.retry_after <= 3600
    assert (decision.limits[0].limit, decision.remaining) == (100, 0)
    assert admitted(limiter, 10, "somebody else") == 10


def test_a_local_share_starts_with_the_last_state_in_redis(own: Server) -> None:
    """If all processes have used 60 units, this process has used a quarter of them."""
    limiter = RateLimiter("x", "100/h")
    for _ in range(60):
        limiter.hit("x")
    own.stop()
    assert admitted(limiter, 60) == 10


def test_redis_decides_again_when_it_is_back(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has counted the units that were admitted in the outage. The next outage begins with its
    last reply, or with the units of the share.
    """
    monkeypatch.setattr("django_ratelimit_lua.engine.fallback.BACK_SECONDS", 0.0)
    limiter = RateLimiter("x", "100/h")
    own.stop()
    assert admitted(limiter, 5) == 5
    own.start()
    until(lambda: limiter.peek("x").source == "redis", "it is back")
    until(lambda: limiter.peek("x").limits[0].used == 5, "it is told")
    until(
        lambda: not counters.is_owing, "it is known that it is told"
    )  # Until then, its share decides as well.
    assert limiter.hit("x", cost=21).limits[0].used == 26
    own.stop()
    assert admitted(limiter, 60) == 25 - 7
    own.start()
    until(
        lambda: limiter.peek("x").limits[0].used == 18, "it is told"
    )  # It has forgotten the rest.
    own.stop()
    assert admitted(limiter, 60) == 0, (
        "it has had its share, though all together have not had the limit"
    )


def test_both_counts_apply_until_the_other_processes_have_reported(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is used up refuses for a moment, whatever Redis has counted. A refusal by
    Redis takes no units of the share.
    """
    monkeypatch.setattr("django_ratelimit_lua.engine.fallback.BACK_SECONDS", 1.0)
    limiter, small = RateLimiter("x", "100/h"), RateLimiter("small", ["2/h", "80/h"])

    async def ahit() -> Any:
        return await limiter.ahit("x")

    with redis.Redis.from_url(own.url) as direct:
        direct.replicaof("127.0.0.1", 1)
        assert admitted(limiter, 60) == 25
        direct.replicaof("NO", "ONE")
        assert limiter.peek("x").source == "redis"
        refused = [limiter.hit("x"), asyncio.run(ahit())]
        assert [(one.allowed, one.source) for one in refused] == [(False, "fallback")] * 2
        assert [small.hit("y").source for _ in range(2)] == ["redis", "fallback"]
        until(lambda: limiter.hit("x").source == "redis", "it decides alone", 3)
        direct.replicaof("127.0.0.1", 1)
        direct.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    "algorithm", ["fixed_window", "sliding_window", "sliding_log", "token_bucket"]
)
def test_local_shares_are_refilled_over_time(algorithm: str, own: Server) -> None:
    """They are refilled at the same moments as the limit."""
    own.stop()
    limiter = RateLimiter("x", "8/s", algorithm=algorithm)
    assert limiter.hit("x", cost=2).allowed
    decision = limiter.hit("x", cost=2)
    assert not decision.allowed
    time.sleep(decision.retry_after or 0)
    assert limiter.hit("x", cost=2).allowed


def test_a_leaky_bucket_paces_its_share(own: Server) -> None:
    """Four a second are one a second for each of four processes."""
    own.stop()
    limiter = RateLimiter("x", "4/s", algorithm="leaky_bucket", queue=11)
    waits = [limiter.hit("x").wait for _ in range(3)]
    assert [round(wait) for wait in waits] == [0, 1, 2]
    assert not limiter.hit("x")


def test_hits_in_memory_are_all_or_nothing_too(own: Server) -> None:
    """A refusal by one limit takes no units of the others. A limit with the policy "closed"
    refuses the whole call.
    """
    own.stop()
    both = RateLimiter("x", ["8/h", "400/h"])
    assert admitted(both, 10) == 2
    assert both.peek("x").limits[1].used == 2
    closed = RateLimiter("closed", "100/h", on_store_error="closed")
    opened = RateLimiter("open", "1/h", on_store_error="open")
    assert admitted(closed, 5) == 0
    assert admitted(opened, 5) == 5


def test_refund_charge_and_peek_work_in_memory(own: Server) -> None:
    """They have the same results as in Redis."""
    own.stop()
    for algorithm in ("sliding_log", "token_bucket"):
        limiter = RateLimiter(algorithm, "16/h", algorithm=algorithm)
        assert limiter.peek("x").remaining == 4
        assert admitted(limiter, 5) == 4
        assert limiter.refund("x", cost=2).remaining == 2
        assert admitted(limiter, 5) == 2
        assert limiter.charge("x", cost=1).limits[0].used == 5


def test_small_and_unusual_limits_work_with_shares(own: Server) -> None:
    """A share below one admits a unit, a limit of 0 admits nothing, and a single large hit is
    admitted if nothing else is counted.
    """
    own.stop()
    assert admitted(RateLimiter("small", "2/h"), 5) == 1
    assert admitted(RateLimiter("none", "0/h"), 5) == 0
    assert admitted(RateLimiter("none", "0/h", algorithm="leaky_bucket"), 5) == 0
    large = RateLimiter("large", "100/h")
    assert [large.hit("x", cost=80).allowed, large.hit("x").allowed] == [True, False]


def test_views_and_shadow_limits_work_in_an_outage(own: Server, rf: Any) -> None:
    """A view is limited in an outage. A shadow limit refuses no request."""
    own.stop()

    @ratelimit(key="ip", rate="8/h")
    @ratelimit("shadow", key="ip", rate="0/h", mode="shadow")
    def view(request: Any) -> Any:
        from django.http import HttpResponse

        return HttpResponse("ok")

    assert [view(rf.get("/")).status_code for _ in range(4)] == [200, 200, 429, 429]


def test_every_process_knows_the_number_of_processes(own: Server) -> None:
    """Each heartbeat returns the number."""
    several = [Heartbeat() for _ in range(3)]
    for one in several:
        one.beat()
    assert [one.beat() for one in several] == [3, 3, 3]


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_outages_of_any_kind_admit_at_most_the_limit(
    algorithm: str, own: Server, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """For one process, Redis is silent, full or a replica, for a long or a short time, also
    while units are reported.
    """
    monkeypatch.setattr(heartbeat, "count", 1)
    settings.RATELIMIT_TIMEOUT = 0.05
    monkeypatch.setattr("django_ratelimit_lua.engine.fallback.BACK_SECONDS", 0.1)
    monkeypatch.setattr("django_ratelimit_lua.engine.fallback.TELL_SECONDS", 0.02)
    monkeypatch.setattr("django_ratelimit_lua.store.server.STEADY_SECONDS", 0.05)
    monkeypatch.setattr("django_ratelimit_lua.store.breaker.FIRST_PAUSE", 0.02)
    limiter, dice, total = (
        RateLimiter("x", "10/h", algorithm=algorithm),
        random.Random(algorithm),
        [0] * 40,
    )

    def traffic(hits: int) -> None:
        for _ in range(hits):
            who = dice.randrange(len(total))
            total[who] += limiter.hit(str(who)).allowed

    with redis.Redis.from_url(own.url) as direct:
        for what in dice.sample(["silent", "full", "replica", "moment", "peeks"] * 2, 10):
            if what == "full":
                direct.config_set("maxmemory", 1)
            elif what == "replica":
                direct.replicaof("127.0.0.1", 1)
            elif what in ("silent", "moment"):
                os.kill(own.pid, signal.SIGSTOP)
            traffic(60)
            if (
                what == "full"
                # What needs no memory is decided, so that it is said to be up, and nothing can be
                # told.
            ):
                time.sleep(0.06)
                limiter.peek("somebody")
                traffic(20)
                direct.config_set("maxmemory", 0)
            elif what == "replica":
                direct.replicaof("NO", "ONE")
            elif what in ("silent", "moment"):
                os.kill(own.pid, signal.SIGCONT)
            if what != "moment":
                time.sleep(dice.random() * 0.1)
                limiter.peek("somebody")
            traffic(20)
        traffic(400)
        assert max(total) <= 10
        until(lambda: get_store().is_paused or not counters.is_owing, "everything is told", 10)
        until(lambda: limiter.peek("somebody").source == "redis", "it is back")
        assert all(
            limiter.peek(str(who)).limits[0].used >= units for who, units in enumerate(total)
        )
        assert sum(total) > 200


def test_an_idle_process_reports_owed_units_without_a_request(own: Server, settings: Any) -> None:
    """A thread reports them as soon as Redis is available. An error for one identity affects no
    other.
    """
    settings.RATELIMIT_TIMEOUT = 0.1
    limiter, other = RateLimiter("x", "100/h"), redis.Redis.from_url(own.url)
    limiter.peek("warm")
    os.kill(own.pid, signal.SIGSTOP)
    admitted(
        limiter, 3, "lost"
    )  # Redis may count them when it goes on; after that, it is not asked.
    assert [admitted(limiter, 5, str(who)) for who in range(20)] == [5] * 20
    os.kill(own.pid, signal.SIGCONT)
    with other:
        other.config_set("maxmemory", 1)
        time.sleep(0.5)
        other.config_set("maxmemory", 0)
        until(
            lambda: other.dbsize() >= 20, "all are told", 10
        )  # But for one, where what was lost came after all.
    until(lambda: limiter.peek("warm").source == "redis", "it is back")
    until(
        lambda: [limiter.peek(str(who)).limits[0].used for who in range(20)] == [5] * 20,
        "all by as many",
        10,
    )


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


def test_processes_in_an_outage_together_admit_about_the_limit() -> None:
    """Four real processes admit at least N and at most N + P - 1 units after Redis was killed."""
    with Server() as server:
        workers = [Born(WORKER, server.url) for _ in range(PROCESSES)]

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
    assert 102 <= sum(shares) <= 102 + PROCESSES - 1


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket"])
def test_redis_receives_the_units_admitted_in_an_outage(algorithm: str, own: Server) -> None:
    """So an outage without a loss of data admits no more than the limit. Refunded units are not
    reported.
    """
    limiter = RateLimiter(algorithm, "16/h", algorithm=algorithm)
    assert [limiter.hit("x").source for _ in range(4)] == ["redis"] * 4
    with redis.Redis.from_url(own.url) as direct:
        direct.replicaof("127.0.0.1", 1)  # Which may not write.
        assert admitted(limiter, 6) == 3
        limiter.refund("x")
        direct.replicaof("NO", "ONE")
    assert limiter.peek("x").source == "redis"
    until(lambda: limiter.peek("x").limits[0].used == 6, "it is told", 5)


def test_an_emptied_redis_admits_no_more_units() -> None:
    """The shares stay as they were, even if one process reports and hits before the others do."""
    settings = {"RATELIMIT_ON_STORE_ERROR": "local", "RATELIMIT_TIMEOUT": 1}
    begin = (
        "import django_ratelimit_lua.engine.fallback as back, "
        "django_ratelimit_lua.engine.heartbeat as beats"
        # However busy the machine is, the moment after an outage is not over.
        " ;; back.BACK_SECONDS = beats.LIFETIME = 60"
        " ;; from django_ratelimit_lua.engine.heartbeat import heartbeat"
        " ;; mails = RateLimiter('mails', '8/h') ;; mails.peek('ada') ;; heartbeat.beat()"
    )
    hit = "sum(mails.hit('ada').allowed for _ in range(20))"
    used = "mails.peek('ada').limits[0].used"
    with Server() as server, ExitStack() as stack:
        first, second = [
            stack.enter_context(Worker("rl:", {}, at=server.url, **settings)) for _ in range(2)
        ]
        for worker in (first, second):
            worker(begin)
        assert (first("heartbeat.beat()"), second("heartbeat.beat()")) == (2, 2)
        clusters.kill(server)
        assert (first(hit), second(hit)) == (4, 4)
        os.kill(second._process.pid, signal.SIGSTOP)
        try:
            with Server(server.binary, port=server.port):
                until(
                    lambda: first("mails.peek('ada').source") == "redis", "Redis is asked again", 20
                )
                until(lambda: first(used) == 4, "it is told", 20)
                assert first("heartbeat.beat()") == 2
                assert first(hit) == 0
                os.kill(second._process.pid, signal.SIGCONT)
                until(lambda: first(used) == 8, "it is told by both", 20)
                assert (first(hit), second(hit)) == (0, 0)
        finally:
            os.kill(second._process.pid, signal.SIGCONT)
