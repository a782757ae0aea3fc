"""What the tests of others are given."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import redis
from django.test import Client, SimpleTestCase

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.testing import move_clock, override_ratelimits

limiter = RateLimiter("tested", "2/h")


def test_counts_are_fresh_and_those_outside_are_left_alone() -> None:
    """Each use starts from nothing."""
    limiter.hit("ada", 2)
    for _ in range(2):
        with override_ratelimits():
            assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    with override_ratelimits(fresh=False):
        assert not limiter.hit("ada")
    with override_ratelimits(RATELIMIT_CACHE_PREFIX="mine:", enabled=False):
        assert limiter.hit("ada")


@override_ratelimits(RATELIMIT_ALGORITHM="token_bucket")
@move_clock(kwarg_name="clock")
def refills(clock: Any) -> None:
    assert limiter.hit("ada", 2)
    clock.advance(timedelta(minutes=30))
    assert limiter.hit("ada").remaining == 0
    clock.advance(-60)
    assert not limiter.hit("ada")


def test_decorating_a_function() -> None:
    """Settings and a clock, which it gets as an argument."""
    refills()
    refills()


@override_ratelimits()
async def hits() -> None:
    assert await limiter.ahit("ada", 2)


def test_decorating_a_coroutine() -> None:
    """It may be one."""
    asyncio.run(hits())
    assert limiter.peek("ada").remaining == 2


@override_ratelimits(
    rules=[{"name": "all", "key": "ip", "rate": "1/h"}],
    MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
)
class TestCaseWithRules(SimpleTestCase):
    """Decorating a class."""

    def test_first(self) -> None:
        """Rules apply, and each test starts afresh."""
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 429]

    def test_second(self) -> None:
        """The same once more."""
        with override_ratelimits():
            assert self.client.get("/nowhere").status_code == 404


def test_fixtures(ratelimit_clock: Any, override_ratelimits: Any, ratelimit_server: Any) -> None:
    """The same for pytest, and a server."""
    override_ratelimits(enabled=False)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True] * 3
    override_ratelimits(enabled=True)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    ratelimit_clock.advance(3960)
    assert limiter.hit("ada")
    with redis.Redis.from_url(ratelimit_server.url) as direct:
        assert direct.ping()


def test_switched_off_a_view_asks_nobody(client: Client, settings: Any) -> None:
    """`RATELIMIT_ENABLE = False` costs a view nothing: not even a look at the cache."""
    settings.CACHES = {}
    with override_ratelimits(enabled=False):
        assert [client.get("/plain").status_code for _ in range(3)] == [200] * 3
