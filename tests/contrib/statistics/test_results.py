"""What is counted as which result."""

from __future__ import annotations

import time

import pytest

from django_ratelimit_lua import Ratelimited, RateLimiter
from django_ratelimit_lua.contrib.statistics.reading import Span, refusal_counts, total
from django_ratelimit_lua.contrib.statistics.recorder import recorder


def test_bans_are_counted_as_a_result_of_their_own() -> None:
    """Refusals of the limit and of its ban are told apart, and both are refusals."""
    limiter = RateLimiter("login", "2/h", ban_after=3, ban_for="10m")
    for _ in range(12):
        limiter.hit("ada")
    recorder.flush()
    now = int(time.time())
    counts = total("login", Span(now - 3600, now + 60, 60))
    assert (counts.allowed, counts.counts["r"], counts.counts["g"], counts.refused) == (2, 3, 7, 10)


def test_a_call_that_waits_is_counted_once() -> None:
    """However often it asks: one allowed and one refused."""
    limiter = RateLimiter("exports", "1", algorithm="concurrency")
    with limiter.slot("ada"), pytest.raises(Ratelimited), limiter.slot("ada", timeout=0.5):
        pass
    recorder.flush()
    assert refusal_counts(names=["exports"])["exports"]["enforce"] == 1
