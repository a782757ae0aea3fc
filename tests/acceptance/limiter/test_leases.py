"""Leases: units taken ahead and spent without asking; never more than the limit, and what is not
spent goes back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.http import HttpResponse

from django_ratelimit_lua import Limit, RateLimiter, ratelimit
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine.decide import deciding_call
from django_ratelimit_lua.engine.leases import leases
from django_ratelimit_lua.engine.local import LocalPart
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.store import Deadline, get_store
from django_ratelimit_lua.testing.server import Server
from tests.support.processes import Worker, until
from tests.support.redis_server import caches

LEASE = 50


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Each test begins and ends without units."""
    yield
    leases.give_back(Deadline(5))
    leases.clear()


def window(rate: str = "1000000/h", **options: Any) -> RateLimiter:
    return RateLimiter("hot", rate, algorithm="fixed_window", lease=LEASE, **options)


def sources(limiter: RateLimiter, hits: int, who: str = "x") -> Counter[str]:
    return Counter(limiter.hit(who).source for _ in range(hits))


def await_batches() -> None:
    """Wait until no batch is being fetched, which would be units of the next moment."""
    batches = [lease.batch for lease in leases._leases.values() if lease.batch is not None]
    until(lambda: all(batch.done() for batch in batches), "no batch is being fetched")


