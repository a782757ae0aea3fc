"""The deny cache: a flood costs one call a second, and no other question is answered by it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.deny_cache import deny_cache
from django_ratelimit_lua.limiter import _HitPlanner
from django_ratelimit_lua.rules import provider
from tests.engine.test_cost import calls
from tests.support.processes import until

# A listener also receives its own refunds, a moment later, and forgets once more.
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(autouse=True)
def long(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache refusals for longer than a machine stands still, and write no statistics."""
    monkeypatch.setattr("django_ratelimit_lua.engine.decide.decision_hooks", [])
    settings.RATELIMIT_DENY_CACHE_SECONDS = 60


def refused(limiter: RateLimiter, who: str = "x", **options: Any) -> str:
    """Where a refusal came from."""
    decision = limiter.hit(who, **options)
    assert not decision.allowed
    return decision.source


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_flood_is_refused_from_memory(kind: str, direct: redis.Redis) -> None:
    """The first refusal takes one call. The times of later refusals are derived from it."""
    limiter = RateLimiter("x", ["1/h", "100/h"], algorithm="sliding_log")
    limiter.hit("x")
    direct.config_resetstat()

    async def ahits() -> list[Any]:
        return [await limiter.ahit("x") for _ in range(50)]

    found = asyncio.run(ahits()) if kind == "async" else [limiter.hit("x") for _ in range(50)]
    assert calls(direct)["evalsha"] == 1
    assert [decision.source for decision in found] == ["redis"] + ["deny-cache"] * 49
    assert {decision.denied_by for decision in found} == {("x",)}
    retries = [decision.retry_after for decision in found]
    assert retries == sorted(retries, reverse=True)
    assert 3590 < retries[-1] < retries[0] <= 3600
    assert len({(decision.limits[1].remaining, decision.revision) for decision in found}) == 1


def test_a_cached_refusal_ends_after_a_second(direct: redis.Redis, settings: Any) -> None:
    """This is the default. It ends at `retry_after` if that is earlier."""
    del settings.RATELIMIT_DENY_CACHE_SECONDS
    limiter, soon = RateLimiter("x", "1/h"), RateLimiter("soon", "1/s", algorithm="sliding_log")
    limiter.hit("x")
    started = time.monotonic()
    assert refused(limiter) == "redis"
    direct.config_resetstat()
    for asked in (1, 2):
        until(lambda: refused(limiter) == "redis", "Redis is asked again")
        assert time.monotonic() - started >= asked
        assert calls(direct)["evalsha"] == asked
    soon.hit("x")
    decision = soon.hit("x")
    time.sleep(soon.hit("x").retry_after or decision.retry_after)
    assert soon.hit("x").allowed


def test_a_cached_refusal_applies_only_to_equal_calls() -> None:
    """Redis decides a call with another identity, cost, limiter, rate or operation."""
    limiter = RateLimiter("x", "2/h")
    limiter.hit("x", cost=2)
    assert [refused(limiter), refused(limiter)] == ["redis", "deny-cache"]
    assert limiter.hit("y").allowed
    assert refused(limiter, cost=2) == "redis"
    assert refused(limiter, partial=True) == "redis"
    assert limiter.peek("x").source == "redis"
    assert limiter.acquire("x", timeout=0).source == "redis"
    assert RateLimiter("z", "2/h").hit("x").allowed
    assert RateLimiter("x", "3/h").hit("x").allowed
    for one, other in ((1, True), (1, 1.0), ("1", b"1")):
        numbers = RateLimiter("numbers", "1/h")
        numbers.hit(one)
        numbers.hit(one)
        assert numbers.hit(other).source == ("redis" if other != "1" else "deny-cache")


def test_refunds_and_resets_end_a_cached_refusal_immediately() -> None:
    """They end it in this process, by any limiter, sync or async."""
    limiter, same = RateLimiter("x", "1/h"), RateLimiter("x", "1/h")
    for free in (
        lambda: same.refund("x"),
        lambda: same.reset("x"),
        lambda: asyncio.run(same.arefund("x")),
        lambda: asyncio.run(same.areset("x")),
    ):
        assert limiter.hit("x").allowed
        assert [refused(limiter), refused(limiter)] == ["redis", "deny-cache"]
        free()
    assert limiter.hit("x").allowed


def test_a_refusal_requested_before_a_refund_is_not_cached() -> None:
    """Another thread resets the identity while the refusal is requested."""
    limiter = RateLimiter("x", "1/h")
    limiter.hit("x")
    asked_at, generation = time.monotonic(), deny_cache.generation
    refusal = limiter.hit("x")
    limiter.reset("x")
    planner, ruleset = _HitPlanner(limiter, "hit", "x", 1), provider.get_ruleset()
    planner.gather(ruleset)
    call = planner.plan(ruleset)
    deny_cache.add(call, refusal, asked_at, generation)
    assert deny_cache.find(call) is None
    assert limiter.hit("x").allowed


def test_refusals_that_count_as_hits_are_not_cached() -> None:
    """With `count_denied`, every refused hit is counted."""
    limiter = RateLimiter("x", "1/h", algorithm="fixed_window", count_denied=True)
    limiter.hit("x")
    assert [limiter.hit("x").limits[0].used for _ in range(3)] == [2, 3, 4]


@pytest.mark.django_db(transaction=True)
def test_an_edit_ends_cached_refusals_immediately_in_the_editing_process(settings: Any) -> None:
    """Other processes end them when they receive the message."""
    from django_ratelimit_lua.models import RateLimitRule

    rule = RateLimitRule.objects.create(name="mail", rate="1/h")
    mail = RateLimiter("mail", "100/h")
    assert [mail.hit("ada").allowed for _ in range(3)] == [True, False, False]
    rule.rate = "5/h"
    rule.save()
    assert mail.hit("ada").allowed


def test_the_deny_cache_can_be_switched_off(settings: Any) -> None:
    """The value 0 switches it off."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0
    limiter = RateLimiter("x", "1/h")
    limiter.hit("x")
    assert [refused(limiter) for _ in range(3)] == ["redis"] * 3
