"""A lease: units that a process spends locally, when it requests the next batch, and which units it
returns. There is no server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.leases import DRY, EVERYTHING, IDLE, Lease, decide_here, leases
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.process.clock import Clock as ProcessClock
from django_ratelimit_lua.store import FOREVER, Patience

WINDOW = Limit("hot", "1000/h", algorithm="fixed_window", lease=100)
PLAIN = Limit("plain", "10/h")
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


@pytest.fixture(autouse=True)
def alone(quiet: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this the only process, without the thread that returns leased units."""
    monkeypatch.setattr(heartbeat, "count", 1)
    monkeypatch.setattr(leases.task, "start", lambda: False)
    leases.clear()
    yield
    leases.clear()


def state(limit: Limit, used: int, *, allowed: bool = True, moment: int = 7_000_000) -> LimitState:
    return LimitState.of(
        limit,
        allowed=allowed,
        used=used,
        remaining=limit.rate.limit - used,
        retry_after=0.0 if allowed else 60.0,
        reset_after=3600.0,
        counted_at=moment if allowed else 0,
    )


def filled(units: int, moment: int = 7_000_000) -> Lease:
    """Return a lease with one batch."""
    lease = Lease(Call([Charge(WINDOW, WHO)]), Charge(WINDOW, WHO))
    lease.add_batch(
        Decision(True, (state(WINDOW, units, moment=moment),), units, moment=moment),
        ProcessClock.monotonic(),
    )
    return lease


def back(lease: Lease, fewer_than: int = 0) -> list[tuple[int, int | None]]:
    """Return the units that a lease returns, each with the moment from which they count."""
    return [(call.charges[0].cost, call.hit_at) for call in lease.take_expired(fewer_than)]


def test_leased_units_are_spent_for_a_second_and_then_returned(clock: Clock) -> None:
    """After a second, no unit of a batch can be spent, and the rest is returned with the moment
    from which it counts.
    """
    lease = filled(10)
    taken = lease.take(4, 4)
    assert taken is not None
    assert (taken.used, taken.remaining, taken.counted_at) == (4, 996, 7_000_000)
    assert back(lease) == []
    clock.now += 1.0
    assert lease.take(1, 1) is None
    assert back(lease) == [(6, 7_000_000)]
    assert lease.is_empty


def test_idle_and_insufficient_units_are_returned(clock: Clock) -> None:
    """Idle units are returned after a quarter of a second. They are returned immediately if a hit
    needs more units than there are, or if all are to be returned.
    """
    lease = filled(10)
    clock.now += IDLE / 2
    assert lease.take(1, 1) is not None
    clock.now += IDLE / 2 + 0.01
    assert back(lease) == []
    assert back(lease, fewer_than=9) == []
    assert back(lease, fewer_than=10) == [(9, 7_000_000)]
    lease = filled(10)
    clock.now += IDLE + 0.01
    assert back(lease) == [(10, 7_000_000)]
    assert back(filled(3), EVERYTHING) == [(3, 7_000_000)]


