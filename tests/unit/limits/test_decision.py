"""The state of a limit in a decision."""

from __future__ import annotations

from django_ratelimit_lua import Decision, Limit
from django_ratelimit_lua.limits.decision import LimitState

STATE = LimitState.of(
    Limit("mail", "5/m", mode="shadow"),
    allowed=False,
    used=5,
    remaining=0,
    retry_after=12.0,
    reset_after=60.0,
    wait=3.0,
    counted_at=7,
)


def test_times_of_a_cached_refusal_decrease() -> None:
    """They decrease by the seconds that have passed and never become negative."""
    later = STATE.aged(10.0)
    assert (later.retry_after, later.reset_after, later.wait) == (2.0, 50.0, 0.0)
    assert STATE.aged(100.0).reset_after == 0.0
    assert LimitState.blocked("block", None, "enforce").aged(5.0).retry_after is None
    decision = Decision(False, (STATE,), wait=3.0, moment=1_000_000, revision=4).repeated(
        10.0, "deny-cache"
    )
    assert decision == Decision(False, (later,), source="deny-cache", moment=11_000_000, revision=4)


def test_a_block_is_a_limit_with_zero_units() -> None:
    """The block's times are those until its end."""
    state = LimitState.blocked("office", 90.0, "enforce")
    assert state.is_block
    found = (state.allowed, state.limit, state.remaining, state.retry_after, state.reset_after)
    assert found == (False, 0, 0, 90.0, 90.0)
    assert LimitState.blocked("block", None, "enforce").retry_after is None
    assert not LimitState.of(
        Limit("shut", "0/m"), allowed=False, used=0, remaining=0, retry_after=None, reset_after=0
    ).is_block


def test_leased_units_are_not_counted_as_used() -> None:
    """Leased units are taken from the shared count and remain available to this process."""
    state = STATE.with_leased(2, 10.0, 7)
    assert (state.allowed, state.used, state.remaining, state.retry_after) == (True, 3, 2, 0.0)
    assert (state.reset_after, state.wait, state.counted_at) == (50.0, 0.0, 7)
