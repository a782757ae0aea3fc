"""What the algorithms promise in words, checked without the reference: from the outside, and by
brute force.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
import redis

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import NO_RULES, Revision, StaleRules
from django_ratelimit_lua.limits.limit import Limit
from tests.support.limits import Asker

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000


def most_in_any(period: int, moments: list[int]) -> int:
    """The most moments in any half-open interval of that length."""
    most, first = 0, 0
    for last, moment in enumerate(moments):
        while moments[first] <= moment - period:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.parametrize("algorithm", sorted(BY_RATE))
@pytest.mark.parametrize("start", [0, 1, 999_999])
def test_the_first_moments_of_a_clock_count_as_all_others(algorithm: str, start: int) -> None:
    """The timer of a throttle may begin at 0, as those of DRF's own tests do."""
    ask = Asker(Limit("zero", "3/s", algorithm=algorithm))
    assert [ask(start).allowed for _ in range(5)] == [True] * 3 + [False] * 2
    assert ask(start + 1_000_000).allowed


@pytest.mark.parametrize("algorithm", ["sliding_window", "sliding_log"])
@pytest.mark.parametrize("rate", ["5/s", "10/7s", "100/m"])
def test_never_more_than_n_in_any_period(algorithm: str, rate: str) -> None:
    """A client that waits for every edge gets at most N units in any period W."""
    limit = Limit("edge", rate, algorithm=algorithm)
    ask, chance, now, admitted = Asker(limit), random.Random(rate), START, []
    for _ in range(1500):
        decision = ask(now)
        if decision:
            admitted.append(now)
        # Take all there is; then come back at the very moment it frees up, or just before or after
        # it.
        edge = round((decision.retry_after or 0) * 1e6)
        now += (
            chance.choice([0, 0, 0, 1]) if decision else chance.choice([edge - 1, edge, edge + 1])
        )
    assert len(admitted) > 300
    assert most_in_any(limit.rate.period_us, admitted) == limit.rate.limit


