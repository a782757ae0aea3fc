"""A refund returns units where they still count, and never lets a limit be exceeded."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.limit import Limit
from tests.examples import examples
from tests.support.limits import Asker

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
AT_ONCE = [name for name in BY_RATE if name != "leaky_bucket"]


class Hit(NamedTuple):
    """An admitted hit: the moment from which it counts, and its units."""

    moment: int
    cost: int


scripts = st.lists(
    st.tuples(
        st.sampled_from(["hit", "hit", "refund"]),
        st.sampled_from(LATER),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.integers(0, 40),
    ),
    min_size=30,
    max_size=60,
)
bursts = st.sampled_from([None, 1, 4])


def make_limit(algorithm: str, rate: str, burst: int | None) -> Limit:
    if algorithm == "token_bucket":
        return Limit("back", rate, algorithm=algorithm, burst=burst)
    return Limit("back", rate, algorithm=algorithm)


def run_script(ask: Asker, script: Any) -> tuple[list[Hit], list[Hit], list[Hit]]:
    """Return the admitted hits, those that were not refunded, and the refunds."""
    admitted: list[Hit] = []
    kept: list[Hit] = []
    refunds: list[Hit] = []
    now = START
    for action, later, cost, which in script:
        now += later
        if action == "hit":
            decision = ask(now, cost)
            if decision:
                hit = Hit(decision.limits[0].counted_at, cost)
                admitted.append(hit)
                kept.append(hit)
        elif kept:
            hit = kept.pop(which % len(kept))
            ask(now, hit.cost, "refund", hit_at=hit.moment)
            refunds.append(Hit(now, hit.cost))
    return admitted, kept, refunds


def units_between(hits: list[Hit], first: int, last: int) -> int:
    return sum(hit.cost for hit in hits if first <= hit.moment <= last)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
@EXAMPLES
@given(rate=st.sampled_from(RATES), script=scripts)
def test_refunds_never_let_a_window_be_exceeded(algorithm: str, rate: str, script: Any) -> None:
    """Units that were not refunded never exceed the limit, or twice that in a fixed window."""
    limit = make_limit(algorithm, rate, None)
    _, kept, _ = run_script(Asker(limit), script)
    most = limit.rate.limit * (2 if algorithm == "fixed_window" else 1)
    for hit in kept:
        assert units_between(kept, hit.moment, hit.moment + limit.rate.period_us - 1) <= most


@EXAMPLES
@given(rate=st.sampled_from(RATES), burst=bursts, script=scripts)
def test_a_token_bucket_admits_at_most_its_bound_and_what_was_refunded(
    rate: str, burst: Any, script: Any
) -> None:
    """In any interval x it admits at most burst + x * N / W units, and those refunded in it."""
    limit = make_limit("token_bucket", rate, burst)
    admitted, _, refunds = run_script(Asker(limit), script)
    for first, last in itertools.combinations_with_replacement([hit.moment for hit in admitted], 2):
        bound = limit.capacity + Fraction((last - first) * limit.rate.limit, limit.rate.period_us)
        bound += units_between(refunds, first, last)
        assert units_between(admitted, first, last) <= bound


@EXAMPLES
@given(rate=st.sampled_from(RATES), script=scripts)
def test_refunds_never_bring_turns_of_a_leaky_bucket_closer(rate: str, script: Any) -> None:
    """Turns that were not given back stay a full interval apart, in whole microseconds."""
    limit = make_limit("leaky_bucket", rate, None)
    _, kept, _ = run_script(Asker(limit), script)
    for before, after in itertools.pairwise(sorted(kept)):
        interval = Fraction(before.cost * limit.rate.period_us, limit.rate.limit)
        assert after.moment - before.moment + 1 >= interval


@pytest.mark.parametrize("algorithm", AT_ONCE)
@EXAMPLES
@given(rate=st.sampled_from(RATES), burst=bursts, script=scripts)
def test_only_running_hits_count_if_all_others_are_refunded(
    algorithm: str, rate: str, burst: Any, script: Any
) -> None:
    """No hit is refused while fewer units are in use than the limit has."""
    limit = make_limit(algorithm, rate, burst)
    ask, now, out = Asker(limit), START, []
    for action, later, cost, which in script:
        now += later
        if action == "hit":
            flying = sum(hit.cost for hit in out)
            decision = ask(now, cost)
            if decision:
                out.append(Hit(decision.limits[0].counted_at, cost))
            else:
                assert flying + cost > limit.capacity
        elif out:
            hit = out.pop(which % len(out))
            ask(now, hit.cost, "refund", hit_at=hit.moment)
    for hit in out:
        ask(now, hit.cost, "refund", hit_at=hit.moment)
    state = ask(now, operation="peek").limits[0]
    assert (state.used, state.reset_after) == (0, 0.0)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_the_queue_is_empty_when_all_give_up_from_the_last_on(algorithm: str) -> None:
    """Then the state is as if none of the waiting calls had come."""
    options: dict[str, Any] = {"queue": 1000}
    if algorithm == "token_bucket":
        options = {"max_wait": 1000.0}
    ask = Asker(Limit("back", "1/s", algorithm=algorithm, **options))
    assert ask(START).wait == 0
    turns = [ask(START).limits[0].counted_at for _ in range(40)]
    for moment in reversed(turns):
        ask(START + 3, operation="refund", hit_at=moment)
    assert ask(START + 4).limits[0].counted_at == turns[0]
