"""What was taken and is given back leaves a limit as if it had never been taken: nothing less, and
nothing more.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.examples import examples
from tests.reference import REFERENCES

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
EXAMPLES = settings(
    max_examples=examples(40),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
serial = itertools.count()
RATES = ["1/s", "3/s", "7/11s", "10/m"]
LATER = [0, 0, 1, 3, 1_000, 99_999, 250_000, 999_999, 1_000_000, 1_571_429, 6_000_000, 61_000_000]


class Asker:
    """One limit of somebody new."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.who = b"refunds:%024d" % next(serial)

    def __call__(self, now: int, operation: str = "hit", cost: int = 1, **options: Any) -> Decision:
        return get_store().decide(
            Call([Charge(self.limit, self.who, cost)], operation, b"r:", now, **options)
        )


class Taken:
    """A hit that was admitted: when it asked, when it counts, and its units."""

    def __init__(self, asked: int, decision: Decision, cost: int) -> None:
        self.asked = asked
        self.moment = decision.limits[0].counted_at
        self.cost = cost
        self.is_back = False


def flow(limit: Limit, script: list[tuple[str, int, int, int]]) -> tuple[list[Taken], Asker, int]:
    ask, now, taken = Asker(limit), START, []
    for action, later, cost, which in script:
        now += later
        if action == "hit":
            decision = ask(now, cost=cost)
            if decision:
                taken.append(Taken(now, decision, cost))
        else:
            out = [one for one in taken if not one.is_back]
            if out:
                one = out[which % len(out)]
                one.is_back = True
                ask(now, "refund", one.cost, hit_at=one.moment)
    return taken, ask, now


scripts = st.lists(
    st.tuples(
        st.sampled_from(["hit", "hit", "back"]),
        st.sampled_from(LATER),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.integers(0, 40),
    ),
    min_size=30,
    max_size=60,
)
waits = st.sampled_from([None, None, 0.7, 30.0])


def limits(algorithm: str, rate: str, wait: float | None, burst: int | None) -> Limit:
    options: dict[str, Any] = {"max_wait": wait}
    if algorithm == "token_bucket":
        options["burst"] = burst
    return Limit("back", rate, algorithm=algorithm, **options)


def is_kept(algorithm: str, limit: Limit, hits: list[Taken]) -> bool:
    """Whether what was taken under these numbers, and not given back, is no more than they promise
    in any interval.
    """
    kept = sorted((one for one in hits if not one.is_back), key=lambda one: one.moment)
    size, period = limit.rate.limit, limit.rate.period_us
    for first, last in itertools.combinations_with_replacement(range(len(kept)), 2):
        units = sum(one.cost for one in kept[first : last + 1])
        span = kept[last].moment - kept[first].moment
        if algorithm == "token_bucket":
            is_fine = units <= (limit.burst or size) + Fraction(span * size, period)
        elif algorithm == "leaky_bucket":
            # Each leaves when all before it are served; told in whole microseconds.
            is_fine = span + 1 >= Fraction((units - kept[last].cost) * period, size)
        elif algorithm == "fixed_window":
            is_fine = span >= period or units <= 2 * size
        else:
            is_fine = span >= period or units <= size
        if not is_fine:
            return False
    return True


@pytest.mark.parametrize("algorithm", BY_RATE)
@EXAMPLES
@given(rate=st.sampled_from(RATES), wait=waits, burst=st.sampled_from([None, 1, 4]), script=scripts)
def test_refunds_never_let_the_limit_be_exceeded(
    algorithm: str, rate: str, wait: Any, burst: Any, script: Any
) -> None:
    """Units that were not refunded never exceed the limit in any interval, whatever is refunded
    in between.
    """
    limit = limits(algorithm, rate, wait, burst)
    taken, _, _ = flow(limit, script)
    assert is_kept(algorithm, limit, taken)


