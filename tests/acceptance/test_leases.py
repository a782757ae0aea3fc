"""Leases: units taken ahead and spent without asking; never more than the limit, and what is not
spent goes back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.http import HttpResponse

from django_ratelimit_lua import Rate, RateLimiter, ratelimit
from django_ratelimit_lua.engine.leases import leases
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.store import Patience
from django_ratelimit_lua.testing.server import Server
from tests.clusters import until
from tests.nursery import Born


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Each test begins and ends without units."""
    yield
    leases.give_back(Patience(5))
    leases.clear()


def window(rate: str = "1000000/h", **options: Any) -> RateLimiter:
    return RateLimiter("hot", rate, algorithm="fixed_window", lease=10_000, **options)


def sources(limiter: RateLimiter, hits: int, who: str = "x") -> Counter[str]:
    return Counter(limiter.hit(who).source for _ in range(hits))


@pytest.fixture
def calls(direct: redis.Redis) -> Any:
    """How many scripts the server has run since the last time."""

    def count() -> int:
        return int(direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    last = [count()]

    def since() -> int:
        last.append(count())
        return last[-1] - last[-2]

    return since


@pytest.mark.alone
@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
def test_a_hot_key_costs_few_calls(algorithm: str, calls: Any) -> None:
    """Twenty thousand hits take some dozens of calls; every one is counted."""
    limiter = RateLimiter("hot", "100000000/h", algorithm=algorithm, lease=10_000)
    found = sources(limiter, 20_000)
    assert found["lease"] > 19_000
    assert calls() < 1000
    leases.give_back(Patience(5))
    assert limiter.peek("x").limits[0].used <= 20_000
    if algorithm == "fixed_window":
        assert limiter.peek("x").limits[0].used == 20_000


def test_rare_clients_get_no_lease(calls: Any) -> None:
    """If a batch would not pay, Redis decides every hit, and no unit is held."""
    limiter = window()
    for _ in range(4):
        assert limiter.hit("x").source == "redis"
        time.sleep(0.3)
    assert limiter.peek("x").limits[0].used == 4


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
def test_one_process_with_leases_admits_at_most_the_limit(algorithm: str) -> None:
    """Threads at once, until all are refused: a window admits exactly N; a bucket no more than its
    burst and what flows in meanwhile.
    """
    limiter = RateLimiter("hot", "3000/h", algorithm=algorithm, lease=500)
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        admitted = sum(
            pool.map(lambda _: sum(limiter.hit("x").allowed for _ in range(800)), range(8))
        )
    most = 3000 + (time.monotonic() - started) * 3000 / 3600
    if algorithm == "fixed_window":
        assert admitted == 3000
    assert 0.99 * 3000 - 501 < admitted <= most


def test_used_and_remaining_are_those_of_all_processes(direct: redis.Redis) -> None:
    """Units that this process holds count as unused. A peek returns the numbers that a hit would
    get, and holds nothing.
    """
    limiter = window("100000/h")
    for _ in range(3000):
        decision = limiter.hit("x")
    state = decision.limits[0]
    assert (decision.source, decision.granted, state.limit) == ("lease", 1, 100_000)
    assert (state.used, state.remaining) == (3000, 97_000)
    assert 0 < state.reset_after <= 3600
    assert limiter.peek("x").limits[0].used == 3000
    leases.give_back(Patience(5))
    assert limiter.peek("x").limits[0].used == 3000


def test_unused_leased_units_are_returned(calls: Any) -> None:
    """They are returned within about half a second, without a further call."""
    limiter = window("100000/h")
    sources(limiter, 3000)
    held = RateLimiter("hot", "100000/h", algorithm="fixed_window")
    assert held.peek("x").limits[0].used > 3000
    until(lambda: held.peek("x").limits[0].used == 3000, "units are returned", 5)


@pytest.mark.alone
def test_leased_units_expire_with_their_window() -> None:
    """Units that were taken in one window are not spent in the next."""
    limiter = RateLimiter(
        "hot", Rate(2000, 500_000), algorithm="fixed_window", align="clock", lease=1000
    )
    windows: Counter[int] = Counter()
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        before = time.time_ns() // 500_000_000
        allowed = limiter.hit("x").allowed
        if allowed and time.time_ns() // 500_000_000 == before:
            windows[before] += 1
    assert max(windows.values()) <= 2000
    assert max(windows.values()) > 1000


@pytest.mark.alone
def test_a_bucket_admits_at_most_its_rate_with_leases() -> None:
    """At most burst + rate x time units are admitted, even if leased units are spent late."""
    limiter = RateLimiter("hot", "20000/s", algorithm="token_bucket", burst=4000, lease=4000)
    plain = RateLimiter("hot", "20000/s", algorithm="token_bucket", burst=4000)
    assert limiter.limits[0].lapse == pytest.approx(0.02)
    worst, admitted, started = 0.0, 0, time.monotonic()
    for round_ in range(12):
        for _ in range(600):
            admitted += limiter.hit("x").allowed
        time.sleep(0.015)
        admitted += plain.hit("x", cost=400).allowed * 400 if round_ % 3 == 0 else 0
        worst = max(worst, admitted - 4000 - (time.monotonic() - started) * 20_000)
    assert worst <= 0


def test_several_leased_limits_are_all_or_nothing() -> None:
    """If one limit refuses, the units of the others are returned. Each has counted the admitted
    hits.
    """
    limiter = RateLimiter("hot", ["5000/h", "100000/h"], algorithm="fixed_window", lease=500)
    assert sum(limiter.hit("x").allowed for _ in range(6000)) == 5000
    leases.give_back(Patience(5))
    assert [state.used for state in limiter.peek("x").limits] == [5000, 5000]


def test_a_leased_limit_works_with_an_unleased_one(rf: Any) -> None:
    """A view has both. Redis decides the unleased limit for each request, and its refusals take no
    leased unit.
    """

    @ratelimit("leased", key="ip", rate="100000/h", algorithm="fixed_window", lease=1000)
    @ratelimit("tight", key="ip", rate="700/h")
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    statuses = Counter(view(rf.get("/")).status_code for _ in range(900))
    assert statuses == {200: 700, 429: 200}
    leases.give_back(Patience(5))

    @ratelimit("leased", key="ip", rate="100000/h", algorithm="fixed_window", lease=1000)
    def usage(request: Any) -> HttpResponse:
        return HttpResponse(str(request.ratelimit.limits[0].used))

    assert usage(rf.get("/")).content == b"701"


def test_a_lease_serves_partial_and_large_hits() -> None:
    """A partial hit gets the available units. Any other cost is spent completely or not at all."""
    limiter = window("5000/h")
    assert sum(limiter.hit("x", cost=3).granted for _ in range(1000)) == 3000
    granted = [limiter.hit("x", cost=300, partial=True).granted for _ in range(10)]
    assert sum(granted) == 2000
    assert limiter.peek("x").remaining == 0


def test_refund_reset_and_acquire_work_with_a_lease() -> None:
    """They have the same results as without a lease. A reset ends the lease of this process."""
    limiter = window("4000/h")
    sources(limiter, 3000)
    limiter.reset("x")
    decision = limiter.hit("x")
    assert (decision.source, decision.limits[0].used) == ("redis", 1)
    sources(limiter, 3000)
    limiter.refund("x", cost=500)
    assert limiter.acquire("x", timeout=0).allowed
    leases.give_back(Patience(5))
    # The task may be giving back some of it just now.
    until(lambda: limiter.peek("x").limits[0].used == 2502, "what was not spent is back")


def test_coroutines_share_the_leased_units_of_their_process() -> None:
    """Hundreds of coroutines on two event loops admit exactly N units."""
    limiter = window("9000/h")

    async def crowd() -> int:
        async def hits() -> int:
            count = 0
            for _ in range(80):
                count += (await limiter.ahit("x")).allowed
            return count

        return sum(await asyncio.gather(*(hits() for _ in range(100))))

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(asyncio.run, [crowd(), crowd()])) == 9000