def test_a_batch_size_depends_on_the_rate_and_the_share(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is what is spent in a tenth of a second, at most the lease and the process's share of
    the remaining units. Rare hits get no batch. While a request is under way, and for a moment
    after it has failed, no batch is requested.
    """

    def asked(hits: int, seconds: float, used: int) -> int:
        lease = Lease(Call([Charge(WINDOW, WHO)]), Charge(WINDOW, WHO))
        for _ in range(hits):
            lease.observe(state(WINDOW, used), 1)
        clock.now += seconds
        return lease.next_batch_size(1)

    assert (
        asked(hits=60, seconds=0.25, used=60) == 12
    )  # Half of the speed, which was nothing before.
    assert asked(hits=600, seconds=0.25, used=60) == 100
    monkeypatch.setattr(heartbeat, "count", 9)
    assert asked(hits=600, seconds=0.25, used=400) == 60
    assert asked(hits=3, seconds=1.0, used=3) == 0
    lease = filled(10)
    assert lease.take(10, 10) is not None
    assert lease.take(1, 1) is None
    lease.observe(state(WINDOW, 10), 1000)
    clock.now += 0.1
    assert lease.next_batch_size(1) > 1
    assert lease.next_batch_size(1) == 0, "somebody asks already"
    lease.ask_failed()
    assert lease.next_batch_size(1) == 0
    clock.now += DRY
    assert lease.next_batch_size(1) > 1


def test_units_put_back_go_to_their_batch_or_to_redis(clock: Clock) -> None:
    """Units that are put back can be spent again while their batch is valid, and are returned to
    Redis later. After a reset they are dropped.
    """
    lease = filled(2)
    assert lease.take(2, 2) is not None
    lease.put_back(2, 7_000_000)
    assert lease.units == 2
    clock.now += IDLE + 0.01
    assert back(lease) == [(2, 7_000_000)]
    lease.put_back(1, 7_000_000)
    assert (lease.take(1, 1), back(lease)) == (None, [(1, 7_000_000)])
    lease = filled(2)
    assert lease.take(1, 1) is not None
    lease.put_back(1, 7_000_000)
    assert lease.units == 2
    lease.close()
    lease.put_back(1, 7_000_000)
    assert (lease.take(1, 1), back(lease, EVERYTHING)) == (None, [])


def test_units_are_refunded_at_the_moment_of_their_batch() -> None:
    """A new batch replaces the previous one. Units that are put back are returned with the moment
    of their own batch.
    """
    lease = filled(3, moment=1_000_000)
    assert lease.take(2, 2) is not None
    lease.add_batch(
        Decision(True, (state(WINDOW, 7, moment=2_000_000),), 4, moment=2_000_000),
        ProcessClock.monotonic(),
    )
    lease.put_back(2, 1_000_000)
    lease.put_back(1, 2_000_000)
    assert lease.units == 5
    assert sorted(back(lease)) == [(1, 1_000_000), (2, 1_000_000)]


def drive(call: Call, answer: Any) -> tuple[Decision, list[Call]]:
    """Return the decision of a call, and the calls that were sent to Redis for it."""
    steps, made = decide_here(call, Patience(1)), []
    try:
        step = next(steps)
        while True:
            made.append(step)
            try:
                decision = answer(step)
            except StoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(decision)
    except StopIteration as finished:
        return finished.value, made


def hold(call: Call, units: int) -> Lease:
    """Give the lease of the call's first charge a batch of units."""
    lease = leases.of(call, call.charges[0])
    lease.add_batch(
        Decision(True, (state(WINDOW, units),), units, moment=7_000_000), ProcessClock.monotonic()
    )
    return lease


def test_a_leased_hit_calls_no_server(clock: Clock) -> None:
    """The decision has the source "lease". A peek takes no unit."""
    call = Call([Charge(WINDOW, WHO)])
    lease = hold(call, 10)
    decision, made = drive(call, answer=None)
    assert (decision.source, decision.granted, decision.limits[0].used, made) == ("lease", 1, 1, [])
    peeked, made = drive(Call([Charge(WINDOW, WHO)], "peek"), answer=None)
    assert (peeked.granted, peeked.limits[0].used, made) == (0, 1, [])
    assert back(lease, EVERYTHING) == [(9, 7_000_000)]


@pytest.mark.parametrize("outcome", ["refused", "away"])
def test_a_refusal_by_another_limit_keeps_the_leased_unit(clock: Clock, outcome: str) -> None:
    """Only the other limit is decided in Redis. If it refuses or Redis is unavailable, the leased
    unit is not spent.
    """
    call = Call([Charge(WINDOW, WHO), Charge(PLAIN, WHO)])
    lease = hold(call, 10)

    def answer(asked: Call) -> Decision:
        assert [charge.limit.name for charge in asked.charges] == ["plain"]
        if outcome == "away":
            raise StoreError("away")
        return Decision(False, (state(PLAIN, 10, allowed=False),))

    if outcome == "away":
        with pytest.raises(StoreError):
            drive(call, answer)
    else:
        decision, made = drive(call, answer)
        assert (decision.allowed, decision.denied_by, len(made)) == (False, ("plain",), 1)
    assert back(lease, EVERYTHING) == [(10, 7_000_000)]


def test_a_reset_ends_only_the_leases_of_that_identity(clock: Clock) -> None:
    """The lease of the reset identity ends, and the leases of other identities stay valid."""
    calls = [Call([Charge(WINDOW, who * 32)]) for who in (b"x", b"y")]
    mine, others = (hold(call, 10) for call in calls)
    leases.drop({b"x" * 32: FOREVER})
    assert (mine.take(1, 1), others.take(1, 1) is None) == (None, False)
    assert leases.of(calls[0], calls[0].charges[0]) is not mine
    assert leases.of(calls[1], calls[1].charges[0]) is others


def test_a_reset_drops_only_units_taken_before_it(clock: Clock) -> None:
    """Units from before the reset are neither spent nor returned, even if they are put back or
    arrive later. Units from after the reset are returned.
    """
    call = Call([Charge(WINDOW, WHO)])
    lease = hold(call, 10)
    taken = lease.take(3, 3)
    assert taken is not None
    later = Decision(True, (state(WINDOW, 5, moment=9_000_000),), 5, moment=9_000_000)
    lease.add_batch(later, clock.now)
    leases.drop({WHO: 8_000_000})
    assert leases.of(call, call.charges[0]) is not lease
    assert lease.take(1, 1) is None
    lease.put_back(3, taken[1])
    lease.put_back(2, 9_000_000)
    lease.add_batch(Decision(True, (state(WINDOW, 7),), 7, moment=7_999_999), clock.now)
    lease.add_batch(
        Decision(True, (state(WINDOW, 4, moment=9_500_000),), 4, moment=9_500_000), clock.now
    )
    assert lease.next_batch_size(1) == 0
    assert sorted(back(lease, EVERYTHING)) == [(2, 9_000_000), (4, 9_500_000), (5, 9_000_000)]
    lease.close()
    lease.add_batch(later, clock.now)
    lease.put_back(1, 9_000_000)
    assert back(lease, EVERYTHING) == []


def test_concurrent_calls_share_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads get the same lease, so no thread is refused because of units that only another
    thread could spend.
    """
    all_came = threading.Barrier(4)
    monkeypatch.setattr(heartbeat, "start", lambda: all_came.wait(20))
    call = Call([Charge(WINDOW, WHO)])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: leases.of(call, call.charges[0]), range(4)))
    assert {id(lease) for lease in found} == {id(leases.of(call, call.charges[0]))}
