"""Splits: each process has a part of a limit, by the weight of its host, and decides without Redis.
All parts together are the limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.urls import path

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.heartbeat import LIFETIME, Heartbeat, heartbeat
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.testing.server import Server
from tests.support.limits import WHOLE, decide, equal_share, set_share
from tests.support.processes import Worker, until
from tests.support.redis_server import CLOSED, caches
from tests.support.users import ADMIN_MIDDLEWARE, staff

ALGORITHMS = ("fixed_window", "token_bucket")
urlpatterns = [path("admin/", admin.site.urls)]


def split(name: str, rate: str, algorithm: str = "fixed_window") -> RateLimiter:
    return RateLimiter(name, rate, algorithm=algorithm, split=True)


@pytest.fixture
def three(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the second of three."""
    set_share(monkeypatch, equal_share(3, 1))


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_part_of_a_split_limit_is_admitted_without_calling_redis(
    algorithm: str, direct: redis.Redis
) -> None:
    """A third is admitted."""
    calls = direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    limiter = split("split", "90/h", algorithm)
    decisions = [limiter.hit("x") for _ in range(60)]
    assert sum(decision.allowed for decision in decisions) == 30
    assert {decision.source for decision in decisions} == {"split"}
    assert (decisions[0].granted, decisions[-1].granted) == (1, 0)
    state = decisions[-1].limits[0]
    assert (state.limit, state.used, state.remaining) == (90, 30, 0)
    assert 0 < state.retry_after <= 3600
    # The rules are asked for apart, once in a second.
    assert direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) - calls <= 3


@pytest.mark.usefixtures("three")
def test_split_limits_support_coroutines_refunds_and_resets() -> None:
    """A partial hit and a hit with debt are admitted whole or refused."""
    limiter = split("x", "90/h")

    async def ahit() -> Any:
        return await limiter.ahit("x", cost=20)

    assert asyncio.run(ahit()).granted == 20
    assert not limiter.hit("x", cost=20, partial=True)
    assert limiter.hit("x", cost=10, partial=True).granted == 10
    assert not limiter.hit("x")
    assert limiter.peek("x").remaining == 0
    assert limiter.refund("x", cost=4).remaining == 4
    assert limiter.hit("x", cost=4)
    limiter.reset("x")
    assert limiter.peek("x").remaining == 30
    assert not limiter.hit("y", cost=31)
    bucket = split("bucket", "90/h", "token_bucket")
    assert not bucket.acquire("x", 31, timeout=0, debt=True)


@pytest.mark.usefixtures("three")
def test_several_split_limits_are_all_or_nothing() -> None:
    """A refusal by another limit takes no units of the part, and the reverse."""
    part = Limit("p", "90/h", algorithm="fixed_window", split=True)
    shared = Limit("s", "100/h")
    charges = [Charge(part, digest("x")), Charge(shared, digest("x"))]
    decisions = [decide(build_call(charges)) for _ in range(40)]
    assert [decision.allowed for decision in decisions] == [True] * 30 + [False] * 10
    assert decisions[0].source == "redis"
    assert decisions[-1].denied_by == ("p",)
    assert [state.used for state in decide(build_call(charges, "peek")).limits] == [30, 30]
    partial = decide(
        build_call([Charge(part, digest("y"), 50), Charge(shared, digest("y"), 50)], partial=True)
    )
    assert not partial
    other = [Charge(part, digest("y")), Charge(shared, digest("y"))]
    assert [state.used for state in decide(build_call(other, "peek")).limits] == [0, 0]
    leased = Charge(Limit("l", "100000/h", algorithm="fixed_window", lease=100), digest("z"))
    mixed = [decide(build_call([Charge(part, digest("z")), leased])) for _ in range(40)]
    assert sum(decision.allowed for decision in mixed) == 30


@pytest.mark.usefixtures("three")
@pytest.mark.django_db(transaction=True)
def test_edited_split_rules_apply_within_a_second() -> None:
    """The rules are compared once a second although no limit is stored in Redis."""
    limiter = RateLimiter("x", "5/h")
    RateLimitRule.objects.create(
        name="x", rate="900/h", options={"algorithm": "fixed_window", "split": True}
    )
    assert sum(limiter.hit("x").allowed for _ in range(500)) == 300
    RateLimitRule.objects.update(rate="2000/h")
    until(lambda: limiter.hit("x").limits[0].limit == 2000, "the edit holds", 2)


@pytest.mark.usefixtures("three")
def test_a_split_limit_continues_in_an_outage(settings: Any) -> None:
    """Decisions need no call to Redis."""
    limiter = split("x", "90/h")
    assert sum(limiter.hit("x").allowed for _ in range(10)) == 10
    settings.RATELIMIT_TIMEOUT = 0.1
    settings.CACHES = caches(CLOSED)
    decisions = [limiter.hit("x") for _ in range(30)]
    assert {decision.source for decision in decisions} == {"split"}
    assert sum(decision.allowed for decision in decisions) == 20


@pytest.mark.usefixtures("quiet")
def test_a_part_changes_with_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process is added, admitted units stay counted."""
    for algorithm in ALGORITHMS:
        limiter = split(algorithm, "90/h", algorithm)
        set_share(monkeypatch, WHOLE)
        assert sum(limiter.hit("x").allowed for _ in range(40)) == 40
        set_share(monkeypatch, equal_share(3))
        assert not limiter.hit("x")
        set_share(monkeypatch, equal_share(2))
        assert sum(limiter.hit("x").allowed for _ in range(40)) == 5


@pytest.mark.usefixtures("quiet")
def test_a_part_of_zero_units_refuses_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has the only unit, and parts may change."""
    set_share(monkeypatch, equal_share(3, 2))
    limiter = split("too small", "1/h")
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua"):
        for _ in range(2):
            decision = limiter.hit("x")
    assert (decision.allowed, decision.retry_after, decision.remaining) == (False, 1.0, 0)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "'too small' has too few units (1) for 3 processes" in message
    set_share(monkeypatch, equal_share(3))
    assert limiter.hit("x").allowed


