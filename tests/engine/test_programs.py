"""Scripts and states that are not theirs, huge numbers and stale rules."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.limits.algorithms import ALGORITHMS, BY_RATE
from django_ratelimit_lua.limits.algorithms.concurrency import new_slot
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.support.limits import decide

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
serial = itertools.count()


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "ban"])
def test_a_key_of_another_type_is_an_error_of_the_store(
    algorithm: str, direct: redis.Redis
) -> None:
    """The policy decides the hit. Nothing is charged, and the key stays."""
    options: dict[str, Any] = {"algorithm": algorithm, "on_store_error": "closed"}
    if algorithm == "ban":
        options = {"ban_after": 1, "ban_for": "1h", "on_store_error": "closed"}
    rate = "5" if algorithm == "concurrency" else "5/h"
    limits = [Limit("first", "5/h"), Limit("foreign", rate, **options), Limit("last", "5/h")]
    who = b"%032d" % next(serial)
    call = Call([Charge(limit, who) for limit in limits], prefix=b"f:", slot=new_slot(10.0))
    key = call.keys()[-2]
    direct.hset(key, "not", "ours")
    for operation in ("hit", "peek"):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            get_store().decide(call._replace(operation=operation))
    decision = decide(call)
    assert (decision.allowed, decision.source) == (False, "fallback")
    assert direct.exists(*call.keys()) == 1
    assert direct.hgetall(key) == {b"not": b"ours"}


@pytest.mark.parametrize(("algorithm", "other"), list(itertools.permutations(BY_RATE, 2)))
def test_another_algorithm_begins_a_new_count(algorithm: str, other: str) -> None:
    """A limit whose algorithm is edited counts from 0."""
    who, used = b"%032d" % next(serial), []
    for name in (algorithm, other, other, algorithm):
        call = Call([Charge(Limit("edited", "5/h", algorithm=name), who)], prefix=b"e:", now=START)
        used.append(get_store().decide(call).limits[0].used)
    assert used == [1, 1, 2, 2]


def test_a_script_contains_only_the_algorithms_of_its_call() -> None:
    """The order of the limits makes no difference, so all processes use the same digest."""
    limits = [
        Limit("a", "5/h"),
        Limit("b", "5/h", algorithm="token_bucket"),
        Limit("c", "5/h", ban_after=1, ban_for="1h"),
    ]
    names = set()
    for order in itertools.permutations(limits):
        names.add(Call([Charge(limit, b"0" * 32) for limit in order]).algorithms)
    assert names == {("ban", "sliding_window", "token_bucket")}
