"""Splits: each process has a part of a limit and decides without Redis, and all parts together are
the limit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from ast import literal_eval
from typing import Any

import pytest
import redis
from django.http import HttpResponse

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.heartbeat import (
    BEAT_SECONDS,
    LIFETIME,
    Heartbeat,
    ProcessShare,
    heartbeat,
)
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.testing.server import Server
from tests.calls import decide
from tests.clusters import until
from tests.nursery import Born
from tests.parts import set_part


@pytest.fixture
def three(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the second of three."""
    monkeypatch.setattr(heartbeat, "count", 3)
    set_part(monkeypatch, ProcessShare(1, 3))


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_part_of_a_split_limit_is_admitted_without_calling_redis(
    algorithm: str, direct: redis.Redis
) -> None:
    """A third is admitted. The source of the decisions is "split", and Redis has no key of the
    limit.
    """
    calls = direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    limiter = RateLimiter("split", "90/h", algorithm=algorithm, split="equal")
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
    """They have the same results as under other limits, but a partial hit and a hit with debt are
    admitted whole or refused.
    """
    limiter = RateLimiter("x", "90/h", split="equal")

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
    bucket = RateLimiter("bucket", "90/h", algorithm="token_bucket", split="equal")
    assert not bucket.acquire("x", 31, timeout=0, debt=True)


@pytest.mark.usefixtures("three")
def test_several_split_limits_are_all_or_nothing(rf: Any) -> None:
    """A refusal by another limit takes no units of the part, and the reverse."""

    @ratelimit("split", key="ip", rate="90/h", split="equal")
    @ratelimit("shared", key="ip", rate="10/h")
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    assert [view(rf.get("/")).status_code for _ in range(14)] == [200] * 10 + [429] * 4
    part, shared = Limit("p", "90/h", split="equal"), Limit("s", "100/h")
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
    RateLimitRule.objects.create(name="x", limit=900, unit="h", split="equal")
    assert sum(limiter.hit("x").allowed for _ in range(500)) == 300
    RateLimitRule.objects.update(limit=2000)
    until(lambda: limiter.hit("x").limits[0].limit == 2000, "the edit holds", 2)


@pytest.mark.usefixtures("three")
def test_a_split_limit_continues_in_an_outage(settings: Any) -> None:
    """Decisions need no call to Redis."""
    limiter = RateLimiter("x", "90/h", split="equal")
    assert sum(limiter.hit("x").allowed for _ in range(10)) == 10
    settings.RATELIMIT_TIMEOUT = 0.1
    nowhere = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    }
    settings.CACHES = nowhere
    decisions = [limiter.hit("x") for _ in range(30)]
    assert {decision.source for decision in decisions} == {"split"}
    assert sum(decision.allowed for decision in decisions) == 20


@pytest.mark.usefixtures("quiet")
def test_a_part_changes_with_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process is added, admitted units stay counted. If one is removed, more units are
    available immediately.
    """
    for algorithm in ("fixed_window", "token_bucket"):
        limiter = RateLimiter(algorithm, "90/h", algorithm=algorithm, split="equal")
        set_part(monkeypatch, ProcessShare(0, 1))
        assert sum(limiter.hit("x").allowed for _ in range(40)) == 40
        set_part(monkeypatch, ProcessShare(0, 3))
        assert not limiter.hit("x")
        set_part(monkeypatch, ProcessShare(0, 2))
        assert sum(limiter.hit("x").allowed for _ in range(40)) == 5


EQUAL = Limit("equal", "1000/h", split="equal")
OTHER = Limit("other", "1000/h", split="equal")


def beat(one: Heartbeat, *limits: Limit) -> int:
    """Send a heartbeat of a process that has just used these limits."""
    for limit in limits:
        one.use(limit)
    return one.beat()


@pytest.mark.usefixtures("quiet")
def test_the_parts_of_processes_are_numbered() -> None:
    """Each heartbeat returns a unique part. A process that ends is removed immediately."""
    several = [Heartbeat() for _ in range(4)]
    for one in several:
        beat(one, EQUAL)
    assert [one.beat() for one in several] == [4] * 4
    parts = [one.part_of(EQUAL) for one in several]
    assert sorted(part.before for part in parts) == [0, 1, 2, 3]
    assert {part.of for part in parts} == {4}
    several[3].goodbye()
    assert several[0].beat() == 3
    assert several[0].part_of(EQUAL).of == 3


@pytest.mark.usefixtures("quiet")
def test_only_processes_that_use_a_limit_have_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are only counted. A process without hits loses its part, and gets it back
    with its next hit.
    """
    busy, other, idle = Heartbeat(), Heartbeat(), Heartbeat()
    for _ in range(2):
        counts = [beat(busy, EQUAL), beat(other, EQUAL, OTHER), beat(idle)]
    assert counts == [3, 3, 3]
    assert [one.part_of(EQUAL).units(100) for one in (busy, other)] == [50, 50]
    assert other.part_of(OTHER) == ProcessShare(0, 1)
    assert idle.part_of(EQUAL) is None
    monkeypatch.setattr("django_ratelimit_lua.engine.heartbeat.USED_SECONDS", 0.05)
    time.sleep(0.1)
    other.beat()
    beat(busy, EQUAL)
    assert other.part_of(EQUAL) is None
    assert busy.part_of(EQUAL).units(100) == 100
    beat(other, EQUAL)
    beat(busy, EQUAL)
    assert busy.part_of(EQUAL).units(100) == 50
    assert busy.beat() == 3


