"""A lease: the units that it lets a process spend, and those that it gives back. There is no
server.
"""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine.leases import IDLE_SECONDS, Lease, Leases, lease_key
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.process import Clock as ProcessClock

WINDOW = Limit("hot", "1000/h", algorithm="fixed_window", lease=100)
BUCKET = Limit("hot", "1000/h", algorithm="token_bucket", lease=100)
WHO = b"x" * 32


class Clock:
    """A clock for leases that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that stands still until the test moves it."""
    clock = Clock()
    monkeypatch.setattr(ProcessClock, "monotonic", clock)
    return clock


def granted(units: int, moment: int = 7_000_000, ends_in: float = 60.0) -> Decision:
    """Return the decision of Redis about a batch."""
    state = LimitState.of(
        WINDOW,
        allowed=units > 0,
        used=units,
        remaining=1000 - units,
        retry_after=0.0,
        reset_after=ends_in,
        counted_at=moment if units else 0,
    )
    return Decision(units > 0, (state,), units, moment=moment)


def filled(limit: Limit, units: int) -> Lease:
    lease = Lease((b"rl:", WHO, limit))
    assert lease.add(granted(units), ProcessClock.monotonic()) == units
    return lease


def returned(lease: Lease) -> tuple[int, int | None] | None:
    """Return the units that the lease gives back, and the moment from which they count."""
    call = lease.drain()
    return call and (call.charges[0].cost, call.hit_at)


def test_a_lease_never_holds_more_than_a_batch(clock: Clock) -> None:
    """The call for the next batch fills it up. It is due below a fifth of a batch."""
    lease = filled(WINDOW, 100)
    assert not lease.is_low
    for _ in range(80):
        assert lease.take(1)
    assert not lease.is_low
    state = lease.take(1)
    assert state
    assert (state.used, state.remaining) == (81, 919)
    assert lease.is_low
    call = lease.refill_call()
    assert (call.charges[0].cost, call.partial) == (81, True)
    lease.add(granted(81, moment=9_000_000), clock.now)
    assert returned(lease) == (100, 9_000_000)
    assert lease.take(1) is None


def test_after_an_empty_batch_no_other_is_fetched_ahead(clock: Clock) -> None:
    """Remaining units are spent first."""
    lease = filled(WINDOW, 10)
    assert lease.is_low
    lease.is_dry = True
    assert lease.add(granted(0), clock.now) == 0
    assert not lease.is_low
    assert lease.take(10)
    assert lease.take(1) is None


def test_units_of_a_window_are_dropped_at_its_end(clock: Clock) -> None:
    """The end is reckoned from the moment before the batch was requested."""
    lease = filled(WINDOW, 10)
    clock.now += 59.9
    assert lease.take(1)
    clock.now += 0.2
    assert lease.take(1) is None
    assert returned(lease) is None


def test_units_of_a_bucket_are_given_back_after_a_second(clock: Clock) -> None:
    """Units that were added later end with the earlier ones."""
    lease = filled(BUCKET, 10)
    clock.now += 0.9
    lease.add(granted(50, moment=9_000_000), clock.now)
    assert lease.take(1)
    clock.now += 0.2
    assert lease.take(1) is None
    assert returned(lease) == (59, 9_000_000)


def test_a_second_hit_within_a_second_begins_a_lease(clock: Clock) -> None:
    """A later one does not. A reset ends the leases of its identity."""
    held = Leases()
    key = (b"rl:", WHO, WINDOW)
    for _ in range(2):
        held.record_hit(key)
        clock.now += IDLE_SECONDS
        assert held.find_active(key) is None
    held.record_hit(key)
    clock.now += IDLE_SECONDS - 0.1
    assert held.find_active(key) is not None
    held.drop({b"another"})
    assert held.find_active(key) is not None
    held.drop({WHO})
    assert held.find_active(key) is None


@pytest.mark.parametrize(
    "call",
    [
        Call([Charge(WINDOW, WHO, 101)]),
        Call([Charge(WINDOW, WHO, 0)]),
        Call([Charge(WINDOW, WHO)], "peek"),
        Call([Charge(WINDOW, WHO)], now=5),
        Call([Charge(WINDOW, WHO)], partial=True),
        Call([Charge(BUCKET, WHO)], debt=True),
        Call([Charge(BUCKET, WHO)], max_wait_us=5),
        Call([Charge(Limit("x", "5/m"), WHO)]),
    ],
)
def test_redis_decides_calls_that_a_batch_cannot_serve(call: Call) -> None:
    """They are larger than a batch, take nothing, wait, or have a clock of their own."""
    assert lease_key(call, call.charges[0]) is None
