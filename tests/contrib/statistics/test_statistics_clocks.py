"""Wrong clocks of a host or a server: requests stay in their hour, and no name is removed."""

from __future__ import annotations

import time

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics import hours, reading, writing
from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics.reading import Span
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.process import tasks
from tests.acceptance.test_moved_clocks import DAY, WrongClock, assert_turn_ends
from tests.counted import series

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_copying_lock_expires_although_the_server_clock_was_set_back(
    direct: redis.Redis, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process holds the lock, for no longer than under a correct clock."""
    done: list[str] = []
    monkeypatch.setattr(hours.keeping, "start", lambda: done.append("hours"))
    assert_turn_ends(hours.look, hours._turn_key(), done, direct)


def test_a_process_without_threads_counts_requests_in_their_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process writes its counts during later requests."""
    monkeypatch.setattr(tasks, "_start_thread", lambda *arguments: None)
    limiter = RateLimiter("threadless", "100/h")
    now = int(time.time()) // 3600 * 3600
    for ago in (3, 2, 1):
        monkeypatch.setattr(recording, "time", WrongClock(now - 3600 * ago - int(time.time())))
        recorder._due_at = 0.0
        for _ in range(5):
            assert limiter.hit("ada")
    monkeypatch.undo()
    points = series("threadless", Span(now - 3 * 3600, now, 3600))
    assert [point.counts["a"] for point in points] == [5, 5, 5]


@pytest.mark.parametrize("days", [-15_000, -365, -91, 91, 365, 15_000])
def test_a_process_with_a_wrong_clock_removes_no_name(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes neither its own name nor those of other processes, and no total falls."""
    right = RateLimiter("right", "100/h", durable=True)
    wrong = RateLimiter("wrong", "100/h", durable=True)
    for _ in range(2):
        monkeypatch.setattr(writing, "time", time)
        assert right.hit("ada")
        recorder.flush()
        recorder._writer._begin_hour(0)  # As another process.
        monkeypatch.setattr(writing, "time", WrongClock(days * DAY))
        assert wrong.hit("ada")
        recorder.flush()
        recorder._writer._begin_hour(0)
    monkeypatch.undo()
    assert set(reading.known_names()) == set(reading.durable_names()) == {"right", "wrong"}
    assert {name: counts["a"] for name, counts in reading.totals().items() if name} == {
        "right": 2,
        "wrong": 2,
    }
