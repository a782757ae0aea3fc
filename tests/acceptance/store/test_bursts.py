"""A burst with a healthy Redis and default settings admits exactly the limit, under each policy. If
a process needs longer than the deadline to complete a burst, that is no outage.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.provider import load_ruleset, reset_rules
from django_ratelimit_lua.store import Deadline, get_store

pytestmark = pytest.mark.alone
POLICIES = ["open", "closed", "local"]


@pytest.fixture
def shipped(settings: Any) -> None:
    """Set the default deadline, and reset the process to one that has made no decision."""
    settings.RATELIMIT_TIMEOUT = 0.1
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0
    reset_rules()


def assert_no_outage(
    sources: Callable[[int], Counter[tuple[bool, str]]], count: int, settings: Any
) -> None:
    """Redis decides all calls."""
    expected = Counter({(True, "redis"): 10, (False, "redis"): count - 10})
    for who in range(3):
        found = sources(who)
        if found == expected:
            return
        # This makes a new store, so that no pause of an earlier attempt continues.
        settings.RATELIMIT_TIMEOUT = float(settings.RATELIMIT_TIMEOUT)
    assert found == expected


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [10, 100, 800, 3000])
def test_a_burst_of_coroutines_is_decided(count: int, policy: str, settings: Any) -> None:
    """All calls are made in one iteration of an event loop and decided by Redis."""
    settings.RATELIMIT_ON_STORE_ERROR = policy
    limiter = RateLimiter("burst", "10/h")

    async def burst(who: int) -> Any:
        return await asyncio.gather(*(limiter.ahit(who) for _ in range(count)))

    def sources(who: int) -> Counter[tuple[bool, str]]:
        return Counter((decision.allowed, decision.source) for decision in asyncio.run(burst(who)))

    assert_no_outage(sources, count, settings)


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [10, 300])
def test_a_burst_of_threads_is_decided(count: int, policy: str, settings: Any) -> None:
    """There are more threads than connections, and they begin at the same moment."""
    # Hundreds of threads keep a small machine's processors from its Redis, too.
    settings.RATELIMIT_TIMEOUT = 0.25
    settings.RATELIMIT_ON_STORE_ERROR = policy
    limiter = RateLimiter("burst", "10/h")

    def sources(who: int) -> Counter[tuple[bool, str]]:
        together = threading.Barrier(count)

        def one(number: int) -> tuple[bool, str]:
            together.wait()
            decision = limiter.hit(who)
            return decision.allowed, decision.source

        with ThreadPoolExecutor(count) as pool:
            return Counter(pool.map(one, range(count)))

    assert_no_outage(sources, count, settings)


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(("others_are_answered", "left"), [(True, 0.1), (False, 0.05)])
def test_a_burst_of_calls_that_wait_for_the_rules_is_decided(
    others_are_answered: bool, left: float
) -> None:
    """The threads of a new process wait for the thread that loads the rules."""
    deadline = Deadline(0.1)
    with provider._lock:
        waiting = threading.Thread(target=load_ruleset, args=(None, deadline))
        waiting.start()
        while waiting.is_alive():
            if others_are_answered:
                get_store().execute(b"PING")
            waiting.join(0.005)
    assert deadline.left == pytest.approx(left)