@pytest.mark.parametrize("algorithm", [name for name in BY_RATE if name != "leaky_bucket"])
@EXAMPLES
@given(rate=st.sampled_from(RATES), burst=st.sampled_from([None, 1, 4]), script=scripts)
def test_only_running_hits_count_if_all_others_are_refunded(
    algorithm: str, rate: str, burst: Any, script: Any
) -> None:
    """If every hit is refunded, at any time and in any order, no hit is refused while fewer
    units are in use than the limit has.
    """
    limit = limits(algorithm, rate, None, burst)
    ask, now, out = Asker(limit), START, []
    size = (limit.burst if algorithm == "token_bucket" else None) or limit.rate.limit
    for action, later, cost, which in script:
        now += later
        if action == "hit":
            flying = sum(one.cost for one in out)
            decision = ask(now, cost=cost)
            if decision:
                out.append(Taken(now, decision, cost))
            else:
                assert flying + cost > size
        elif out:
            one = out.pop(which % len(out))
            ask(now, "refund", one.cost, hit_at=one.moment)
    for one in out:
        ask(now, "refund", one.cost, hit_at=one.moment)
    state = ask(now, "peek").limits[0]
    assert (state.used, state.reset_after) == (0, 0.0)


@pytest.mark.parametrize("algorithm", [name for name in BY_RATE if name != "fixed_window"])
@EXAMPLES
@given(rate=st.sampled_from(RATES), burst=st.sampled_from([None, 1, 4]), script=scripts)
def test_a_refund_leaves_the_state_as_if_the_hit_never_happened(
    algorithm: str, rate: str, burst: Any, script: Any
) -> None:
    """Afterwards the limit is as if only the hits had been made whose units were kept. A sliding
    window that lost the last hit of a segment may keep the other units of the segment for at
    most one segment longer.
    """
    limit = limits(algorithm, rate, None, burst)
    taken, ask, now = flow(limit, script)
    ideal = REFERENCES[algorithm](limit)
    for one in taken:
        if not one.is_back:
            ideal.take(one.asked, one.moment, one.cost)
    state = ask(now, "peek", 0).limits[0]
    told = round(state.reset_after * 1e6)
    expected = max(0, ideal.idle(now) - now)
    if algorithm == "leaky_bucket":
        # A turn in the middle that is given back stays free only as long as its time has not come.
        # (Exact turns are counted from here, whole microseconds in the reference.)
        assert state.remaining <= ideal.remaining(now + 1)
        assert told >= expected - 1
        return
    if algorithm == "sliding_window":
        segment = limit.rate.period_us // 10
        assert 0 <= told - expected <= segment
        assert ideal.remaining(now - segment) <= state.remaining <= ideal.remaining(now)
    elif len(taken) <= 16 or algorithm != "token_bucket":
        assert told == expected
        assert state.remaining == ideal.remaining(now)
    else:
        assert told >= expected
        assert state.remaining <= ideal.remaining(now)


@pytest.mark.parametrize("rate", ["100/m", "700/11s", "1/s"])
def test_the_latest_hits_are_refunded_exactly_however_many_came_before(rate: str) -> None:
    """In a token bucket, even one that is never full again, any of the latest seven hits is
    refunded as if it had never been made.
    """
    limit, chance = Limit("latest", rate, algorithm="token_bucket", burst=1000), random.Random(rate)
    ask, ideal, now, taken = Asker(limit), REFERENCES["token_bucket"](limit), START, []
    for _ in range(300):
        now += chance.choice([1, 1_000, 300_000, 900_000])
        taken.append(Taken(now, ask(now), 1))
        one = chance.choice(taken[-7:])
        if chance.random() < 0.4 and not one.is_back:
            one.is_back = True
            ask(now, "refund", hit_at=one.moment)
    for one in taken:
        if not one.is_back:
            ideal.take(one.asked, one.moment, one.cost)
    state = ask(now, "peek", 0).limits[0]
    assert state.used > 20 or rate == "700/11s"
    assert (state.remaining, round(state.reset_after * 1e6)) == (
        ideal.remaining(now),
        ideal.idle(now) - now,
    )


@pytest.mark.parametrize("algorithm", BY_RATE)
@pytest.mark.parametrize("order", ["first", "last", "middle"])
def test_returning_a_turn_affects_no_other_call(algorithm: str, order: str) -> None:
    """One of several waiting calls returns its turn. The others keep theirs, and the next call gets
    none of them.
    """
    ask = Asker(
        limits(algorithm, "2/s", 1000.0, 1)
        if algorithm != "leaky_bucket"
        else Limit("back", "2/s", algorithm=algorithm, queue=1000)
    )
    turns = [Taken(START, ask(START), 1) for _ in range(12)]
    gone = turns.pop({"first": 2, "middle": 6, "last": 11}[order])
    ask(START + 1, "refund", hit_at=gone.moment)
    turns += [Taken(START + 2, ask(START + 2), 1) for _ in range(3)]
    moments = sorted(one.moment for one in turns)
    for before, after in zip(moments, moments[2:], strict=False):
        assert after - before >= 1_000_000
    if order == "last":
        assert gone.moment in [one.moment for one in turns[-3:]], "it is free again"


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_when_all_waiting_calls_give_up_the_queue_is_empty(algorithm: str) -> None:
    """They give up in any order. Then the state is as if none of them had come."""
    for order in (1, -1):
        ask = Asker(
            Limit(
                "back",
                "1/s",
                algorithm=algorithm,
                **({"queue": 1000} if algorithm == "leaky_bucket" else {"max_wait": 1000.0}),
            )
        )
        served = ask(START)
        turns = [ask(START).limits[0].counted_at for _ in range(40)]
        next_turn = math.inf if not turns else turns[0]
        for moment in turns[::order]:
            ask(START + 3, "refund", hit_at=moment)
        assert served.wait == 0
        assert ask(START + 4).limits[0].counted_at == next_turn, order


