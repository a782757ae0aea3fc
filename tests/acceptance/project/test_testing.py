"""The testing tools for projects."""

from __future__ import annotations

import asyncio
import os
import signal
import unittest
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.test import Client, TestCase, TransactionTestCase, override_settings

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.testing import Server, override_ratelimits
from tests.support.redis_server import url
from tests.urls import LIMITS

limiter = RateLimiter("tested", "2/h")


@pytest.mark.parametrize("how", ["password", "option"])
def test_a_test_server_may_have_a_password(how: str) -> None:
    """The password may contain any characters. The URL of the server has it, another server can be
    started with the options, and clients without it are refused.
    """
    secret = "p@ss/ word:ü"
    wanted: Any = {"password": secret} if how == "password" else {}
    options = () if wanted else ("--requirepass", secret)
    with Server(None, *options, **wanted) as server:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        with (
            override_settings(CACHES={"default": cache}),
            override_ratelimits(RATELIMIT_TIMEOUT=10),
        ):
            decisions = [limiter.hit("ada") for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]
            assert {decision.source for decision in decisions} == {"redis"}
            assert caches["default"].set("x", 1)
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).ping()
        with Server(server.binary, *server.options) as other:
            assert redis.Redis.from_url(other.url).ping()


def test_a_test_server_stops_while_a_forked_child_lives() -> None:
    """The child has a copy of the pipe at whose end the server stops."""
    with Server() as server:
        child = os.fork()
        if child == 0:
            signal.pause()
        server.stop()
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with pytest.raises(redis.ConnectionError):
            redis.Redis.from_url(server.url).ping()


@override_ratelimits()
async def hits() -> None:
    assert await limiter.ahit("ada", 2)


def test_override_ratelimits_decorates_coroutines() -> None:
    """The settings apply while the coroutine runs."""
    asyncio.run(hits())
    assert limiter.peek("ada").remaining == 2


def test_pytest_fixtures_work(
    ratelimit_clock: Any, override_ratelimits: Any, ratelimit_server: Any
) -> None:
    """The fixtures are a clock, settings and a server."""
    override_ratelimits(enabled=False)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True] * 3
    override_ratelimits(enabled=True)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    ratelimit_clock.advance(3960)
    assert limiter.hit("ada")
    with redis.Redis.from_url(ratelimit_server.url) as direct:
        assert direct.ping()


@pytest.fixture
def used() -> None:
    """Use a limit up, as a development server with the same Redis does."""
    assert [limiter.hit("grace").allowed for _ in range(3)][-1] is False


def test_the_clock_alone_begins_with_fresh_counts(used: None, ratelimit_clock: Any) -> None:
    """Counts that are in Redis already do not refuse the first request of a test."""
    assert [limiter.hit("grace").allowed for _ in range(3)] == [True, True, False]
    ratelimit_clock.advance(3960)
    assert limiter.hit("grace").allowed


def published_rules() -> int:
    """Return the number of keys of rules that tests have left in Redis, without counts of refusals,
    which are written each second.
    """
    with redis.Redis.from_url(url()) as connection:
        keys = connection.scan_iter(f"test:{os.getpid()}:*{{rules}}*", count=10_000)
        return sum(b":exceeded:" not in key for key in keys)


class Counts:
    """Tests that must not affect each other in a decorated class."""

    def test_first(self) -> None:
        self.counts()

    def test_second(self) -> None:
        self.counts()

    def counts(self) -> None:
        """Hit a limiter under the prefix of the test."""
        assert conf.CACHE_PREFIX.startswith(f"test:{os.getpid()}:".encode())
        assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]


class Publishes(Counts):
    """Tests with rules of the admin, which end with the test."""

    client: Client

    def counts(self) -> None:
        """Check that no rule of another test applies, and create one."""
        super().counts()
        assert RateLimitRule.objects.count() == 0
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 404]
        with TestCase.captureOnCommitCallbacks(execute=True):
            RateLimitRule.objects.create(name="site", path="/", key="ip", rate="1/h")
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 429]


MIDDLEWARE = [LIMITS]


def ran(*cases: type) -> unittest.TestResult:
    """Run the tests of these classes with unittest, and return the result."""
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    result = unittest.TestResult()
    unittest.TestSuite(load(case) for case in cases).run(result)
    assert not result.errors + result.failures, "\n".join(
        text for _, text in result.errors + result.failures
    )
    return result


@pytest.mark.django_db(transaction=True)
def test_decorated_classes_start_with_fresh_counts_and_leave_no_state() -> None:
    """Test cases of Django and of unittest, also inherited ones, share no counts or rules with each
    other or with the site.
    """
    before = conf.CACHE_PREFIX
    left = published_rules()
    limiter.hit("ada", 2)
    plain = override_ratelimits()(type("Plain", (Counts, unittest.TestCase), {}))
    heir = type("Heir", (plain,), {"test_third": Counts.test_first})
    rules = override_ratelimits(MIDDLEWARE=MIDDLEWARE)
    whole = rules(type("Whole", (Publishes, TransactionTestCase), {}))
    rolled_back = rules(type("RolledBack", (Publishes, TestCase), {}))
    again = override_ratelimits()(type("Again", (whole,), {}))
    assert ran(plain, heir, whole, rolled_back, again).testsRun == 11
    assert before == conf.CACHE_PREFIX
    assert not limiter.peek("ada")
    assert published_rules() == left


@pytest.mark.django_db(transaction=True)
def test_settings_of_a_decorated_class_apply_to_its_setup() -> None:
    """They also apply to `setUpTestData`, which has a separate prefix."""
    seen: list[Any] = []

    class Case(TestCase):
        @classmethod
        def setUpTestData(cls) -> None:
            seen.append((conf.CACHE_PREFIX, conf.ALGORITHM))

        def setUp(self) -> None:
            seen.append((conf.CACHE_PREFIX, conf.ALGORITHM))

        def test(self) -> None:
            """Run the setup only."""

    outside = conf.CACHE_PREFIX
    ran(override_ratelimits(RATELIMIT_ALGORITHM="fixed_window")(Case))
    assert [algorithm for _, algorithm in seen] == ["fixed_window"] * 2
    assert len({outside, *(prefix for prefix, _ in seen)}) == 3
