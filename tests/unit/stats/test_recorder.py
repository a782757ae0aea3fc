"""Counting in the process: the quick way of a limit that is decided alone counts as the way for all others does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from django_ratelimit_lua.engine.decide import PlannedCharge
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.stats.keys import SITE
from django_ratelimit_lua.stats.recorder import Recorder, Tables

LIMITS = [
    Limit("small", "10/m"),
    Limit("large", "100000/h", algorithm="token_bucket"),
    Limit("shadowed", "10/m", mode="shadow"),
    Limit("counts all", "10/m", count_denied=True),
]
HITS = some.tuples(
    some.sampled_from(LIMITS), some.sampled_from("abc"), some.booleans(), some.integers(0, 12),
    some.integers(0, 90_000),
    some.sampled_from(("redis", "deny-cache", "lease", "split", "fallback")), some.sampled_from((1e-5, 1e-3, 1.0)),
)  # fmt: skip


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorder]]:
    """The second counts nothing the quick way; none is written."""
    made = [Recorder(), Recorder()]
    for one in made:
        one._is_awaited = True
    monkeypatch.setattr(made[1], "_alone_of", lambda limit, name: None)
    yield made
    for one in made:
        one.clear()


def counted(recorder: Recorder) -> tuple[Counter[Any], dict[str, float], list[Any]]:
    recorder._count_queue()
    tables: Tables = recorder._tables(
        recorder._began, recorder._alone, recorder._kinds, recorder._seconds, [recorder._people]
    )
    kinds: Counter[Any] = Counter()
    for (*kind, _is_alone), (number, units) in tables.kinds.items():
        if kind[0] != SITE:
            kinds[*kind, "hits"] += number
            kinds[*kind, "units"] += units
    people = [
        (name, person.digest, person.came, person.refused, person.units, person.mark) for name, person in tables.people
    ]
    return kinds, {source: round(seconds, 6) for source, seconds in tables.seconds.items()}, sorted(people)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(HITS, max_size=200))
def test_both_ways_count_the_same(recorders: list[Recorder], hits: list[Any]) -> None:
    """Whatever limits allow, refuse or would refuse, whoever decides, in whatever order."""
    for recorder in recorders:
        recorder.clear()
        recorder._is_awaited = True
        for limit, who, allowed, cost, used, source, seconds in hits:
            state = LimitState(limit.name, allowed, limit.rate.limit, used, 0, 0.0, 0.0, 0.0, limit.mode, 60.0)
            is_let_go = allowed or limit.mode != "enforce"
            decision = Decision(is_let_go, (state,), cost if is_let_go else 0, source=source)
            planned = PlannedCharge(Charge(limit, who.encode(), cost), limit.name, identity=who)
            recorder.add([planned], decision, seconds)
    assert counted(recorders[0]) == counted(recorders[1])