@pytest.mark.usefixtures("quiet")
def test_a_process_splits_a_bounded_number_of_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further limit is decided by the share of one of all processes."""
    monkeypatch.setattr("django_ratelimit_lua.engine.heartbeat.MAX_SPLITS", 1)
    first, second = (RateLimiter(name, "100/h", split="equal") for name in ("first", "second"))
    assert sum(first.hit("x").allowed for _ in range(101)) == 100
    monkeypatch.setattr(heartbeat, "count", 4)
    assert sum(second.hit("x").allowed for _ in range(101)) == 25


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_part_of_zero_units_refuses_only_for_a_moment(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has the only unit, and parts may change, so the refusal has a short retry
    time.
    """
    set_part(monkeypatch, ProcessShare(0, 3))
    limiter = RateLimiter("x", "1/h", algorithm=algorithm, split="equal")
    decision = limiter.hit("x")
    assert (decision.allowed, decision.retry_after, decision.limits[0].remaining) == (False, 1.0, 0)
    set_part(monkeypatch, ProcessShare(2, 3))
    assert limiter.hit("x").allowed
    set_part(monkeypatch, ProcessShare(1, 3))
    assert limiter.hit("x").retry_after == 1.0
    assert limiter.refund("x").remaining == 0
    assert limiter.peek("x").limits[0].used == 0


@pytest.mark.usefixtures("quiet")
def test_the_first_hit_adds_a_process_at_once() -> None:
    """It needs no heartbeat before its first hit, sync or async, is decided by its part. A peek
    adds no process.
    """
    others = [Heartbeat() for _ in range(2)]
    for other in others:
        beat(other, EQUAL, OTHER)
    equal, another = (
        RateLimiter(limit.name, "1000/h", split=limit.split) for limit in (EQUAL, OTHER)
    )
    equal.peek("x")
    assert heartbeat.part_of(EQUAL) is None
    for limiter, hit in (
        (equal, equal.hit),
        (another, lambda who: asyncio.run(another.ahit(who))),
    ):
        first = hit("x")
        assert (first.source, first.allowed) == ("split", True)
        assert 1 + sum(limiter.hit("x").allowed for _ in range(500)) in (333, 334)


@pytest.mark.usefixtures("quiet")
def test_joining_a_register_in_an_outage_costs_at_most_the_deadline(settings: Any) -> None:
    """A process that first uses a limit while Redis hangs decides by its share of all processes."""
    settings.RATELIMIT_TIMEOUT = 0.2
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    with Server() as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        decide(build_call([Charge(Limit("plain", "5/h"), digest("x"))]))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert RateLimiter("x", "100/h", split="equal").hit("x").source == "fallback"
            assert time.monotonic() - began < 0.35
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_heartbeats_continue_until_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """They start with the first use, and stop when the process ends."""
    monkeypatch.setattr("django_ratelimit_lua.engine.heartbeat.BEAT_SECONDS", 0.02)
    one, other = Heartbeat(), Heartbeat()
    one.use(EQUAL)
    one.start()
    one.start()
    until(lambda: one.part_of(EQUAL) == ProcessShare(0, 1), "it knows of itself", 5)
    other.beat()
    until(lambda: one.count == 2, "it knows of the other", 5)
    other.goodbye()
    until(lambda: one.count == 1, "the other is gone", 5)
    one.goodbye()


