"""The local counters of a process, for a bounded number of identities, without a server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.counters import Bucket, Counters, counters
from django_ratelimit_lua.engine.heartbeat import ProcessShare, heartbeat
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.process.clock import Clock as ProcessClock
from tests.parts import set_part

MAX = 100
"""Little room, so that few identities fill it."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this the only process, with empty counters."""
    monkeypatch.setattr(heartbeat, "count", 1)
    set_part(monkeypatch, ProcessShare(0, 1))
    monkeypatch.setattr("django_ratelimit_lua.engine.counters.MAX_IDENTITIES", MAX)
    counters.clear()
    yield
    counters.clear()


class Clock:
    """A local clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(ProcessClock, "monotonic", lambda: self.now)


def hits(here: Counters, limit: Limit, who: object, times: int = 1) -> int:
    call = Call([Charge(limit, digest(str(who)))])
    return sum(here.decide(call).allowed for _ in range(times))


@pytest.mark.parametrize("algorithm", BY_RATE)
@pytest.mark.parametrize("split", ["equal", None])
def test_the_least_recently_used_identity_is_dropped(
    algorithm: str, split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An identity that keeps hitting is never dropped. An idle one is dropped after hits of as many
    others as the maximum. Refused hits, peeks and refunds of others do not count.
    """
    Clock(monkeypatch)  # It stands still, so that nothing flows back.
    limit = Limit("x", "40/h", algorithm=algorithm, split=split)
    here = Counters()
    assert hits(here, limit, "idle", 50) == 40
    admitted = hits(here, limit, "busy", 30)
    for number in range(MAX - 2):
        hits(here, limit, number)
        admitted += hits(here, limit, "busy")
        here.decide(Call([Charge(limit, digest(f"other {number}"))], "peek"))
        here.decide(Call([Charge(limit, digest(f"other {number}"))], "refund"))
        hits(here, Limit("none", "0/h", split=split), number)
    assert admitted == 40
    assert hits(here, limit, "idle") == 0
    for number in range(MAX):
        hits(here, limit, f"more {number}")
    assert len(here._counters) == MAX
    assert hits(here, limit, "idle", 50) == 40