def test_a_returned_turn_takes_room_in_the_queue_until_later_turns_are_over() -> None:
    """A leaky bucket: while a call waits behind a returned turn, the room of that turn is not free,
    and new calls are refused as if it had been kept. It is free when the later calls have ended or
    have returned their turns.
    """
    for do_give_up in (True, False):
        ask = Asker(Limit("back", "1/s", algorithm="leaky_bucket", queue=2))
        turns = [ask(START).limits[0].counted_at for _ in range(3)]
        ask(START + 1, "refund", hit_at=turns[1])
        refused = ask(START + 1)
        assert (refused.allowed, round(refused.retry_after * 1e6)) == (False, 999_999)
        if do_give_up:
            ask(START + 2, "refund", hit_at=turns[2])
            assert ask(START + 3).limits[0].counted_at == turns[1]
        else:
            assert ask(START + 1_000_000).limits[0].counted_at == turns[2] + 1_000_000


def test_hits_at_the_same_moment_are_all_refunded() -> None:
    """Another hit may be refunded in between, so that they are stored separately."""
    ask = Asker(Limit("moment", "10/m", algorithm="token_bucket"))
    for cost in (1, 2):
        ask(START, cost=cost)
    ask(START, "refund", 2, hit_at=START)
    ask(START, cost=3)
    ask(START, "refund", 3, hit_at=START)
    assert ask(START, "refund", 1, hit_at=START).limits[0].used == 0


def test_a_hit_with_a_later_clock_can_be_refunded() -> None:
    """The clocks of hosts differ slightly. A hit counts from the time of the later clock, which
    the state returns, and is refunded by that time.
    """
    for algorithm in BY_RATE:
        ask = Asker(Limit("skew", "4/m", algorithm=algorithm))
        assert ask(START + 5_000)
        decision = ask(START)
        assert decision.limits[0].counted_at >= START + 5_000
        ask(START, "refund", hit_at=decision.limits[0].counted_at)
        assert ask(START + 5_000, "peek").limits[0].used == 1, algorithm


def test_an_earlier_call_returns_its_turn_although_others_wait() -> None:
    """A later call may get the returned turn, and may return it again."""
    ask = Asker(Limit("before", "1/h", algorithm="token_bucket", burst=6, max_wait=36_000.0))
    costs = [2, 2, 3, 1, 2]
    taken = [Taken(START, ask(START, cost=cost), cost) for cost in costs]
    for one in taken[:-1]:
        ask(START, "refund", one.cost, hit_at=one.moment)
    last = Taken(START, ask(START, cost=2), 2)
    assert START < last.moment < taken[-1].moment
    ask(START, "refund", last.cost, hit_at=last.moment)
    ask(START, "refund", taken[-1].cost, hit_at=taken[-1].moment)
    assert ask(START, "peek").limits[0].used == 0


def history(algorithm: str, chance: random.Random) -> tuple[Limit, list[Any]]:
    """Hits, refunds and edits, most of them at once: many reserve, give back and reserve again. Of
    a leaky bucket, rates whose turns are whole microseconds apart, and no edits.
    """
    is_queue, is_edited = algorithm == "leaky_bucket", chance.random() < 0.5

    def numbers() -> Limit:
        rate = chance.choice(["1/h", "10/h"] if is_queue else ["1/h", "1/h", "3/h", "7/h"])
        return limits(
            algorithm,
            rate,
            chance.choice([None, 10_000.0, 36_000.0]),
            chance.choice([None, 1, 2, 6]),
        )

    actions = ["hit"] * 6 + ["back"] * 2 + (["edit"] if is_edited and not is_queue else [])
    later = [0] * 6 + (
        [1, 1_000, 900_000_000, 3_600_000_000, 7_200_000_000] if is_edited else [1, 1_000]
    )
    limit = numbers() if is_edited else limits(algorithm, "1/h", 36_000.0, 6)
    return limit, [
        (
            chance.choice(actions),
            chance.choice(later),
            chance.choice([1, 2, 3]),
            chance.randrange(9),
            numbers(),
        )
        for _ in range(40)
    ]