@pytest.mark.usefixtures("quiet")
def test_processes_are_counted_anew_after_redis_was_emptied(direct: redis.Redis) -> None:
    """A process counts only itself until the others have sent their next heartbeats."""
    several = [Heartbeat() for _ in range(3)]
    for one in several * 2:
        one.beat()
    assert several[0].count == 3
    direct.flushall()
    assert several[0].beat() == 1
    assert [one.beat() for one in several] == [1, 2, 3]
    assert [one.beat() for one in several] == [3, 3, 3]


@pytest.mark.usefixtures("quiet")
def test_the_first_hit_adds_a_process_at_once() -> None:
    """It needs no heartbeat before its first hit, sync or async, is decided by its part."""
    others = [Heartbeat() for _ in range(2)]
    for other in others:
        other.beat()
    limiter = split("x", "999/h")
    first = limiter.hit("x")
    assert (first.source, first.allowed) == ("split", True)
    assert 1 + sum(limiter.hit("x").allowed for _ in range(500)) == 333
    heartbeat.share = None
    assert asyncio.run(limiter.ahit("y")).source == "split"
    assert sum(limiter.hit("y").allowed for _ in range(500)) == 332


@pytest.mark.usefixtures("quiet")
def test_the_first_hit_in_an_outage_costs_at_most_the_deadline(settings: Any) -> None:
    """A process that first uses a limit while Redis hangs decides by its share of all processes."""
    settings.RATELIMIT_TIMEOUT = 0.2
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    with Server() as server:
        settings.CACHES = caches(server.url)
        decide(build_call([Charge(Limit("plain", "5/h"), digest("x"))]))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert split("x", "100/h").hit("x").source == "fallback"
            assert time.monotonic() - began < 0.35
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_heartbeats_continue_until_the_process_ends() -> None:
    """They start with the first decision that depends on the number of processes."""
    other = Heartbeat()
    assert split("x", "100/h").hit("x")
    other.beat()
    until(lambda: heartbeat.count == 2, "it has found the other", 5)
    other.leave()
    until(lambda: heartbeat.count == 1, "the other is gone", 5)
    heartbeat.leave()
    assert other.beat() == 1


HIT = "sum(limiter.hit({!r}).allowed for _ in range(1001))"


def born(prefix: str, host: str, count: int, weight: int = 1) -> list[Worker]:
    """Start processes on a host, which have used a split limit."""
    workers = [Worker(prefix, {}, RATELIMIT_WEIGHT=weight) for _ in range(count)]
    limiter = "RateLimiter('window', '1000/h', algorithm='fixed_window', split=True)"
    for worker in workers:
        worker(f"import socket ;; socket.gethostname = lambda: {host!r} ;; limiter = {limiter}")
        worker("from django_ratelimit_lua.engine.heartbeat import heartbeat")
        assert worker("limiter.hit('to use it').granted") == 1
    return workers


def ask(workers: list[Worker], expression: str) -> list[Any]:
    """Return the value of an expression in each process."""
    for worker in workers:
        worker.send(expression)
    return [worker.answer() for worker in workers]


def end(workers: list[Worker]) -> None:
    """Close the input of the processes, so that they end."""
    for worker in workers:
        worker.__exit__()


@pytest.mark.django_db(transaction=True)
def test_an_operator_divides_a_limit_between_two_hosts(prefix: str, settings: Any) -> None:
    """Hosts with eight and two processes have 70 and 30 percent by their settings."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE
    large, small = born(prefix, "large", 8, 70), born(prefix, "small", 2, 30)
    until(lambda: ask(large + small, "heartbeat.count") == [10] * 10, "all are counted", 10)
    admitted = [sum(ask(workers, HIT.format("x"))) for workers in (large, small)]
    assert admitted == [700, 300]
    operator = staff("view_ratelimitrule", "change_ratelimitrule", name="ada")
    page = operator.get("/admin/django_ratelimit_lua/processes/").content.decode()
    assert "70 %" in page
    weights = {"weight-large": "10", "weight-small": "10"}
    answer = operator.post("/admin/django_ratelimit_lua/processes/", weights)
    assert answer.status_code == 302
    until(
        lambda: ask(large + small, "heartbeat.share.weights") == [[10, 10]] * 10,
        "the weights are in force",
        5,
    )
    admitted = [sum(ask(workers, HIT.format("y"))) for workers in (large, small)]
    assert admitted == [500, 500]
    end(large + small)


def test_the_part_of_a_killed_process_goes_to_the_others(prefix: str) -> None:
    """This takes ten seconds and two heartbeats, and some more on a busy machine."""
    workers = born(prefix, "host", 2)
    until(lambda: ask(workers, "heartbeat.count") == [2, 2], "both are counted", 5)
    killed, left = workers
    assert ask([left], HIT.format("x")) == [500]
    killed.kill()
    end([killed])
    until(lambda: ask([left], "heartbeat.count") == [1], "the other has all", LIFETIME + 4)
    assert ask([left], HIT.format("x")) == [500]
    end([left])
