"""A wrong clock of a host or a server does not affect other hosts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.heartbeat import PROCESSES, Heartbeat
from django_ratelimit_lua.limits import call
from django_ratelimit_lua.publishing import triggers
from django_ratelimit_lua.rules import provider

pytestmark = pytest.mark.django_db(transaction=True)
DAY = 86_400
RATES = {"day": "5/d", "week": "5/w", "month": "5/30d"}
WRONG = [days * DAY for days in (-15_000, -365, -40, -9, -3, -1, 1, 3, 9, 40, 365, 15_000)]


class WrongClock:
    """The module `time` on a host whose clock is wrong by some seconds."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds

    def time_ns(self) -> int:
        return time.time_ns() + self._seconds * 10**9

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def zone_at_noon() -> str:
    """Return a time zone in which no day ends during the test."""
    return f"Etc/GMT{datetime.now(UTC).hour - 12:+d}"


@pytest.mark.parametrize("align", list(RATES))
@pytest.mark.parametrize("seconds", WRONG)
def test_a_calendar_limit_admits_n_with_any_host_clocks(
    align: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client is refused for longer than one window."""
    if abs(seconds) == DAY and align == "day":
        seconds //= 2  # The two hosts are in the same or in neighboring days.
    calendar: Any = {"algorithm": "fixed_window", "align": align, "time_zone": zone_at_noon()}
    limiter = RateLimiter(f"{align}{seconds}", RATES[align], **calendar)

    def hits(client: str, *clocks: int) -> list[int]:
        admitted = []
        for seconds in clocks:
            monkeypatch.setattr(call, "Clock", WrongClock(seconds))
            admitted.append(sum(bool(limiter.hit(client)) for _ in range(4)))
        return admitted

    assert hits("right first", 0, seconds, 0) == [4, 1, 0]
    assert hits("wrong first", seconds, 0, seconds) == [4, 1, 0]
    assert hits("only wrong", seconds, seconds) == [4, 1]
    for client in ("right first", "wrong first", "only wrong"):
        for clock in (0, seconds):
            monkeypatch.setattr(call, "Clock", WrongClock(clock))
            retry_after = limiter.peek(client, 1).retry_after
            assert retry_after is not None
            assert retry_after <= {"day": 1, "week": 7, "month": 31}[align] * DAY


def test_a_lock_expires_although_the_server_clock_was_set_back(
    direct: redis.Redis, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process holds the lock, for no longer than under a correct clock."""
    done: list[str] = []
    monkeypatch.setattr(triggers, "publish", lambda **options: done.append("publishing"))
    monkeypatch.setattr(provider, "database", "of the tests")
    # An earlier test may have left something to publish.
    monkeypatch.setattr(triggers, "_pause", 0.0)
    monkeypatch.setattr(triggers.problems, "unpublished", "")
    key = triggers._lock_key()
    triggers._compare_and_publish()
    lifetime = direct.pttl(key)
    triggers._compare_and_publish()
    assert len(done) == 1
    direct.pexpire(key, 365 * DAY * 1000)  # As after a step back by a year.
    triggers._compare_and_publish()
    triggers._compare_and_publish()
    assert len(done) == 2
    assert direct.pttl(key) <= lifetime + 1000


def test_a_process_that_died_before_the_clock_was_set_back_is_not_counted(
    direct: redis.Redis, prefix: str
) -> None:
    """Its entry is in the future, and would stay until the clock reaches it."""
    beat = Heartbeat()
    assert beat.beat() == 1
    direct.zadd(f"{prefix}{PROCESSES.decode()}", {"dead": time.time() + 3600})
    beat.beat()
    assert direct.zscore(f"{prefix}{PROCESSES.decode()}", "dead") is None