@pytest.mark.parametrize("algorithm", BY_RATE)
@settings(EXAMPLES, max_examples=examples(120))
@given(seed=st.integers(0, 2**64))
def test_refunding_all_hits_leaves_no_state(algorithm: str, seed: int) -> None:
    """This includes hits that were reserved far ahead, departures in another order, edits in
    between, and any order of refunds. Until then, the units kept under the same numbers never
    exceed the limit.
    """
    chance = random.Random(seed)
    limit, script = history(algorithm, chance)
    ask, now, taken, edits = Asker(limit), START, [], [[limit, []]]
    is_reserved_before = False
    for action, later, cost, which, other in script:
        now += later
        out = [one for one in taken if not one.is_back]
        if action == "edit":
            ask.limit = other
            edits.append([ask.limit, []])
            is_reserved_before |= any(one.moment > now for one in out)
        elif action == "hit":
            decision = ask(now, cost=cost)
            if decision:
                taken.append(Taken(now, decision, cost))
                edits[-1][1].append(taken[-1])
        elif out:
            one = out[which % len(out)]
            one.is_back = True
            ask(now, "refund", one.cost, hit_at=one.moment)
    # An edit counts a full burst of what is reserved; who gives back more of it than that, may give
    # back another's.
    assert is_reserved_before or all(is_kept(algorithm, *edit) for edit in edits)
    chance.shuffle(taken)
    for one in [one for one in taken if not one.is_back]:
        ask(now, "refund", one.cost, hit_at=one.moment)
    state = ask(now, "peek").limits[0]
    assert (state.used, state.reset_after) == (0, 0.0)


def out_of_order(burst: int = 6) -> tuple[Asker, Taken, Taken]:
    """Two reserve two units each, in four hours and, who came later, in two."""
    ask = Asker(Limit("order", "1/h", algorithm="token_bucket", burst=burst, max_wait=36_000.0))
    taken = [Taken(START, ask(START, cost=cost), cost) for cost in (2, 2, 3, 1, 2)]
    for one in taken[:-1]:
        ask(START, "refund", one.cost, hit_at=one.moment)
    early = Taken(START, ask(START, cost=2), 2)
    assert (early.moment - START, taken[-1].moment - START) == (7_200_000_000, 14_400_000_000)
    return ask, taken[-1], early


def test_an_earlier_call_returns_its_own_units() -> None:
    """Units that are reserved for later still count at their moment, and no other call is
    admitted instead.
    """
    ask, late, early = out_of_order()
    ask(START, "refund", 2, hit_at=early.moment)
    assert ask(START, "peek").limits[0].reset_after == 6 * 3600
    ask(START, "refund", 2, hit_at=late.moment)
    assert ask(START, "peek").limits[0].used == 0


def test_an_edit_keeps_earlier_counts_refundable() -> None:
    """A call can return a turn that was reserved before an edit, even if others were reserved
    after it.
    """
    ask, late, early = out_of_order()
    ask.limit = Limit("order", "1/h", algorithm="token_bucket", burst=7, max_wait=36_000.0)
    for one in (early, late):
        ask(START, "refund", 2, hit_at=one.moment)
    state = ask(START, "peek").limits[0]
    assert (state.used, state.reset_after) == (0, 0.0)


def test_later_hits_count_after_an_edit_as_before() -> None:
    """Refunding early units after an edit does not refund later units."""
    late = START + 3 * 3600 * 1_000_000 - 1
    remaining = []
    for burst in (6, 7):
        ask = Asker(Limit("late", "1/h", algorithm="token_bucket", burst=6))
        ask(START, cost=3)
        assert ask(late, cost=3)
        ask.limit = Limit("late", "1/h", algorithm="token_bucket", burst=burst)
        ask(late, "refund", 3, hit_at=START)
        remaining.append(ask(late, "peek").limits[0].remaining)
    assert remaining == [3, 4]
