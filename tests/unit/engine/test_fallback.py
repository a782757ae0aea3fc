"""Decisions while Redis is unavailable and shortly after, by the policy of each limit, without a
server.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from django_ratelimit_lua.engine import fallback
from django_ratelimit_lua.engine.counters import Counters
from django_ratelimit_lua.engine.fallback import FallbackLimiter, Steps
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit

WHO = b"x" * 32
SHARED = Limit("shared", "8/h", on_store_error="local")
CLOSED = Limit("closed", "8/h", on_store_error="closed")
OPEN = Limit("open", "1/h", on_store_error="open")


@pytest.fixture
def here(quiet: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FallbackLimiter]:
    """Return the fallback limiter of one of four processes, with empty counters and without its
    task.
    """
    monkeypatch.setattr(heartbeat, "count", 4)
    monkeypatch.setattr(fallback, "counters", Counters())
    here = FallbackLimiter()
    monkeypatch.setattr(here.task, "start", lambda: False)
    return here


def hit(*limits: Limit) -> Call:
    return Call([Charge(limit, WHO) for limit in limits])


def test_each_limit_uses_its_own_policy(here: FallbackLimiter) -> None:
    """A local limit has a share, an open limit allows every hit, and a closed limit refuses. If one
    limit is closed, the whole call is refused.
    """
    shared = [here.decide(hit(SHARED)) for _ in range(4)]
    assert [decision.allowed for decision in shared] == [True, True, False, False]
    assert [here.decide(hit(OPEN)).granted for _ in range(3)] == [1, 1, 1]
    closed = here.decide(hit(CLOSED))
    assert (closed.allowed, closed.retry_after, closed.source) == (False, 1.0, "fallback")
    other = Limit("other", "8/h", on_store_error="local")
    assert here.decide(hit(CLOSED, other)).denied_by == ("closed",)
    assert here.decide(Call([Charge(other, WHO)], "peek")).limits[0].used == 0


def test_a_local_share_starts_with_the_last_state_in_redis_unless_reset(
    here: FallbackLimiter,
) -> None:
    """Four units are left in Redis, and the share of one of four processes is one of them. After a
    reset, the share is that of the whole limit.
    """
    said = Decision(
        True,
        (
            LimitState.of(
                SHARED, allowed=True, used=4, remaining=4, retry_after=0.0, reset_after=9.0
            ),
        ),
    )
    fallback.counters.remember(hit(SHARED), said.limits)
    assert [here.decide(hit(SHARED)).allowed for _ in range(2)] == [True, False]
    fallback.counters.remember(hit(SHARED), said.limits)
    fallback.counters.forget(hit(SHARED))
    assert [here.decide(hit(SHARED)).allowed for _ in range(3)] == [True, True, False]


def steps(allowed: bool, asked: list[Call]) -> Steps:
    """Stand in for a call to Redis, and record it."""
    asked.append((yield hit(SHARED)).limits)
    return Decision(allowed)


def drive(steps: Steps) -> Decision:
    try:
        next(steps)
        steps.send(Decision(True))
    except StopIteration as finished:
        return finished.value
    raise AssertionError


def test_after_an_outage_both_counts_have_to_allow_a_hit(
    here: FallbackLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal by Redis takes no unit of the share, and a used-up share refuses without a call to
    Redis. When the recovery ends, only Redis decides.
    """
    assert not here.is_recovering
    here.decide(Call([Charge(SHARED, WHO)], "peek"))
    assert here.is_recovering
    asked: list[Any] = []
    decisions = [
        drive(here.decide_by_both(hit(SHARED), steps(allowed, asked)))
        for allowed in (False, True, True, True)
    ]
    assert [decision.allowed for decision in decisions] == [False, True, True, False]
    assert (decisions[-1].source, len(asked)) == ("fallback", 3)
    monkeypatch.setattr(fallback, "BACK_SECONDS", -60.0)
    here.on_store_up()
    assert drive(here.decide_by_both(hit(SHARED), steps(True, asked))).allowed
    assert not here.is_recovering


def test_an_owed_counter_is_decided_by_both_counts_until_reported(
    here: FallbackLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery does not end while units are unreported, even if other identities are decided or
    its time has passed.
    """
    monkeypatch.setattr(fallback, "BACK_SECONDS", 0.0)
    for _ in range(2):
        assert here.decide(hit(SHARED))
    asked: list[Any] = []
    for _ in range(3):  # Nothing that another is told changes that.
        other = Call([Charge(SHARED, b"y" * 32)])
        drive(here.decide_by_both(other, steps(True, asked)))
        assert here.is_recovering
    assert len(asked) == 3
    assert not drive(here.decide_by_both(hit(SHARED), steps(True, asked)))
    assert len(asked) == 3, "the share is used up, so Redis is not asked"


def test_a_used_up_share_refuses_while_the_store_is_paused(
    here: FallbackLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The breaker may close soon, and Redis does not know yet which hits were allowed locally."""
    monkeypatch.setattr(fallback, "get_store", lambda: SimpleNamespace(is_paused=True))
    assert [bool(here.decide(hit(SHARED))) for _ in range(2)] == [True, True]
    asked: list[Any] = []
    assert not drive(here.decide_by_both(hit(SHARED), steps(True, asked)))
    assert asked == []
