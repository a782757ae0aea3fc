"""The recorder in the process counts each decision, under any limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from django_ratelimit_lua.contrib.statistics.recorder import Recorder
from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit

LIMITS = [
    Limit("small", "10/m"),
    Limit("large", "100000/h", algorithm="token_bucket"),
    Limit("shadowed", "10/m", mode="shadow"),
    Limit("counts all", "10/m", count_denied=True),
]
CHARGES = some.tuples(
    some.sampled_from(LIMITS),
    some.sampled_from("abc"),
    some.booleans(),
    some.integers(0, 12),
    some.integers(0, 90_000),
)
HITS = some.tuples(
    some.lists(CHARGES, min_size=1, max_size=3, unique_by=lambda charge: charge[0].name),
    some.sampled_from(("redis", "deny-cache", "lease", "split")),
)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Return a recorder that writes nothing."""
    made = Recorder()
    yield made
    made._begin()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(HITS, max_size=100))
def test_each_limit_and_each_decision_is_counted_once(recorder: Recorder, hits: list[Any]) -> None:
    """This holds whether the limits allow or refuse, in shadow mode, for every source of the
    decision and in any order.
    """
    recorder._begin()
    recorder._is_awaited = True
    letters = {
        ("enforce", True): "a",
        ("enforce", False): "r",
        ("shadow", True): "h",
        ("shadow", False): "s",
    }
    by_name: Counter[Any] = Counter()
    people: Counter[Any] = Counter()
    whole: Counter[str] = Counter()
    for charges, source in hits:
        states = tuple(
            LimitState(
                limit.name, allowed, limit.rate.limit, used, 0, 0.0, 0.0, 0.0, limit.mode, 60.0
            )
            for limit, _, allowed, _, used in charges
        )
        is_let_go = not any(state.refuses for state in states)
        granted = max(cost for _, _, _, cost, _ in charges) if is_let_go else 0
        decision = Decision(is_let_go, states, granted, source=source)
        planned = [
            DecidedCharge(Charge(limit, who.encode(), cost), limit.name, identity=who, state=state)
            for (limit, who, _, cost, _), state in zip(charges, states, strict=True)
        ]
        recorder.add(planned, decision, 0.001)
        results = []
        for limit, who, allowed, cost, _used in charges:
            result = letters[limit.mode, allowed]
            results.append(result)
            by_name[limit.name, result, source] += 1
            key = (limit.name, who.encode())
            people[(*key, "refused")] += not allowed
            people[(*key, "units")] += min(cost, granted) if allowed else 0
        whole["r" if "r" in results else "a" if "a" in results else results[-1]] += 1
    recorder._count_queue()
    found: Counter[Any] = Counter()
    decisions = 0
    for (name, result, source, *_, is_first), of in recorder._tables.kinds.items():
        found[name, result, source] += of.number
        decisions += of.number * is_first
    assert found == by_name
    assert recorder._tables.requests == whole
    assert decisions == len(hits)
    for key, person in recorder._tables.clients.items():
        assert (person.refused, person.units) == (
            people[(*key, "refused")],
            people[(*key, "units")],
        )
