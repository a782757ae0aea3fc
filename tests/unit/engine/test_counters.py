"""What is counted in this process, however many identities there are: nobody is forgotten who counts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.counter import FULL_SECONDS, Bucket, Moments, OutageShare, Window
from django_ratelimit_lua.engine.counters import CROWDS_OF_A_LIMIT, Counters, counters
from django_ratelimit_lua.engine.heartbeat import ProcessShare, heartbeat
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.limits.limit import Limit
from tests.parts import set_part

WHOLE = ProcessShare(0, 1, 1)
MOST, CROWDS = 1_000, 100
"""Little room, so that few identities fill it."""
MORE = MOST + 400
"""Than there is room for."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the only one, and has counted nothing."""
    monkeypatch.setattr(heartbeat, "count", 1)
    set_part(monkeypatch, ProcessShare(0, 1, 1))
    monkeypatch.setattr("django_ratelimit_lua.engine.counters.MOST", MOST)
    monkeypatch.setattr("django_ratelimit_lua.engine.counters.MOST_CROWDS", CROWDS)
    counters.clear()
    yield
    counters.clear()


class Clock:
    """The clock of what is counted here, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def hits(here: Counters, limit: Limit, who: object, times: int = 1) -> int:
    call = Call([Charge(limit, digest(str(who)))])
    return sum(here.decide(call).allowed for _ in range(times))


@pytest.mark.parametrize("algorithm", BY_RATE)
@pytest.mark.parametrize("split", ["equal", None])
def test_nobody_gets_more_by_sending_others(algorithm: str, split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,400 other identities in between, one still gets its hundred, and not one more; in parts and in shares."""
    Clock(monkeypatch)  # It stands still, so that nothing flows back.
    limit = Limit("x", "100/h", algorithm=algorithm, split=split)
    here = Counters()
    admitted, number = 0, 0
    for burst in (60, 60, 60, 60):
        for _ in range(MORE // 4):
            number += 1
            hits(here, limit, number)
        admitted += hits(here, limit, "one of the last", burst)
    assert admitted <= 100
    first = hits(here, limit, 1, 150)
    assert first == 99, "who came first is counted apart, and has all that is left"


def test_who_is_not_counted_any_more_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identities whose periods are over are forgotten for as many others, each with all of its own."""
    clock = Clock(monkeypatch)
    limit, here = Limit("x", "2/s", algorithm="sliding_log", split="equal"), Counters()
    for wave in range(3):
        clock.now += 2
        admitted = [hits(here, limit, f"{wave} {number}", 3) for number in range(MOST * 3 // 4)]
        assert set(admitted) == {2}


def test_a_crowd_is_over_when_its_period_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was refused for lack of room has all of its own when the others do not count any more."""
    clock = Clock(monkeypatch)
    limit, here = Limit("x", "5/m", algorithm="fixed_window", split="equal"), Counters()
    for number in range(MOST + 500):
        hits(here, limit, number)
    assert hits(here, limit, "late") == 0
    retry = here.decide(Call([Charge(limit, digest("late"))])).retry_after
    assert retry is not None
    clock.now += retry
    assert hits(here, limit, "late", 10) == 5


def test_there_is_room_for_so_many_crowds_and_none_for_more() -> None:
    """Whoever is of yet another limit then is refused, and told to come back in a moment; shadow refuses nobody."""
    here = Counters()
    for number in range(MOST + 20 * CROWDS):
        hits(here, Limit(f"limit {number}", "5/h", split="equal"), number)
    decisions = [
        here.decide(Call([Charge(Limit(f"more {number}", "5/h", split="equal"), digest(number))]))
        for number in range(CROWDS_OF_A_LIMIT * 4)
    ]
    assert {(decision.allowed, decision.retry_after) for decision in decisions} == {(False, FULL_SECONDS)}
    shadow = Limit("shadow", "5/h", split="equal", mode="shadow")
    assert here.decide(Call([Charge(shadow, digest("x"))])).allowed


def test_looking_and_giving_back_take_no_place_and_give_nobody_elses() -> None:
    """A peek, a refund or a hit that is refused leaves nothing behind; nobody gives back what a crowd has counted."""
    limit, here = Limit("x", "3/h", split="equal"), Counters()
    for number in range(1000):
        here.decide(Call([Charge(limit, digest(number))], "peek"))
        here.decide(Call([Charge(limit, digest(number))], "refund"))
        here.decide(Call([Charge(Limit("none", "0/h", split="equal"), digest(number))]))
    assert not here._apart
    for number in range(2 * MOST):
        hits(here, limit, number)
    late = [f"late {number}" for number in range(100)]
    before = sum(hits(here, limit, who) for who in late)
    for who in late:
        here.decide(Call([Charge(limit, digest(who), 2)], "refund"))
    assert sum(hits(here, limit, who) for who in late) == 0
    assert before <= 3 * CROWDS_OF_A_LIMIT


def test_an_edited_limit_keeps_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """More or fewer units, longer or shorter periods: nobody begins anew, nor waits longer than the new limit says."""
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


class Naive:
    """A log of units, each with the moment until when it counts; everything is summed up each time."""

    def __init__(self, period: float, size: int) -> None:
        self.period, self.size = period, size
        self.units: list[float] = []

    def used(self, now: float) -> int:
        self.units = [end for end in self.units if end > now]
        return len(self.units)

    def retry_after(self, now: float, cost: int) -> float | None:
        over = self.used(now) + cost - self.size
        if over <= 0:
            return 0.0
        return None if over > len(self.units) else self.units[over - 1] - now


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "wait", "copy"]), st.integers(0, 12)), min_size=1, max_size=60
)