WORKER = """
import socket, sys
import django
django.setup()
from django.conf import settings
from django.core.signals import setting_changed
prefix, host = sys.argv[1:]
settings.RATELIMIT_CACHE_PREFIX = prefix
setting_changed.send(None, setting="RATELIMIT_CACHE_PREFIX", value=prefix, enter=True)
socket.gethostname = lambda: host
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.heartbeat import heartbeat
busy = [RateLimiter(name, "1000/h", split="equal") for name in ("one", "other")]
window = RateLimiter("window", "100/h", split="equal")
idle = RateLimiter("idle", "100/h", split="equal")
def hit(limiter, identity="x", times=1500):
    return sum(limiter.hit(identity).allowed for _ in range(times))
def part(limiter):
    limiter.hit("to use it")
    part = heartbeat.part_of(limiter.limits[0])
    return part and part.units(100)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


def ask(workers: list[Any], expression: str) -> list[Any]:
    """Return the value of an expression in each process."""
    for worker in workers:
        print(expression, file=worker.stdin, flush=True)
    return [literal_eval(worker.stdout.readline()) for worker in workers]


def end(workers: list[Any]) -> None:
    """Close the input of the processes, so that they end."""
    for worker in workers:
        worker.communicate()


def test_real_processes_admit_exactly_n_together(prefix: str) -> None:
    """Four processes have equal parts."""
    workers = [Born(WORKER, prefix, host) for host in ("one", "one", "two", "four")]
    for _ in range(2):
        counts = ask(
            workers, "[hit(limiter, 'to use it', 1) for limiter in busy] and heartbeat.beat()"
        )
    assert counts == [4] * 4
    admitted = ask(workers, "[hit(limiter) for limiter in busy]")
    end(workers)
    assert admitted == [[250, 250]] * 4


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_an_idle_process_still_counts_what_it_admitted(algorithm: str) -> None:
    """Its part is removed after five seconds. When it returns, it has its whole part without the
    units that it had admitted.
    """
    limiter = RateLimiter("idle", "30/h", algorithm=algorithm, split="equal")
    for part in (20, 10, 0):
        assert sum(limiter.hit("ada").allowed for _ in range(20)) == part
        heartbeat._splits.clear()  # As after five seconds without a hit.


def test_an_idle_process_has_no_part(prefix: str) -> None:
    """It uses another limit. Two other processes have parts of 50, and admit exactly 100 in a
    window.
    """
    workers = [Born(WORKER, prefix, "host") for _ in range(3)]
    busy, idle = workers[:2], workers[2:]
    assert ask(idle, "hit(idle, times=1)") == [1]
    until(lambda: ask(busy, "part(window)") == [50, 50], "both have a part", 10)
    assert ask(idle, "heartbeat.beat()") == [3]
    assert ask(busy, "hit(window)") == [50, 50]
    end(workers)


def test_the_part_of_a_killed_process_goes_to_the_others(prefix: str) -> None:
    """This takes ten seconds and two heartbeats, and some more on a busy machine."""
    workers = [Born(WORKER, prefix, "host") for _ in range(2)]
    until(lambda: ask(workers, "part(window)") == [50, 50], "both have a part", 10)
    killed, left = workers
    assert ask([left], "hit(window)") == [50]
    killed.kill()
    killed.wait(30)
    killed.stdin.close()
    killed.stdout.close()
    until(
        lambda: ask([left], "part(window)") == [100],
        "the other has all",
        LIFETIME + 2 * BEAT_SECONDS + 2,
    )
    assert ask([left], "hit(window)") == [50]
    end([left])