def scripts(direct: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    return int(direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
def test_a_process_calls_redis_for_batches_of_a_hot_key(
    algorithm: str, direct: redis.Redis
) -> None:
    """Ten thousand hits take less than one call for twenty of them, and every one is counted."""
    limiter = RateLimiter("hot", "10000000/h", algorithm=algorithm, burst=None, lease=LEASE)
    before = scripts(direct)
    found = sources(limiter, 10_000)
    assert scripts(direct) - before <= 500
    assert found["lease"] >= 9_990
    leases.give_back(Deadline(5))
    used = limiter.peek("x").limits[0].used
    assert used == 10_000 if algorithm == "fixed_window" else used <= 10_000


def test_units_of_an_idle_client_are_given_back() -> None:
    """They are given back about a second after the last hit, without a further one."""
    limiter = window("100000/h")
    sources(limiter, 2990)
    assert limiter.peek("x").limits[0].used > 2990
    until(lambda: limiter.peek("x").limits[0].used == 2990, "units are given back", 5)


@pytest.mark.alone
def test_a_bucket_admits_at_most_its_rate_with_leases() -> None:
    """At most burst + rate x time units are admitted, even if leased units are spent late."""
    limiter = RateLimiter("hot", "20000/s", algorithm="token_bucket", burst=4000, lease=1000)
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


def test_a_refused_stack_leaves_its_leased_units_to_others() -> None:
    """A hit that found the lease empty meanwhile is refused, but not the next one."""
    limiter = window("2/h")
    assert limiter.hit("x")
    leased = Charge(limiter.limits[0], digest("x"), 1)
    call = Call([leased, Charge(Limit("closed", "0/h"), digest("x"), 1)], prefix=conf.CACHE_PREFIX)
    stack = LocalPart(call)
    deadline = Deadline(5)
    run(stack.taking(deadline), deadline)
    assert not limiter.hit("x")
    stack.complete(get_store().decide(stack.call_for_rest()))
    assert limiter.hit("x").source == "lease"
    assert not limiter.hit("x")


def test_a_refused_stack_is_cached_if_its_leases_are_not_empty() -> None:
    """The process repeats such a refusal without Redis, as that of a stack without leases."""
    limiter = window("1000/h")
    sources(limiter, 10)
    await_batches()
    charges = [
        Charge(limiter.limits[0], digest("x"), 1),
        Charge(Limit("closed", "0/h"), digest("x"), 1),
    ]
    call = Call(charges, prefix=conf.CACHE_PREFIX)
    assert [run(deciding_call(call)).source for _ in range(2)] == ["redis", "deny-cache"]


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
def test_a_function_may_return_the_rate_of_a_leased_limit(algorithm: str, rf: Any) -> None:
    """The options are checked when the module is imported, and fit the returned rate."""

    @ratelimit("f", "ip", lambda group, request: "3/h", algorithm=algorithm, lease=2)
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    codes = [view(rf.get("/")).status_code for _ in range(4)]
    assert codes == ([200] * 3 + [429] if algorithm == "fixed_window" else [200] * 2 + [429] * 2)


def test_a_shadow_limit_spends_only_counted_units() -> None:
    """It refuses no hit, and counts no more than its limit."""
    limiter = window("120/h", mode="shadow")
    assert sum(limiter.hit("x").allowed for _ in range(500)) == 500
    leases.give_back(Deadline(5))
    assert limiter.peek("x").limits[0].used == 120


def test_refund_reset_and_acquire_work_with_a_lease() -> None:
    """They have the same results as without a lease. A reset ends the lease of this process."""
    limiter = window("4000/h")
    sources(limiter, 3000)
    await_batches()
    limiter.reset("x")
    assert limiter.peek("x").limits[0].used == 0
    assert limiter.hit("x").source == "redis"
    sources(limiter, 2999)
    limiter.refund("x", cost=500)
    assert limiter.acquire("x", timeout=0).allowed
    leases.give_back(Deadline(5))
    # The task may be giving back some of it just now.
    until(lambda: limiter.peek("x").limits[0].used == 2501, "what was not spent is back")


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


def test_a_cancelled_coroutine_takes_nothing() -> None:
    """It waits for a batch that others get."""
    limiter = window("1000/h")

    async def cancelled() -> int:
        hits = [asyncio.ensure_future(limiter.ahit("x")) for _ in range(500)]
        while not any(hit.done() for hit in hits):
            await asyncio.sleep(0)
        stopped = [hit for hit in hits if not hit.done() and hit.cancel()]
        await asyncio.gather(*hits, return_exceptions=True)
        assert all(hit.cancelled() for hit in stopped)
        return sum(not hit.cancelled() for hit in hits)

    admitted = asyncio.run(cancelled())
    leases.give_back(Deadline(5))
    assert admitted <= limiter.peek("x").limits[0].used <= 500
    assert admitted + sum(limiter.hit("x").allowed for _ in range(1000)) <= 1000


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


def test_in_an_outage_leased_units_are_spent_first(settings: Any) -> None:
    """After that, the policy decides, and no exception is raised."""
    with Server() as server:
        settings.CACHES = caches(server.url)
        settings.RATELIMIT_TIMEOUT = 0.2
        limiter = window()
        assert sources(limiter, 3000)["fallback"] == 0
        os.kill(server.pid, signal.SIGSTOP)
        found = [limiter.hit("x").source for _ in range(200)]
        os.kill(server.pid, signal.SIGCONT)
    places = found.index("fallback")
    assert set(found[:places]) == {"lease"}
    assert set(found[places:]) == {"fallback"}
    assert 0 < places <= LEASE


@pytest.mark.django_db(transaction=True)
def test_a_rule_with_a_lease_is_replaced_within_a_second() -> None:
    """Units that were taken under the old rule are not spent under the new one."""
    limiter = RateLimiter("hot", "5/h")
    RateLimitRule.objects.create(
        name="hot", rate="1000000/h", options={"algorithm": "fixed_window", "lease": LEASE}
    )
    assert sources(limiter, 300)["lease"] > 200
    RateLimitRule.objects.update(rate="10/h", options={"algorithm": "fixed_window"})
    until(lambda: not limiter.hit("x").allowed, "the edit holds", 2)


def start(prefix: str, rate: str, count: int) -> list[Worker]:
    """Start processes with a lease."""
    limiter = f"RateLimiter('hot', '{rate}', algorithm='fixed_window', lease={LEASE})"
    workers = [Worker(prefix, {}, RATELIMIT_DENY_CACHE_SECONDS=1) for _ in range(count)]
    for worker in workers:
        worker(f"limiter = {limiter} ;; limiter.peek('warm').granted")
    return workers


def hit(workers: list[Worker], hits: int) -> int:
    """Let all processes make hits at once, and return the number of admitted ones."""
    for worker in workers:
        worker.send(f"sum(limiter.hit('x').allowed for _ in range({hits}))")
    return sum(worker.answer() for worker in workers)


def test_eight_processes_admit_exactly_n(prefix: str, direct: redis.Redis) -> None:
    """Of 20,000 hits, 10,000 are admitted, with a call for at least twenty hits."""
    workers = start(prefix, "10000/h", 8)
    before = scripts(direct)
    admitted = hit(workers, 2500)
    assert 9_600 <= admitted <= 10_000
    assert scripts(direct) - before <= 20_000 / 20
    for worker in workers:
        worker.__exit__()
    plain = RateLimiter("hot", "10000/h", algorithm="fixed_window")
    assert admitted + sum(plain.hit("x").allowed for _ in range(401)) == 10_000


def test_a_process_that_ends_gives_its_units_back(prefix: str) -> None:
    """They are given back at once. After that, the counted units are the admitted ones."""
    (worker,) = start(prefix, "10000000/h", 1)
    assert hit([worker], 4990) == 4990
    limiter = window("10000000/h")
    assert limiter.peek("x").limits[0].used > 4990
    worker.__exit__()
    assert limiter.peek("x").limits[0].used == 4990


def test_a_killed_process_loses_at_most_a_batch(prefix: str) -> None:
    """Its units stay counted, so other processes admit fewer units."""
    (worker,) = start(prefix, "10000000/h", 1)
    assert hit([worker], 4990) == 4990
    worker.kill()
    worker.__exit__()
    assert 4990 <= window("10000000/h").peek("x").limits[0].used <= 4990 + LEASE