def test_fixed_window_admits_up_to_twice_the_limit_at_an_edge() -> None:
    """This is the documented weakness: 2N units in any W are possible, and no more."""
    limit = Limit("edge", "5/s", algorithm="fixed_window", align="clock")
    ask = Asker(limit)
    edge = START - START % 1_000_000 + 1_000_000
    admitted = [now for now in [edge - 1] * 10 + [edge] * 10 if ask(now)]
    assert most_in_any(1_000_000, admitted) == 10


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        ("1000000/d", None),
        ("99991/d", None),
        ("10000019/h", None),
        ("10/s", 100_000),
        ("100/30d", None),
    ],
)
def test_a_token_bucket_of_any_rate_is_exact(rate: str, burst: int | None) -> None:
    """Whenever a client takes all units, it has taken burst + x * N / W after any x."""
    limit, chance = Limit("exact", rate, algorithm="token_bucket", burst=burst), random.Random(rate)
    ask, now, unit = Asker(limit), START, limit.numbers(0)[-1]
    granted = ask(now, limit.capacity).granted
    interval = limit.rate.period_us // limit.rate.limit
    later = [1, interval - 1, interval, interval + 1, limit.capacity // 2 * interval + 7]
    for _ in range(200):
        now += chance.choice(later)
        granted += ask(now, limit.capacity, partial=True).granted
        paid = Fraction((now - now % unit - START) * limit.rate.limit, limit.rate.period_us)
        assert granted == limit.capacity + math.floor(paid)


def test_leaky_bucket_spaces_departures_evenly() -> None:
    """It admits N requests of a large burst, W/N apart in whole microseconds, without drift."""
    ask = Asker(Limit("paced", "7/11s", algorithm="leaky_bucket"))
    decisions = [ask(START) for _ in range(9)]
    waits = [round(decision.wait * 1e6) for decision in decisions if decision]
    interval = Fraction(11_000_000, 7)
    assert waits == [-(-(turn * interval) // 1) for turn in range(7)]
    assert [decision.allowed for decision in decisions[7:]] == [False, False]


@pytest.mark.parametrize(
    ("rate", "segments"), [("5/m", None), ("5/100s", None), ("5/7s", 3), ("5/s", 1)]
)
def test_sliding_window_forgets_a_burst_exactly_one_period_later(
    rate: str, segments: int | None
) -> None:
    """The burst may be anywhere in a segment, and may continue in the next one."""
    limit = Limit("burst", rate, algorithm="sliding_window", segments=segments)
    period, length = limit.rate.period_us, limit.numbers(0)[2]
    for offset in (0, 1, length // 3, length - 4, length - 2, length - 1):
        ask, start = Asker(limit), START - START % length + offset
        for number in range(5):
            assert ask(start + number)
        assert round(ask(start + 4, 5).retry_after * 1e6) == period
        assert ask(start + 4).limits[0].reset_after == period / 1e6
        assert not ask(start + 4 + period - 1, 5)
        assert ask(start + 4 + period, 5)


@pytest.mark.parametrize(
    ("align", "zone", "rate", "seconds"),
    [
        ("day", "Europe/Berlin", "2/d", 25 * 3600),
        ("week", "UTC", "2/w", 7 * 86400),
        ("month", "UTC", "2/30d", 31 * 86400),
    ],
)
def test_calendar_windows_begin_at_the_calendar_boundaries(
    align: str, zone: str, rate: str, seconds: int
) -> None:
    """A day is a local day (25 hours when summer time ends)."""
    start = {
        # Midnight in Berlin, before the clocks go back.
        "day": datetime(2026, 10, 24, 22, tzinfo=UTC),
        "week": datetime(2026, 11, 16, tzinfo=UTC),
        "month": datetime(2026, 10, 1, tzinfo=UTC),
    }[align]
    now = round(start.timestamp()) * 1_000_000
    ask = Asker(Limit("quota", rate, algorithm="fixed_window", align=align, time_zone=zone))
    assert [ask(now - 1).allowed, ask(now - 1).allowed, ask(now - 1).allowed] == [True, True, False]
    assert [ask(now).allowed, ask(now).allowed] == [True, True]
    assert ask(now).retry_after == seconds
    assert not ask(now + seconds * 1_000_000 - 1)
    assert ask(now + seconds * 1_000_000)


@pytest.mark.parametrize(
    ("algorithm", "one", "ten", "most"),
    [
        ("token_bucket", 37, 37, 37),
        ("leaky_bucket", 37, 37, 37),
        ("fixed_window", 28, 28, 28),
        ("sliding_window", 21, 21, 175),
    ],
)
def test_the_state_of_a_limit_has_few_bytes(
    algorithm: str, one: int, ten: int, most: int, direct: redis.Redis
) -> None:
    """Bytes after one hit, after ten within a second, and at most in two periods."""
    ask, sizes = Asker(Limit("small", "2000/h", algorithm=algorithm)), []
    for number in range(1000):
        now = START + number * (100_000 if number < 10 else 7_200_000)
        assert ask(now, max_wait_us=-1)
        sizes.append(direct.strlen(ask.keys()[0]))
    assert (sizes[0], sizes[9]) == (one, ten)
    assert max(sizes) <= most


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_backlog_takes_little_memory(algorithm: str, direct: redis.Redis) -> None:
    """The state of a bucket has 37 bytes while a thousand hits wait, each for its own turn."""
    options: dict[str, Any] = {"queue": 1000} if algorithm == "leaky_bucket" else {"burst": 1}
    ask, moments, sizes = Asker(Limit("backlog", "2/s", algorithm=algorithm, **options)), [], []
    for number in range(1000):
        decision = ask(START + number, max_wait_us=-1)
        moments.append(decision.limits[0].counted_at)
        sizes.append(direct.strlen(ask.keys()[0]))
    assert set(sizes) == {37}
    assert moments == [START + number * 500_000 for number in range(1000)]


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_refusal_writes_nothing(algorithm: str, direct: redis.Redis) -> None:
    """It prolongs no refusal, and the other limits of the call lose no units."""
    options = {"queue": 0} if algorithm == "leaky_bucket" else {}
    ask = Asker(Limit("tight", "1/h", algorithm=algorithm, **options))
    both = Asker(*ask.limits, Limit("wide", "100/h"), Limit("seen", "100/h", mode="shadow"))
    both.prefix = ask.prefix
    assert ask(START)
    before = direct.dump(ask.keys()[0])
    for later in range(5):
        assert not both(START + later)
    assert direct.dump(ask.keys()[0]) == before
    assert direct.exists(*both.keys()) == 1


@pytest.mark.parametrize("algorithm", BY_RATE)
@pytest.mark.parametrize("rate", ["3/m", "2/3650d"])
def test_expiry_of_a_key_changes_no_verdict(algorithm: str, rate: str, direct: redis.Redis) -> None:
    """The key expires when its state equals no state, or at most a second later, in ten years too.

    They are a number of twelve digits in milliseconds, which Redis receives exactly.
    """
    ask = Asker(Limit("ttl", rate, algorithm=algorithm))
    reset = [ask(None).limits[0].reset_after for _ in range(2)][1]
    assert reset - 1 < direct.pttl(ask.keys()[0]) / 1000 <= reset + 0.002


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
def test_windows_and_logs_count_a_request_that_waits_at_its_decision(algorithm: str) -> None:
    """A bucket counts it at its departure."""
    paced = Limit("paced", "1/4s", algorithm="leaky_bucket", queue=5)
    ask = Asker(Limit("log", "3/m", algorithm=algorithm), paced)
    decisions = [ask(START, max_wait_us=-1) for _ in range(4)]
    found = [(decision.allowed, round(decision.wait)) for decision in decisions]
    assert found == [(True, 0), (True, 4), (True, 8), (False, 60)]
    moments = [[state.counted_at for state in decision.limits] for decision in decisions[:3]]
    assert moments == [[START, START + turn * 4_000_000] for turn in range(3)]
    assert ask(START + 60_000_000).limits[0].allowed


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_caller_with_stale_rules_decides_nothing(algorithm: str, direct: redis.Redis) -> None:
    """A caller with older rules gets the current revision, and nothing is counted."""
    ask = Asker(Limit("fenced", "5/h", algorithm=algorithm))
    current, other = Revision.of(7, "0" * 8, "1" * 8), Revision.of(7, "2" * 8, "3" * 8)
    direct.hset("fence", "revision", current.text)
    for stale in (NO_RULES, Revision.of(6, "0" * 8, "1" * 8), other):
        with pytest.raises(StaleRules) as caught:
            ask(START, revision=stale, fence=b"fence")
        assert caught.value.current == current
    assert not direct.exists(*ask.keys())
    assert ask(START, revision=current, fence=b"fence").limits[0].used == 1


@pytest.mark.parametrize("seconds", [1, 3600, 365 * 86400])
@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_clock_that_is_set_back_refuses_no_client_longer(algorithm: str, seconds: int) -> None:
    """After a step of up to a minute, all units still count."""
    options = {"queue": 1} if algorithm == "leaky_bucket" else {}
    limit = Limit("back", "2/m", algorithm=algorithm, **options)
    ask, now = Asker(limit), START - seconds * 1_000_000
    assert ask(START)
    assert ask(START)
    assert ask(START).retry_after
    first = ask(now)
    keeps = limit.kind.is_bucket or seconds == 1
    assert first.allowed is not keeps
    assert first.limits[0].used == (2 if keeps else 1)
    if not keeps:
        assert ask(now)
    for _ in range(2):
        refused = ask(now)
        assert refused.retry_after == (30 if limit.kind.is_bucket else 60)
    retry_at = now + round(refused.retry_after * 1e6)
    assert not ask(retry_at - 1)
    assert ask(retry_at)


@pytest.mark.parametrize("seconds", [1, 3600, 365 * 86400, 15_000 * 86_400])
@pytest.mark.parametrize(
    ("align", "rate", "longest"),
    [
        (None, "2/d", 1),
        ("clock", "2/d", 1),
        ("day", "2/d", 1),
        ("week", "2/w", 7),
        ("month", "2/30d", 31),
    ],
)
def test_a_fixed_window_of_any_kind_survives_a_clock_that_is_set_back(
    align: str | None, rate: str, longest: int, seconds: int
) -> None:
    """The window may begin with its first hit, by the clock or by a calendar."""
    limit = Limit("back", rate, algorithm="fixed_window", align=align)
    ask, now = Asker(limit), START - seconds * 1_000_000
    assert [ask(START, 2).allowed, ask(START).allowed] == [True, False]
    assert ask(now).allowed is (seconds > 60)
    ask(now)
    refused = ask(now)
    assert 0 < refused.retry_after <= longest * 86_400
    retry_at = now + round(refused.retry_after * 1e6)
    assert not ask(retry_at - 1)
    assert ask(retry_at)


def test_a_debt_is_granted_at_once_and_delays_later_calls() -> None:
    """A token bucket that owes no more than it holds grants any cost."""
    ask = Asker(Limit("debt", "10/s", algorithm="token_bucket"))
    assert (ask(START, 50).allowed, ask(START, 50).retry_after) == (False, None), (
        "without debt, it never fits"
    )
    granted = ask(START, 50, debt=True)
    assert (granted.allowed, granted.granted, granted.wait, granted.remaining) == (True, 50, 0, 0)
    assert granted.limits[0].used == 50, "more than its capacity"
    assert ask(START, 1).retry_after == 4.1
    for cost in (1, 50):
        refused = ask(START, cost, debt=True)
        assert (refused.allowed, refused.retry_after) == (False, 4.0)
    assert not ask(START + 3_999_999, 50, debt=True)
    assert ask(START + 4_000_000, 50, debt=True, max_wait_us=0), "it is empty, and owes nothing"
    assert ask(START + 4_000_000, 1, max_wait_us=-1).wait == 5.1
    assert ask(START + 4_000_000, 7, debt=True, max_wait_us=-1).wait == 5.1