@given(steps=STEPS, size=st.integers(1, 30))
def test_running_totals_are_what_summing_says(steps: list[tuple[str, int]], size: int) -> None:
    """A log admits, gives back, lapses and tells times as one that sums up every unit; and one that may remember three
    moments only refuses more, never less."""
    limit = Limit("x", f"{size}/16s", algorithm="sliding_log")
    window, narrow = Window(limit, WHOLE, Moments(10_000)), Window(limit, WHOLE, Moments(3))
    naive, now = Naive(limit.rate.period, size), 1000.0
    for step, number in steps:
        if step == "wait":
            now += number / 4
        elif step == "take":
            window.take(now, number)
            narrow.take(now, number)
            naive.units += [now + naive.period] * number
        elif step == "give":
            window.give(now, number)
            narrow.give(now, number)
            naive.used(now)
            naive.units = naive.units[: max(0, len(naive.units) - number)]
        else:
            window = window.copy()
        assert window.used(now) == naive.used(now)
        assert window.reset_after(now) == (naive.units[-1] - now if naive.units else 0.0)
        for cost in (1, 2, size, size + 1):
            assert window.retry_after(now, cost) == naive.retry_after(now, cost)
        assert narrow.used(now) >= naive.used(now)
        assert narrow._moments.count <= 3


@given(steps=STEPS)
def test_what_is_remembered_is_counted_right(steps: list[tuple[str, int]]) -> None:
    """The number of moments that windows together remember is the one that is bounded."""
    moments = Moments(20)
    limit = Limit("x", "1000/16s", algorithm="sliding_log")
    windows, now = [Window(limit, WHOLE, moments)], 0.0
    for step, number in steps:
        one = windows[number % len(windows)]
        now += number / 4
        if step == "wait":
            one.drop()
        elif step == "copy":
            windows.append(one.copy())
        else:
            getattr(one, step)(now, number)
        assert moments.count == sum(len(window._ends) for window in windows)


def test_a_decision_costs_the_same_whatever_is_counted() -> None:
    """One of 10,000 units takes no longer than one of ten, give or take what a machine is busy with."""
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


