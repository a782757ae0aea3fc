"""Turns reserved far ahead: each in its right window, and a backlog that costs no more than a short
one.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.examples import examples
from tests.reference import calendar_window

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
DAY = 86_400_000_000
serial = itertools.count()
EXAMPLES = settings(
    max_examples=examples(25),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
]
RATES = {"day": "2/d", "week": "2/w", "month": "2/30d"}


class Asker:
    """One limit of somebody new."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.who = b"ahead:%026d" % next(serial)

    def __call__(self, now: int, operation: str = "hit", **options: Any) -> Decision:
        return get_store().decide(self.call(now, operation, **options))

    def call(self, now: int, operation: str = "hit", **options: Any) -> Call:
        return Call([Charge(self.limit, self.who)], operation, b"a:", now, **options)


@EXAMPLES
@given(
    align=st.sampled_from(list(RATES)),
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 40 * 365).map(lambda days: days * DAY + 11 * 3_600_000_000),
    wait=st.sampled_from([3, 10, 40, 200]),
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([0, 1, DAY // 3, DAY, 5 * DAY])), max_size=12
    ),
)
def test_each_waiting_hit_counts_in_the_calendar_window_of_its_turn(
    align: str, zone: str, start: int, wait: int, steps: Any
) -> None:
    """With `max_wait`, however many days, weeks or months ahead: two in each window, none of them
    left out, and each begins when the calendar says; who is refused is told exactly when not.
    """
    limit = Limit(
        "ahead",
        RATES[align],
        algorithm="fixed_window",
        align=align,
        time_zone=zone,
        max_wait=wait * 86_400,
    )
    ask, now = Asker(limit), start
    counted: dict[int, int] = {}
    for hits, later in steps:
        for _ in range(hits):
            decision = ask(now)
            if not decision:
                retry = round(decision.retry_after * 1e6)
                assert not ask(now + retry - 1, "peek")
                assert ask(now + retry, "peek")
                break
            moment = now + round(decision.wait * 1e6)
            opens, _ = calendar_window(align, zone, moment)
            assert moment in (now, opens), "now, or when a window opens"
            earlier = [
                window for window in counted if window >= calendar_window(align, zone, now)[0]
            ]
            assert all(counted[window] == 2 for window in earlier if window != opens)
            counted[opens] = counted.get(opens, 0) + 1
            assert counted[opens] <= 2
        now += later


@pytest.mark.parametrize("align", list(RATES))
@pytest.mark.parametrize("pace", ["1/300d", "1/40d", "5/3d"])
def test_a_hit_delayed_by_another_limit_counts_in_the_right_window(align: str, pace: str) -> None:
    """A calendar beside a queue that lasts for years: a turn beyond the windows that the calendar
    is told is refused, and every other is counted in its own window, now and when that has come.
    """
    quota = Limit("quota", RATES[align], algorithm="fixed_window", align=align)
    queue, who = Limit("queue", pace, algorithm="leaky_bucket"), b"beside:%025d" % next(serial)

    def ask(now: int, *limits: Limit, operation: str = "hit") -> Decision:
        charges = [Charge(limit, who) for limit in limits]
        return get_store().decide(Call(charges, operation, b"a:", now, max_wait_us=-1))

    counted: dict[int, int] = {}
    now, last = START, calendar_window(align, "UTC", START)[0]
    for _ in range(101):
        last = calendar_window(align, "UTC", last)[1]
    for _ in range(600):
        decision = ask(now, queue, quota)
        if not decision:
            break
        moment = now + round(decision.wait * 1e6)
        assert moment < last, "no further than a hundred windows"
        opens = calendar_window(align, "UTC", moment)[0]
        counted[opens] = counted.get(opens, 0) + 1
    assert decision.denied_by == ("quota",)
    assert round(decision.retry_after * 1e6) >= calendar_window(align, "UTC", now)[1] - now
    assert max(counted.values()) <= 2
    assert ask(now, queue, operation="peek").limits[0].allowed, "nothing was taken of the other"
    # What has come true: the day of the latest turn has exactly its units, and the day after it
    # none.
    latest = max(counted)
    assert ask(latest, quota, operation="peek").limits[0].used == counted[latest]
    assert (
        ask(calendar_window(align, "UTC", latest)[1], quota, operation="peek").limits[0].used == 0
    )


@pytest.mark.parametrize(
    ("algorithm", "one", "ten", "most"),
    [
        ("token_bucket", 46, 145, 257),
        ("leaky_bucket", 46, 46, 46),
        ("fixed_window", 40, 40, 40),
        ("sliding_window", 32, 32, 192),
    ],
)
def test_the_state_of_a_limit_has_few_bytes(
    algorithm: str, one: int, ten: int, most: int, direct: redis.Redis
) -> None:
    """Bytes after a hit, after ten within a second, and at most, when a thousand have come over two
    periods.
    """
    ask, sizes = Asker(Limit("small", "2000/h", algorithm=algorithm)), []
    for number in range(1000):
        now = START + number * (100_000 if number < 10 else 7_200_000)
        assert ask(now, max_wait_us=-1)
        sizes.append(direct.strlen(ask.call(now).keys()[0]))
    assert (sizes[0], sizes[9]) == (one, ten)
    assert max(sizes) <= most


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_backlog_takes_little_memory(algorithm: str, direct: redis.Redis) -> None:
    """A thousand waiting callers of a bucket take at most 1 KB of the server's memory, and each of
    them has its own turn.
    """
    ask = Asker(Limit("backlog", "2/s", algorithm=algorithm))
    moments, sizes = [], []
    for number in range(1000):
        decision = ask(START + number, max_wait_us=-1, longest_hold_us=None)
        moments.append(START + number + round(decision.wait * 1e6))
        sizes.append(direct.strlen(ask.call(START).keys()[0]))
    assert max(sizes) <= 1024
    assert moments == sorted(moments)
    for before, after in zip(
        moments, moments[4 if algorithm == "token_bucket" else 2 :], strict=False
    ):
        assert after - before >= 1_000_000
    assert moments[-1] - START <= 500_000_000


def test_windows_that_an_edit_merges_have_one_count() -> None:
    """One began before the minute that is the window now, and went on in it; another was to begin
    later in it.
    """
    who = b"edited:%025d" % 1
    before = Limit("edited", "5/10s", algorithm="fixed_window", max_wait=100.0)
    after = Limit("edited", "3/m", algorithm="fixed_window", align="clock")
    minute = START - START % 60_000_000

    def hit(limit: Limit, now: int, cost: int = 1) -> Decision:
        return get_store().decide(Call([Charge(limit, who, cost)], prefix=b"edited:", now=now))

    assert hit(before, minute - 300_000).wait == 0
    assert hit(before, minute + 9_000_000, 4).wait == 0
    assert hit(before, minute + 9_000_000).wait == 0.7
    for seconds in (9, 10, 59):
        refused = hit(after, minute + seconds * 1_000_000)
        assert (refused.allowed, refused.retry_after) == (False, 60 - seconds), seconds
    assert hit(after, minute + 60_000_000).remaining == 2
