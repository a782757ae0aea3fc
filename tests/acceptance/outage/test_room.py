"""Counting in the process with more identities than its memory holds, through the public API."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.local import local_counts
from tests.support.limits import WHOLE, set_share


@pytest.fixture(autouse=True)
def alone(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the only one, without counts and with memory for few identities."""
    set_share(monkeypatch, WHOLE)
    monkeypatch.setattr(local_counts._counts, "max_entries", 1_000)


def test_an_active_identity_is_never_evicted() -> None:
    """A split limit of 100/h admits 100 of an identity that hits between 5,000 others."""
    limiter = RateLimiter("x", "100/h", algorithm="fixed_window", split=True)
    admitted = 0
    for number in range(5_000):
        limiter.hit(f"other {number}")
        if number % 40 == 0:
            admitted += bool(limiter.hit("somebody"))
    assert admitted == 100


def test_in_an_outage_a_full_memory_evicts_the_oldest_count(
    settings: Any,
) -> None:
    """The count is kept until another identity needs its place."""
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    }
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    limiter = RateLimiter("x", "100/h")
    assert sum(limiter.hit("somebody").allowed for _ in range(70)) == 70
    for number in range(999):
        limiter.hit(f"other {number}")
    assert sum(limiter.hit("somebody").allowed for _ in range(70)) == 30
    for number in range(1_000):
        limiter.hit(f"other {number}")
    assert sum(limiter.hit("somebody").allowed for _ in range(70)) == 70
