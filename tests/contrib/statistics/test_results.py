"""The result under which each decision is counted."""

from __future__ import annotations

import time

import pytest

from django_ratelimit_lua import Ratelimited, RateLimiter
from django_ratelimit_lua.contrib.statistics.reading import Span
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.models import RateLimitRule
from tests.contrib.statistics.counts import last, top, total


def test_bans_are_counted_as_a_separate_result() -> None:
    """Refusals by a limit and by its ban are counted separately. Both are refusals."""
    limiter = RateLimiter("login", "2/h", ban_after=3, ban_for="10m")
    for _ in range(12):
        limiter.hit("ada")
    recorder.flush()
    now = int(time.time())
    counts = total("login", Span(now - 3600, now + 60, 60)).counts
    assert counts == {"a": 2, "r": 3, "g": 7}


def test_a_call_that_waits_is_counted_once() -> None:
    """The call tries several times, but counts as one refusal."""
    limiter = RateLimiter("exports", "1", algorithm="concurrency")
    with limiter.slot("ada"), pytest.raises(Ratelimited), limiter.slot("ada", timeout=0.5):
        pass
    recorder.flush()
    assert total("exports", last(3600, 60)).counts["r"] == 1


def test_a_limit_on_all_callers_lists_no_clients_in_the_statistics() -> None:
    """Requests are counted, but no client is listed as a top client."""
    limiter = RateLimiter("counted together", "2/h")
    for _ in range(3):
        limiter.hit()
    limiter.hit("ada")
    recorder.flush()
    span = last(3600, 60)
    assert total("counted together", span).counts.total() == 4
    assert [row.times for row in top("counted together", "used")] == [1]
    assert top("counted together") == []


@pytest.mark.django_db(transaction=True)
def test_refusals_are_counted_by_the_mode_of_the_rule() -> None:
    """Refusals are counted as those of shadow mode until the rule is enforced, and as refusals
    from then on.
    """
    rule = RateLimitRule.objects.create(name="mail", rate="1/h", mode="shadow")
    mail = RateLimiter("mail", "100/h")
    assert [mail.hit("ada").allowed for _ in range(3)] == [True] * 3
    assert total("mail", last(3600, 60)).counts == {"h": 1, "s": 2}
    rule.mode = "enforce"
    rule.save()
    assert not mail.hit("ada")
    assert total("mail", last(3600, 60)).counts == {"h": 1, "s": 2, "r": 1}
