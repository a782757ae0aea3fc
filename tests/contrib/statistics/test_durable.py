"""Durable statistics are copied to the database every hour, also after outages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import RequestFactory
from django.utils.decorators import method_decorator

from django_ratelimit_lua import LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.contrib.statistics import hours
from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics.counters import DAY, HOUR, key_of
from django_ratelimit_lua.contrib.statistics.hours import copy_hours
from django_ratelimit_lua.contrib.statistics.models import RateLimitHour
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.report import read_stored_timeline
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import visits
from tests.support.processes import Worker, migrated, until
from tests.urls import Wrapped, ok

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
KEPT = {"durable": True}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the recorder's clock by seconds."""

    def move(seconds: float) -> None:
        recorder.flush()
        moved = SimpleNamespace(time=lambda: time.time() + seconds)
        monkeypatch.setattr(recording, "time", moved)

    return move


@pytest.fixture(autouse=True)
def no_other_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this process from copying hours by itself."""
    monkeypatch.setattr(hours, "_copied_hour", hours._due_hour())


@pytest.fixture
def copied(direct: Any, prefix: str) -> Callable[[], None]:
    """Return a function that copies hours as if an hour had passed."""

    def copy() -> None:
        for key in direct.keys(f"{prefix}{{stats:*:turn:*"):
            direct.delete(key)
        copy_hours()

    return copy


def rows(name: str) -> list[tuple[int, int]]:
    """Return the allowed and refused counts of the stored hours, in order."""
    found = RateLimitHour.objects.filter(name=name).order_by("moment")
    return list(found.values_list("allowed", "refused"))


def test_only_durable_limits_are_stored(
    moved: Callable[[float], None], copied: Callable[[], None]
) -> None:
    """Every hour in Redis of a durable rule or limiter is stored, and no hour of another limit."""
    RateLimitRule.objects.create(name="kept", path="/ok", key="ip", rate="3/h", options=KEPT)
    RateLimitRule.objects.create(name="not", path="/ok", key="ip", rate="3/h")
    mail = RateLimiter("mail.kept", "2/h", algorithm="fixed_window", durable=True)
    moved(-80 * DAY)
    assert visits(2, "203.0.113.9") == [200] * 2
    moved(-5 * HOUR)
    assert visits(3, "203.0.113.8") == [200, 200, 200]
    moved(0)
    assert visits(1, "203.0.113.8") == [429]
    assert [mail.hit("ada", 2).allowed for _ in range(2)] == [True, False]
    copied()
    assert set(RateLimitHour.objects.values_list("name", flat=True)) == {"kept", "mail.kept"}
    assert rows("kept") == [(2, 0), (3, 0), (0, 1)]
    assert rows("mail.kept") == [(1, 1)]


def test_stored_counts_are_raised_and_never_lowered(
    moved: Callable[[float], None], copied: Callable[[], None], direct: Any
) -> None:
    """Redis may have lost its counts. The page of the limit shows the larger ones."""
    mail = RateLimiter("mail.again", "1000/h", durable=True)
    moved(-HOUR)
    mail.hit("ada")
    moved(0)
    mail.hit("ada")
    copied()
    mail.hit("ada")
    copied()
    assert rows("mail.again") == [(1, 0), (2, 0)]
    direct.delete(*direct.keys(key_of("mail.again", b"hours:*").decode()))
    mail.hit("ada")
    copied()
    assert rows("mail.again") == [(1, 0), (2, 0)]
    for period in ("day", "week", "90d", "year"):
        assert read_stored_timeline("mail.again", period).numbers["allowed"] == 3, period


def test_a_page_shows_hours_that_redis_has_no_more(operator: Any) -> None:
    """A year is shown, with the requests of a year."""
    now = int(time.time()) // HOUR * HOUR
    for days, number in ((1, 5), (100, 70), (300, 400), (400, 1)):
        at = now - days * DAY
        RateLimitHour.objects.create(name="old", moment=at, allowed=number, refused=2, banned=1)
    timeline = read_stored_timeline("old", "year")
    assert dict(timeline.numbers) == {"requests": 481, "allowed": 475, "refused": 6, "banned": 3}
    page = operator.get("/admin/django_ratelimit_lua/ratelimitrule/limit/?name=old&period=year")
    assert "<dd>481</dd>" in page.content.decode()


def test_hours_are_copied_by_a_process_that_decides(tmp_path: Path, prefix: str) -> None:
    """A command is not needed. While the table is missing, Redis keeps the hours."""
    path = migrated(tmp_path / "db.sqlite3")
    count = "RateLimitHour.objects.using('default').count()"
    rename = "connections['default'].cursor().execute('ALTER TABLE {} RENAME TO {}')"
    table = "ratelimit_statistics_ratelimithour"
    with Worker(prefix, {"default": path}) as worker:
        worker("from django_ratelimit_lua.contrib.statistics.models import RateLimitHour")
        worker("from django_ratelimit_lua.contrib.statistics import hours")
        worker(f"rule(options={KEPT})")
        worker(rename.format(table, "away"))
        until(lambda: bool(worker("ask()")) and worker("hours._copied_hour"), "it is tried")
        worker(rename.format("away", table))
        worker("setattr(hours, '_copied_hour', 0)")
        worker("setattr(hours, '_due_hour', lambda: 1)")  # The next hour.
        until(lambda: bool(worker("ask()")) and worker(count) == 1, "it is written")


def test_rows_older_than_the_history_are_deleted_and_not_copied(
    settings: Any, moved: Callable[[float], None], copied: Callable[[], None]
) -> None:
    """`RATELIMIT_HISTORY_DAYS` applies to hours of statistics as well."""
    mail = RateLimiter("mail.pruned", "1000/h", durable=True)
    for ago in (80, 50, 20, 0):
        moved(-ago * DAY)
        mail.hit("ada")
    moved(0)
    old = int(time.time()) // HOUR * HOUR - 100 * DAY
    RateLimitHour.objects.create(name="mail.pruned", moment=old, allowed=1)
    copied()
    assert len(rows("mail.pruned")) == 5
    settings.RATELIMIT_HISTORY_DAYS = 30
    copied()
    assert len(rows("mail.pruned")) == 2


def test_a_durable_decorator_stores_hours(rf: RequestFactory, copied: Callable[[], None]) -> None:
    """The hours have the name of the group, or that of the function or class-based view."""
    grouped = ratelimit(group="written.here", key="ip", rate="1/h", durable=True)(ok)
    other = ratelimit(group="not.kept", key="ip", rate="5/h")(ok)

    @method_decorator(ratelimit(key="ip", rate="5/h", durable=True), name="dispatch")
    class Kept(Wrapped):
        pass

    for view in (grouped, grouped, Kept.as_view(), other):
        view(rf.get("/"))
    copied()
    here = f"{__name__}.{test_a_durable_decorator_stores_hours.__name__}.<locals>"
    names = RateLimitHour.objects.values_list("name", flat=True)
    assert set(names) == {f"{here}.Kept.dispatch", "written.here"}
    assert rows("written.here") == [(1, 1)]
    with pytest.raises(LimitError, match="durable"):
        ratelimit(group="x" * 201, key="ip", rate="5/h", durable=True)(other)


def test_durable_is_a_field_of_settings_and_admin(
    settings: Any, copied: Callable[[], None]
) -> None:
    """The field is accepted in the settings, and stored by the admin."""
    rule = {"name": "written", "path": "/ok", "key": "ip", "rate": "5/h"}
    settings.RATELIMIT_RULES = [rule | KEPT]
    assert visits(1) == [200]
    copied()
    assert rows("written") == [(1, 0)]
    rule = RateLimitRule.objects.create(name="row", path="/x", key="ip", rate="3/m", options=KEPT)
    assert rule.spec["durable"] is True
