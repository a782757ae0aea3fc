"""The counts of a process, for a bounded number of clients, without a server."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.local import LocalCounts
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge, Operation
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from tests.support.limits import equal_share, set_share

MAX = 100
SECOND = 1_000_000
NOW = 2_000_000_000 * SECOND
HOUR = 3600 * SECOND


@pytest.fixture
def here(settings: Any, monkeypatch: pytest.MonkeyPatch) -> LocalCounts:
    """Return the counts of one of four processes, with memory for few clients."""
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    monkeypatch.setattr(heartbeat, "count", 4)
    monkeypatch.setattr("django_ratelimit_lua.engine.local.MAX_COUNTS", MAX)
    return LocalCounts()


def ask(
    here: LocalCounts,
    *limits: Limit,
    who: object = "ada",
    now: int = NOW,
    cost: int = 1,
    operation: Operation = "hit",
    **options: Any,
) -> Decision:
    charges = [Charge(limit, digest(str(who)), cost) for limit in limits]
    return here.decide(Call(charges, operation, now=now, **options), in_outage=True)


def hits(here: LocalCounts, limit: Limit, times: int, **options: Any) -> int:
    return sum(ask(here, limit, **options).allowed for _ in range(times))


def test_each_limit_uses_its_own_policy(here: LocalCounts) -> None:
    """A local limit admits a part, an open limit allows every hit, and a closed limit refuses."""
    local = Limit("local", "8/h")
    closed = Limit("closed", "8/h", on_store_error="closed")
    opened = Limit("open", "1/h", on_store_error="open")
    assert hits(here, local, 5) == 2
    assert [ask(here, opened).granted for _ in range(3)] == [1, 1, 1]
    refused = ask(here, closed)
    assert (refused.allowed, refused.retry_after, refused.source) == (False, 1.0, "fallback")
    assert ask(here, closed, local, who="bob").denied_by == ("closed",)
    assert ask(here, local, who="bob", operation="peek").limits[0].used == 0
    shadow = Limit("shadow", "8/h", on_store_error="closed", mode="shadow")
    assert ask(here, shadow)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_window_begins_with_the_first_hit_and_lasts_a_period(
    algorithm: str, here: LocalCounts
) -> None:
    """A quarter of the units is admitted in it, and a whole quarter in the next one."""
    limit = Limit("x", "40/h", algorithm=algorithm)
    assert hits(here, limit, 20) == 10
    refused = ask(here, limit, now=NOW + HOUR // 2)
    assert (refused.retry_after, refused.reset_after, refused.remaining) == (1800.0, 1800.0, 0)
    assert not ask(here, limit, now=NOW + HOUR - 1)
    assert hits(here, limit, 20, now=NOW + HOUR) == 10


def test_a_bucket_admits_a_part_of_its_burst_in_the_time_in_which_it_refills(
    here: LocalCounts,
) -> None:
    """A burst of 20 at 100 an hour refills in 12 minutes."""
    bucket = Limit("bucket", "100/h", algorithm="token_bucket", burst=20)
    assert hits(here, bucket, 20) == 5
    assert ask(here, bucket).retry_after == 720.0
    assert hits(here, bucket, 20, now=NOW + 720 * SECOND) == 5


def test_small_and_large_hits(here: LocalCounts) -> None:
    """A smaller limit than the number of processes admits one unit, and a limit of 0 none."""
    assert hits(here, Limit("small", "2/h"), 3) == 1
    assert ask(here, Limit("none", "0/h")).retry_after is None
    assert ask(here, Limit("x", "40/h"), cost=11).retry_after == 1.0
    assert ask(here, Limit("x", "40/h"), cost=41).retry_after is None


def test_partial_hits_debt_and_waits_are_decided_like_other_hits(here: LocalCounts) -> None:
    """A hit is admitted whole and at once, or refused."""
    limit = Limit("x", "40/h", algorithm="token_bucket", max_wait=3600)
    assert not ask(here, limit, cost=11, partial=True)
    assert not ask(here, limit, cost=11, debt=True)
    first = ask(here, limit, cost=8, partial=True)
    assert (first.granted, first.wait) == (8, 0.0)
    assert not ask(here, limit, cost=8, max_wait_us=-1)


def test_a_refund_returns_units_to_the_window_of_the_hit(here: LocalCounts) -> None:
    """A refund without a moment is about the present window. A charge always counts."""
    limit = Limit("x", "40/h")
    (state,) = ask(here, limit, cost=10).limits
    assert ask(here, limit, cost=4, operation="refund", hit_at=state.counted_at).remaining == 4
    assert ask(here, limit, cost=2, operation="refund", hit_at=NOW - HOUR).remaining == 4
    assert ask(here, limit, cost=2, operation="refund").remaining == 6
    assert ask(here, limit, cost=9, operation="charge").limits[0].used == 13
    later = ask(here, limit, cost=1, operation="refund", now=NOW + HOUR)
    assert (later.limits[0].used, later.reset_after) == (0, 0.0)


def test_a_clock_that_is_set_back_begins_a_window(here: LocalCounts) -> None:
    """No client is refused longer than a period."""
    limit = Limit("x", "40/h")
    assert hits(here, limit, 20) == 10
    assert hits(here, limit, 20, now=NOW - 1) == 10


def test_an_edited_limit_keeps_its_count(here: LocalCounts) -> None:
    """Used units still count, and no client waits longer than the new limit requires."""
    assert hits(here, Limit("x", "40/h"), 20) == 10
    assert hits(here, Limit("x", "48/h"), 20) == 2
    assert ask(here, Limit("x", "48/m"), now=NOW + 59 * SECOND).retry_after == 1.0
    assert hits(here, Limit("x", "48/m"), 20, now=NOW + 60 * SECOND) == 12


@pytest.mark.parametrize("split", [True, False])
def test_the_least_recently_used_client_is_dropped(
    split: Any, here: LocalCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that keeps hitting is never dropped."""
    set_share(monkeypatch, equal_share(4, 1))
    limit = Limit("x", "40/h", algorithm="fixed_window", split=split)
    assert hits(here, limit, 20, who="idle") == 10
    admitted = 0
    for number in range(MAX - 2):
        ask(here, limit, who=number)
        admitted += ask(here, limit, who="busy").allowed
        ask(here, limit, who=f"other {number}", operation="peek")
        ask(here, limit, who=f"other {number}", operation="refund")
    assert admitted == 10
    assert not ask(here, limit, who="idle")
    for number in range(MAX):
        ask(here, limit, who=f"more {number}")
    assert len(here._counts) == MAX
    assert hits(here, limit, 20, who="idle") == 10


def test_threads_take_exactly_the_available_units(here: LocalCounts) -> None:
    """Eight threads take units of several limits and clients in any order."""
    limits = [Limit(f"limit {number}", "1600/h") for number in range(3)]
    admitted: list[tuple[int, int]] = []

    def hammer(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(600):
            chosen = dice.sample([(limit, who) for limit in range(3) for who in range(8)], 3)
            charges = [Charge(limits[limit], digest(str(who))) for limit, who in chosen]
            if here.decide(Call(charges, now=NOW), in_outage=True):
                admitted.extend(chosen)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    totals = []
    for limit in range(3):
        for who in range(8):
            used = ask(here, limits[limit], who=who, operation="peek").limits[0].used
            assert used == admitted.count((limit, who)) <= 400
            totals.append(used)
    assert 400 in totals