def test_threads_take_exactly_what_there_is() -> None:
    """Of limits of several identities, taken in any order by eight threads: all or nothing, and each exactly."""
    here = Counters()
    limits = [Limit(f"limit {number}", "400/h", split="equal") for number in range(3)]
    whom = [digest(f"who {number}") for number in range(8)]
    admitted: list[tuple[int, int]] = []

    def hammer(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(600):
            chosen = dice.sample([(limit, who) for limit in range(3) for who in range(8)], 3)
            if here.decide(Call([Charge(limits[limit], whom[who]) for limit, who in chosen])):
                admitted.extend(chosen)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for limit in range(3):
        for who in range(8):
            state = here.decide(Call([Charge(limits[limit], whom[who])], "peek")).limits[0]
            assert state.used == admitted.count((limit, who)) <= 400
    assert sum(admitted.count((limit, who)) == 400 for limit in range(3) for who in range(8)) > 0


def test_an_outages_share_and_a_bucket_are_kept_when_shares_change() -> None:
    """Two processes instead of one halve what there is, and what is counted stays."""
    limit = Limit("x", "100/h", algorithm="token_bucket")
    bucket = Bucket(limit, OutageShare(1))
    bucket.take(0.0, 80)
    bucket.resize(limit, OutageShare(2), 0.0)
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
def test_what_goes_back_to_a_part_was_never_taken(algorithm: str, history: list[Any], size: int) -> None:
    """Of a limit that is split, units go back by the moment they count from: what is counted afterwards is what only
    those would have used who kept theirs; of a leaky bucket, or where runs were put together, never less. When all is
    given back, nothing is used, but for turns of a leaky bucket that others were behind."""
    limit = Limit("x", f"{size}/16s", algorithm=algorithm, split="equal")
    here, kept_only = Counters(), Counters()
    taken: list[list[Any]] = []

    def ask(local: Counters, operation: Any, cost: int, hit_at: int | None = None) -> LimitState:
        call = Call([Charge(limit, b"x" * 32, cost)], operation, hit_at=hit_at)
        return local.decide(call).limits[0]

    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        began, window_end = clock.now, 0.0
        for action, later, cost, which in history:
            clock.now += later
            if action == "hit":
                is_open = any(hit[4] > clock.now for hit in taken if not hit[3])
                window_end = window_end if is_open else clock.now + 16
                state = ask(here, "hit", cost)
                if state.allowed:
                    taken.append([clock.now, state.counted_at, cost, False, window_end])
            elif out := [hit for hit in taken if not hit[3]]:
                hit = out[which % len(out)]
                hit[3] = True
                ask(here, "refund", hit[2], hit[1])
        end = clock.now
        clock.now = began
        for moment, _, cost, is_back, _ in taken:
            clock.now = moment
            if not is_back:
                ask(kept_only, "charge", cost)
        clock.now = end
        found, ideal = ask(here, "peek", 0), ask(kept_only, "peek", 0)
        if algorithm == "fixed_window":  # It ends when it ends, also if who has begun it gives back.
            assert found.used == sum(hit[2] for hit in taken if not hit[3] and hit[4] > end)
        else:
            assert found.used >= ideal.used
        if (
            algorithm == "sliding_window"
        ):  # What is left of a segment counts as long as its last hit, given back or not.
            assert -1e-4 <= found.reset_after - ideal.reset_after <= 1.6 + 1e-4
        elif algorithm == "sliding_log" or (algorithm == "token_bucket" and len(taken) <= 16):
            assert found.used == ideal.used
            assert found.reset_after == pytest.approx(ideal.reset_after, abs=1e-4)
        for _, moment, cost, is_back, _ in reversed(taken):
            if not is_back:
                ask(here, "refund", cost, moment)
        if algorithm != "leaky_bucket":
            assert ask(here, "peek", 0).used == 0


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_steady_traffic_below_the_limit_is_never_refused(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three a minute under ten a minute, for an hour: whatever begins a window, hits do not put off its end."""
    clock = Clock(monkeypatch)
    limit, here = Limit("x", "10/m", algorithm=algorithm), Counters()
    refused = 0
    for _ in range(180):
        refused += 1 - hits(here, limit, "ada")
        clock.now += 20
    assert refused == 0


def test_something_is_owed_until_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while Redis is being told: nobody who is owed goes by Redis alone meanwhile."""
    here = Counters()
    calls = [Call([Charge(Limit("x", "10/h"), digest(who))]) for who in ("ada", "bob")]
    for call in calls:
        here.decide(call, is_owed=True)
    owing = here.owing()
    assert (len(owing), here.is_owing) == (2, True)
    for counter, call in zip(owing, calls, strict=True):
        here.told(counter, here.begin_telling(counter), call, here.decide(call).limits)
        counter.is_being_told = False
    assert (here.owing(), here.is_owing) == ([], False)