def test_a_forked_process_does_not_spend_its_parents_lease() -> None:
    """Each unit is spent once."""
    limiter = window("100000/h")
    sources(limiter, 2000)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, limiter.hit("x").source.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 100) == b"redis"
    os.close(reading)


def test_in_an_outage_leased_units_are_spent_until_they_expire(settings: Any) -> None:
    """After that, the policy decides, and no exception is raised."""
    with Server() as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        settings.RATELIMIT_TIMEOUT = 0.2
        limiter = window()
        sources(limiter, 3000)
        os.kill(server.pid, signal.SIGSTOP)
        found = Counter()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            found[limiter.hit("x").source] += 1
            time.sleep(0.001)
        os.kill(server.pid, signal.SIGCONT)
    assert set(found) == {"lease", "fallback"}


@pytest.mark.alone
@pytest.mark.django_db(transaction=True)
def test_a_rule_with_a_lease_is_replaced_within_a_second() -> None:
    """Units that were taken under the old rule are spent or returned. Then the new rule applies."""
    limiter = RateLimiter("hot", "5/h")
    RateLimitRule.objects.create(
        name="hot", limit=1_000_000, unit="h", algorithm="fixed_window", lease=5000
    )
    assert sources(limiter, 3000)["lease"] > 2000
    RateLimitRule.objects.update(limit=10, lease=None)
    until(lambda: not limiter.hit("x").allowed, "the edit holds", 2)


