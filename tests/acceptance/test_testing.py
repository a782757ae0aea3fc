"""What the tests of others are given."""

from __future__ import annotations

import asyncio
import os
import unittest
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.test import Client, SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.testing import Server, move_clock, override_ratelimits
from tests.server import url

limiter = RateLimiter("tested", "2/h")


def test_override_ratelimits_starts_with_fresh_counts() -> None:
    """Each use starts from nothing."""
    limiter.hit("ada", 2)
    for _ in range(2):
        with override_ratelimits():
            assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    with override_ratelimits(fresh=False):
        assert not limiter.hit("ada")
    with override_ratelimits(RATELIMIT_CACHE_PREFIX="mine:", enabled=False):
        assert limiter.hit("ada")


@pytest.mark.parametrize("how", ["password", "option"])
def test_a_test_server_may_have_a_password(how: str) -> None:
    """Of any letters; limits are decided on it by its URL alone, another server is started by its
    options, and clients without the password are refused.
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
            assert [(decision.allowed, decision.source) for decision in decisions] == [
                (True, "redis"),
                (True, "redis"),
                (False, "redis"),
            ]
            assert caches["default"].set("x", 1)
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).ping()
        with Server(server.binary, *server.options) as other:
            assert redis.Redis.from_url(other.url).ping()


@override_ratelimits(RATELIMIT_ALGORITHM="token_bucket")
@move_clock(kwarg_name="clock")
def refills(clock: Any) -> None:
    assert limiter.hit("ada", 2)
    clock.advance(timedelta(minutes=30))
    assert limiter.hit("ada").remaining == 0
    clock.advance(-60)
    assert not limiter.hit("ada")


def test_override_ratelimits_decorates_functions() -> None:
    """Settings and a clock, which it gets as an argument."""
    refills()
    refills()


@override_ratelimits()
async def hits() -> None:
    assert await limiter.ahit("ada", 2)


def test_override_ratelimits_decorates_coroutines() -> None:
    """It may be one."""
    asyncio.run(hits())
    assert limiter.peek("ada").remaining == 2


@override_ratelimits(
    rules=[{"name": "all", "path": "/", "key": "ip", "rate": "1/h"}],
    MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
)
class TestCaseWithRules(SimpleTestCase):
    """Decorating a class."""

    def test_counts_start_fresh_in_the_first_test(self) -> None:
        """Rules apply, and each test starts afresh."""
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 429]

    def test_counts_start_fresh_in_the_second_test(self) -> None:
        """The same once more."""
        with override_ratelimits():
            assert self.client.get("/nowhere").status_code == 404


def test_pytest_fixtures_work(
    ratelimit_clock: Any, override_ratelimits: Any, ratelimit_server: Any
) -> None:
    """The same for pytest, and a server."""
    override_ratelimits(enabled=False)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True] * 3
    override_ratelimits(enabled=True)
    assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    ratelimit_clock.advance(3960)
    assert limiter.hit("ada")
    with redis.Redis.from_url(ratelimit_server.url) as direct:
        assert direct.ping()


def test_a_disabled_view_makes_no_call(client: Client, settings: Any) -> None:
    """`RATELIMIT_ENABLE = False` costs a view nothing: not even a look at the cache."""
    settings.CACHES = {}
    with override_ratelimits(enabled=False):
        assert [client.get("/plain").status_code for _ in range(3)] == [200] * 3


def published_rules() -> int:
    """How many keys of rules tests have left in Redis. Counts of refusals, written each second, are
    none of them.
    """
    with redis.Redis.from_url(url()) as connection:
        keys = connection.scan_iter(f"test:{os.getpid()}:*{{rules}}*", count=10_000)
        return sum(b":exceeded:" not in key for key in keys)


class Counts:
    """What every decorated class has to keep: its tests know nothing of each other."""

    def test_counts_are_separate_in_the_first_test(self) -> None:
        """The same as the second."""
        self.counts()

    def test_counts_are_separate_in_the_second_test(self) -> None:
        """The same as the first."""
        self.counts()

    def counts(self) -> None:
        """Under a prefix of the test's own."""
        assert conf.CACHE_PREFIX.startswith(f"test:{os.getpid()}:".encode())
        assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]


class Publishes(Counts):
    """The same for rules of the admin, which are gone with the test."""

    client: Client

    def counts(self) -> None:
        """Of the rules that others made, none applies."""
        super().counts()
        assert RateLimitRule.objects.count() == 0
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 404]
        with TestCase.captureOnCommitCallbacks(execute=True):
            RateLimitRule.objects.create(name="site", path="/", key="ip", limit=1, unit="h")
        assert [self.client.get("/nowhere").status_code for _ in range(2)] == [404, 429]


MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def ran(*cases: type) -> unittest.TestResult:
    """What became of the tests of these classes, as unittest runs them."""
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    result = unittest.TestResult()
    unittest.TestSuite(load(case) for case in cases).run(result)
    assert not result.errors + result.failures, "\n".join(
        text for _, text in result.errors + result.failures
    )
    return result


@pytest.mark.django_db(transaction=True)
def test_decorated_classes_start_with_fresh_counts_and_leave_no_state() -> None:
    """Django's and unittest's own, inherited too: no test sees another's counts or rules, nor does
    the site.
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
    """Also where it is set up, which has a prefix of its own."""
    seen: list[Any] = []

    class Case(TestCase):
        @classmethod
        def setUpTestData(cls) -> None:
            seen.append((conf.CACHE_PREFIX, conf.ALGORITHM))

        def setUp(self) -> None:
            seen.append((conf.CACHE_PREFIX, conf.ALGORITHM))

        def test(self) -> None:
            """Nothing more."""

    outside = conf.CACHE_PREFIX
    ran(override_ratelimits(RATELIMIT_ALGORITHM="fixed_window")(Case))
    assert [algorithm for _, algorithm in seen] == ["fixed_window"] * 2
    assert len({outside, *(prefix for prefix, _ in seen)}) == 3
    with pytest.raises(ValueError, match="a subclass of TestCase"):
        override_ratelimits()(Counts)
