"""The Lua program against the reference, side by side, on a real server."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.limits.algorithms import ALGORITHMS, BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.examples import examples
from tests.support.reference_model import MODELS, Answer, Answers, decide

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
RATES = ["1/s", "3/s", "7/11s", "10/m", "13/m", "5/15m", "100/h", "300007/s", "1000003/d"]
RATES += [(5, 0.00001), (2, 0.000003), "0/m", "1000000/d", "99991/d", "10000019/h", "100/30d"]
HUGE = ("300007/s", "1000003/d", "1000000/d", "99991/d", "10000019/h")
serial = itertools.count()
performed: Counter[str] = Counter()


@st.composite
def limits(draw: Any, algorithm: str, name: str, bans: bool = False) -> Limit:
    """A limit of that algorithm with any of its options."""
    options: dict[str, Any] = {}
    takes = ALGORITHMS[algorithm].options
    few = st.integers(1, 12)
    if "burst" in takes and draw(st.booleans()):
        options["burst"] = draw(few)
    if "queue" in takes and draw(st.booleans()):
        options["queue"] = draw(few)
    if "segments" in takes and draw(st.booleans()):
        options["segments"] = draw(st.integers(1, 3))
    rates = [rate for rate in RATES if algorithm != "sliding_log" or rate not in HUGE]
    if "segments" in takes:
        rates.remove((2, 0.000003))
    if "align" in takes:
        options["align"] = draw(st.sampled_from([None, None, "clock", *CALENDARS]))
        if options["align"] in CALENDARS:
            rates = [CALENDARS[options["align"]]]
            options["time_zone"] = draw(st.sampled_from(["UTC", "Europe/Berlin"]))
    extra = draw(st.sampled_from(["none", "max_wait", "count_denied"]))
    if extra == "max_wait" and extra in takes:
        options["max_wait"] = draw(st.sampled_from([0.000001, 0.5, 10.0, 100.0]))
    if extra == "count_denied" and extra in takes:
        options["count_denied"] = True
    options["mode"] = draw(st.sampled_from(["enforce", "enforce", "enforce", "shadow"]))
    if bans:
        lengths = st.lists(
            st.sampled_from(["1s", "3s", "7s", "10m", "20m"]), min_size=1, max_size=4
        )
        options |= {"ban_after": draw(st.integers(1, 4)), "ban_for": ",".join(draw(lengths))}
        options["ban_window"] = draw(st.sampled_from([None, "1s", "2s", "1h"]))
    return Limit(name, draw(st.sampled_from(rates)), algorithm=algorithm, **options)


CALENDARS = {"day": "10/d", "week": "10/w", "month": "10/30d"}
LATER = [0, 0, 0, 1, 2, 7, 999_983, 1_000_000, 6_000_000, 59_999_999, 3_600_000_000, -1]
LATER += [-2_000_000, -61_000_000, -3_600_000_007, 86_400_000_000, -31_536_000_000_000]
ACTIONS = ["peek", "charge"] + ["hit"] * 8 + ["partial", "debt", "refund", "return", "edit", "edit"]


def scripts(actions: list[str]) -> Any:
    step = st.tuples(
        st.sampled_from(actions),
        st.sampled_from(LATER),
        st.sampled_from([0, 1, 1, 1, 1, 2, 3, 7, 1000]),
    )
    return st.lists(step, min_size=40, max_size=40)


steps = scripts(ACTIONS)


def microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def answers_of(decision: Decision) -> Answers:
    """Return the numbers of a decision in microseconds."""
    limits = [
        Answer(
            state.used,
            state.remaining,
            microseconds(state.retry_after),
            microseconds(state.reset_after) or 0,
            microseconds(state.wait) or 0,
            state.counted_at,
            state.ban,
        )
        for state in decision.limits
    ]
    return Answers(decision.allowed, decision.granted, microseconds(decision.wait) or 0, limits)


def compare(limit_data: Any, algorithms: list[str], script: Any, bans: bool = False) -> None:
    """Perform the script on the Lua program and on the models, and compare each answer."""
    now, client = START, f"{next(serial):032d}".encode()
    current = [
        limit_data.draw(limits(algorithm, f"l{place}", bans))
        for place, algorithm in enumerate(algorithms)
    ]
    models = [MODELS[limit.algorithm](limit) for limit in current]
    taken: list[tuple[int, int]] = []

    def ask(operation: str, now: int, cost: int, mode: str = "", **options: Any) -> Decision:
        charges = [Charge(limit, client, cost) for limit in current]
        partial, debt = mode == "partial", mode == "debt"
        call = Call(charges, operation, b"m:", now, partial=partial, debt=debt, **options)  # type: ignore[arg-type]
        return get_store().decide(call)

    for action, later, cost in script:
        now += later
        performed["operations"] += 1
        if action == "edit":
            current = [
                limit_data.draw(limits(limit.algorithm, limit.name, bans)) for limit in current
            ]
            for model, limit in zip(models, current, strict=True):
                model.edit(limit)
            continue
        operation = {"partial": "hit", "debt": "hit", "return": "refund"}.get(action, action)
        mode = action if action in ("partial", "debt") and cost else ""
        hit_at = None
        if action == "return" and taken:  # Of one of the latest hits, or of one that is no more.
            hit_at, cost = taken[-1 - cost % len(taken)]
        if action == "ban":
            cost *= 500_000
        expected = decide(models, operation, now, cost, mode, hit_at)
        decision = ask(operation, now, cost, mode, hit_at=hit_at)
        assert answers_of(decision) == expected
        if decision.granted:
            taken.append((decision.limits[0].counted_at or now, decision.granted))
        performed["bans"] += any(answer.ban and answer.ban.is_new for answer in expected.limits)
        if operation != "hit" or decision.allowed or not decision.retry_after or mode:
            continue
        # Exactly true: refused one microsecond before, allowed at it.
        performed["retries"] += 1
        retry_at = now + round(decision.retry_after * 1e6)
        assert not ask("peek", retry_at - 1, cost)
        assert ask("peek", retry_at, cost)


EXAMPLES = settings(
    max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("algorithm", BY_RATE)
@EXAMPLES
@given(data=st.data(), script=steps)
def test_one_limit_decides_like_its_reference_model(algorithm: str, data: Any, script: Any) -> None:
    """Scripts have hits, refunds, edits and a clock that steps back."""
    compare(data, [algorithm], script)


@EXAMPLES
@given(
    data=st.data(),
    algorithms=st.lists(st.sampled_from(BY_RATE), min_size=2, max_size=4),
    script=steps,
)
def test_many_limits_decide_like_their_reference_models(
    data: Any, algorithms: list[str], script: Any
) -> None:
    """Any mix of algorithms in one call, enforced or in shadow mode, is decided all or nothing."""
    compare(data, algorithms, script)


@pytest.mark.parametrize("algorithm", BY_RATE)
@EXAMPLES
@given(data=st.data(), script=scripts([*ACTIONS, "hit", "hit", "ban", "unban"]))
def test_bans_decide_like_their_reference_model(algorithm: str, data: Any, script: Any) -> None:
    """Scripts have offences, manual bans, edits and a clock that steps back."""
    compare(data, [algorithm], script, bans=True)


@EXAMPLES
@given(
    data=st.data(),
    algorithms=st.lists(st.sampled_from(BY_RATE), min_size=2, max_size=3),
    script=scripts([*ACTIONS, "unban"]),
)
def test_several_limits_that_ban_decide_like_their_reference_models(
    data: Any, algorithms: list[str], script: Any
) -> None:
    """While one of them bans, no limit counts a hit, and no other ban is triggered."""
    compare(data, algorithms, script, bans=True)


@pytest.mark.whole_file
def test_enough_operations_were_compared() -> None:
    """In .ci/run, at least 20,000 operations were compared, and many refused hits were retried."""
    assert performed["bans"] >= examples(1_000)
    assert performed["operations"] >= examples(20_000)
    assert performed["retries"] >= examples(1_000)