WORKER = """
import sys, time
import django
django.setup()
from django.conf import settings
from django.core.signals import setting_changed
settings.RATELIMIT_CACHE_PREFIX = sys.argv[1]
setting_changed.send(None, setting="RATELIMIT_CACHE_PREFIX", value=sys.argv[1], enter=True)
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.heartbeat import heartbeat
limiter = RateLimiter("hot", sys.argv[2], algorithm="fixed_window", lease=5000)
heartbeat.beat()
print("ready", flush=True)
sys.stdin.readline()
heartbeat.beat()
admitted = 0
refused_since = None
while refused_since is None or time.monotonic() - refused_since < 1.5:
    if limiter.hit("x").allowed:
        admitted, refused_since = admitted + 1, None
    else:
        refused_since = refused_since or time.monotonic()
        time.sleep(0.001)
print(admitted, flush=True)
"""


def test_eight_processes_admit_exactly_n(prefix: str) -> None:
    """All of them make hits until none was admitted for longer than units are held. Together they
    admit exactly N units.
    """
    workers = [Born(WORKER, prefix, "60000/h") for _ in range(8)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    admitted = [int(worker.communicate()) for worker in workers]
    assert sum(admitted) == 60_000
    assert min(admitted) > 0


def test_a_process_that_ends_returns_its_leased_units(prefix: str) -> None:
    """They are returned at once. After that, the counted units are the admitted ones."""
    script = (
        WORKER.partition("admitted = 0")[0]
        + "print(sum(limiter.hit('x').allowed for _ in range(5000)))"
    )
    arguments = [sys.executable, "-c", script, prefix, "10000000/h"]
    done = subprocess.run(
        arguments, input="go\n", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["ready", "5000"]
    assert (
        RateLimiter("hot", "10000000/h", algorithm="fixed_window").peek("x").limits[0].used == 5000
    )


def test_a_killed_process_loses_at_most_its_leased_units(prefix: str) -> None:
    """Its units stay counted, so other processes admit fewer units, by at most one batch."""
    worker = Born(WORKER, prefix, "10000000/h")
    worker.stdout.readline()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    limiter = RateLimiter("hot", "10000000/h", algorithm="fixed_window", lease=5000)
    until(lambda: limiter.peek("x").limits[0].used > 20_000, "it is at it", 20)
    worker.kill()
    worker.communicate()
    used = limiter.peek("x").limits[0].used
    time.sleep(1.2)
    assert limiter.peek("x").limits[0].used == used