def test_an_edited_limit_keeps_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If units or periods change, used units still count, and no identity waits longer than the new
    limit requires.
    """
    clock = Clock(monkeypatch)
    for algorithm in ("fixed_window", "sliding_window", "sliding_log", "token_bucket"):
        here = Counters()
        assert hits(here, Limit("x", "10/h", algorithm=algorithm, split="equal"), "ada", 20) == 10
        edited = Limit("x", "12/h", algorithm=algorithm, split="equal")
        assert hits(here, edited, "ada", 20) == 2, algorithm
        short = Limit("x", "12/m", algorithm=algorithm, split="equal")
        clock.now += 59
        assert hits(here, short, "ada", 20) == 0 or algorithm == "token_bucket"
        clock.now += 61
        assert hits(here, short, "ada", 20) == 12, algorithm


def test_a_decision_has_constant_cost() -> None:
    """A decision after 10,000 units takes about as long as a decision after ten."""
    shares: dict[int, float] = {}
    for units in (10, 10_000):
        limit, here = Limit("x", "100000/h", algorithm="sliding_log", split="equal"), Counters()
        call = Call([Charge(limit, digest("x"))])
        for _ in range(units):
            here.decide(call)
        best = []
        for _ in range(20):
            began = time.thread_time()
            for _ in range(20):
                here.decide(call)
            best.append(time.thread_time() - began)
        shares[units] = min(best)
    assert shares[10_000] < 4 * shares[10], shares


def test_threads_take_exactly_the_available_units() -> None:
    """Eight threads take units of several limits and identities in any order. Each call takes all
    its units or none, and no count is lost or exceeds its limit.
    """
    here = Counters()
    limits = [Limit(f"limit {number}", "400/h", split="equal") for number in range(3)]
    key_label = [digest(f"who {number}") for number in range(8)]
    admitted: list[tuple[int, int]] = []

    def hammer(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(600):
            chosen = dice.sample([(limit, who) for limit in range(3) for who in range(8)], 3)
            if here.decide(Call([Charge(limits[limit], key_label[who]) for limit, who in chosen])):
                admitted.extend(chosen)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for limit in range(3):
        for who in range(8):
            state = here.decide(Call([Charge(limits[limit], key_label[who])], "peek")).limits[0]
            assert state.used == admitted.count((limit, who)) <= 400
    assert sum(admitted.count((limit, who)) == 400 for limit in range(3) for who in range(8)) > 0


def test_counts_are_kept_when_the_share_changes() -> None:
    """A second process halves the share of a process, and units that were counted still count."""
    limit = Limit("x", "100/h", algorithm="token_bucket")
    bucket = Bucket(limit, ProcessShare(0, 1))
    bucket.take(0.0, 80)
    bucket.resize(limit, ProcessShare(1, 2), 0.0)
    assert bucket.retry_after(0.0, 1) == pytest.approx(31 * 72)


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["hit", "hit", "back"]),
        st.sampled_from([0.0, 0.25, 1.0, 1.5, 4.0, 17.0]),
        st.integers(1, 3),
        st.integers(0, 40),
    ),
    max_size=30,
)


@pytest.mark.parametrize("algorithm", BY_RATE)
@given(history=HISTORY, size=st.integers(1, 8))
def test_units_returned_to_a_part_are_available_again(
    algorithm: str, history: list[Any], size: int
) -> None:
    """Refunded units of a split limit are subtracted at the moment from which they count.
    Afterwards no less is counted than without them, and of a bucket at most what has drained of
    them in addition. If all units of a window are refunded, none is used.
    """
    limit = Limit("x", f"{size}/16s", algorithm=algorithm, split="equal")
    here, kept_only = Counters(), Counters()
    taken: list[list[Any]] = []

    def ask(local: Counters, operation: Any, cost: int, hit_at: int | None = None) -> LimitState:
        call = Call([Charge(limit, b"x" * 32, cost)], operation, hit_at=hit_at)
        return local.decide(call).limits[0]

    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        began = clock.now
        for action, later, cost, which in history:
            clock.now += later
            if action == "hit":
                state = ask(here, "hit", cost)
                if state.allowed:
                    taken.append([clock.now, state.counted_at, cost, False])
            elif out := [hit for hit in taken if not hit[3]]:
                hit = out[which % len(out)]
                hit[3] = True
                ask(here, "refund", hit[2], hit[1])
        end = clock.now
        clock.now = began
        for moment, _, cost, is_back in taken:
            clock.now = moment
            if not is_back:
                ask(kept_only, "charge", cost)
        clock.now = end
        found, ideal = ask(here, "peek", 0), ask(kept_only, "peek", 0)
        assert found.used >= ideal.used
        if algorithm in (
            "sliding_window",
            "sliding_log",
        ):  # What is left of a segment counts as long as its last hit, given back or not.
            assert -1e-4 <= found.reset_after - ideal.reset_after <= 1.6 + 1e-4
        elif algorithm == "token_bucket":
            drained = sum(
                min(cost, (end - moment) * size / 16)
                for moment, _, cost, is_back in taken
                if is_back
            )
            assert found.used <= ideal.used + drained + 1
        for _, moment, cost, is_back in reversed(taken):
            if not is_back:
                ask(here, "refund", cost, moment)
        if not limit.kind.is_bucket:
            assert ask(here, "peek", 0).used == 0


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_steady_traffic_below_the_limit_is_never_refused(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hits a minute under a limit of ten a minute are allowed for an hour, because hits do
    not postpone the end of a window.
    """
    clock = Clock(monkeypatch)
    limit, here = Limit("x", "10/m", algorithm=algorithm), Counters()
    refused = 0
    for _ in range(180):
        refused += 1 - hits(here, limit, "ada")
        clock.now += 20
    assert refused == 0


def test_the_counters_owe_units_until_all_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """While units are being reported to Redis, their identities are still decided by the local
    counters as well.
    """
    here = Counters()
    limit = Limit("x", "10/h", on_store_error="local")
    calls = [Call([Charge(limit, digest(who))]) for who in ("ada", "bob")]
    for call in calls:
        here.decide(call, in_outage=True)
    owing = here.owing()
    assert (len(owing), here.is_owing) == (2, True)
    for counter, call in zip(owing, calls, strict=True):
        here.mark_reported(counter, counter.owed, call, here.decide(call).limits)
    assert (here.owing(), here.is_owing) == ([], False)
