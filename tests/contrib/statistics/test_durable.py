"""Durable statistics are copied to the database every hour, once, also after outages."""

from __future__ import annotations

import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from django_ratelimit_lua import LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.contrib.statistics import hours as keeping
from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics import report, writing
from django_ratelimit_lua.contrib.statistics.hours import keep_hours, kept_series
from django_ratelimit_lua.contrib.statistics.keys import DAY, SITE, key_of
from django_ratelimit_lua.contrib.statistics.models import RateLimitHour
from django_ratelimit_lua.contrib.statistics.reading import Span, durable_names
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.report import one
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.rules_yaml import export
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.rules.callsite import known_call_sites
from tests.acceptance import test_admin
from tests.acceptance.test_admin import visits
from tests.clusters import until
from tests.counted import total
from tests.examples import examples
from tests.server import url
from tests.worker import Worker, migrated

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
HOUR = 3600
KEPT = {"durable": True}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the recorder's clock by seconds."""

    def move(seconds: float) -> None:
        recorder.flush()
        monkeypatch.setattr(recording, "time", Moved(seconds))

    return move


class Moved:
    """The module `time` with a shifted clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def rows(name: str) -> list[tuple[int, int]]:
    """Return the allowed and refused counts of the stored hours, in order."""
    found = RateLimitHour.objects.filter(name=name).order_by("moment")
    return list(found.values_list("allowed", "refused"))


def test_only_durable_rules_and_limiters_are_stored(moved: Callable[[float], None]) -> None:
    """Every hour in Redis of a durable rule or limiter is stored with all its columns. No hour of
    another limit is stored.
    """
    RateLimitRule.objects.create(name="kept", path="/ok", key="ip", rate="3/h", options=KEPT)
    RateLimitRule.objects.create(name="not", path="/ok", key="ip", rate="3/h")
    mail = RateLimiter("mail.kept", "2/h", algorithm="fixed_window", durable=True)
    moved(-80 * 86_400)
    assert visits(2, "203.0.113.9") == [200] * 2
    moved(-5 * HOUR)
    assert visits(3, "203.0.113.8") == [200, 200, 200]
    moved(0)
    assert visits(1, "203.0.113.8") == [429]
    assert [mail.hit("ada", 2).allowed for _ in range(2)] == [True, False]
    assert keep_hours() == 4
    assert set(RateLimitHour.objects.values_list("name", flat=True)) == {"kept", "mail.kept"}
    assert rows("kept") == [(2, 0), (3, 0), (0, 1)]
    row = RateLimitHour.objects.get(name="mail.kept")
    numbers = {
        column: getattr(row, column) for column in RateLimitHour.columns() if getattr(row, column)
    }
    assert numbers == {"allowed": 1, "refused": 1, "units": 2, "near": 1, "people_refused": 1}
    assert row.moment % HOUR == 0
    oldest = RateLimitHour.objects.filter(name="kept").earliest("moment")
    assert oldest.people_refused is None  # Nobody knows any more.


def test_copying_hours_again_changes_nothing(moved: Callable[[float], None], direct: Any) -> None:
    """Stored counts are raised and never lowered, even if Redis has lost its counts or several
    processes copy at the same time.
    """
    mail = RateLimiter("mail.again", "1000/h", durable=True)
    moved(-HOUR)
    mail.hit("ada")
    moved(0)
    mail.hit("ada")
    assert [keep_hours(), keep_hours()] == [2, 0]
    mail.hit("ada")
    assert keep_hours() == 1
    assert rows("mail.again") == [(1, 0), (2, 0)]
    direct.delete(*direct.keys(key_of("mail.again", b"hours:*").decode()))
    mail.hit("ada")
    assert keep_hours() == 0
    assert rows("mail.again") == [(1, 0), (2, 0)]
    moment = int(time.time()) // HOUR * HOUR
    problems: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for at in range(20):
                hours = {
                    moment - at * HOUR: {
                        "allowed": number,
                        "refused": 20 - number,
                        "people_refused": number,
                    }
                }
                for _ in range(50):
                    try:
                        RateLimitHour.keep("default", "beside", hours)
                        break
                    except DatabaseError as error:
                        if "locked" not in str(error):  # SQLite has one writer at a time.
                            raise
        except BaseException as error:
            problems.append(error)
        finally:
            connections["default"].close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert rows("beside") == [(5, 20)] * 20


def test_one_process_at_a_time_copies_hours(tmp_path: Path, prefix: str) -> None:
    """Processes copy hours without a command. No count is lost while the table is missing, and if a
    process is killed, another one continues.
    """
    path = migrated(tmp_path / "db.sqlite3")
    count = "RateLimitHour.objects.using('default').count()"
    table = "ratelimit_statistics_ratelimithour"
    rename = "connections['default'].cursor().execute('ALTER TABLE {} RENAME TO {}')"
    with (
        Worker(prefix, {"default": path}, compare_seconds=0.05) as one,
        Worker(prefix, {"default": path}, compare_seconds=0.05) as other,
    ):
        for worker in (one, other):
            worker("from django_ratelimit_lua.contrib.statistics.models import RateLimitHour")
            worker("from django_ratelimit_lua.contrib.statistics import hours")
            worker("hours.KEEP_SECONDS = 1")
        one(f"rule(options={KEPT})")
        one(rename.format(table, "away"))

        def work() -> bool:
            return bool(one("ask()")) and bool(other("ask()"))

        def failed() -> bool:
            return work() and any(
                "'hours' failed" in line for worker in (one, other) for line in worker("said")
            )

        until(failed, "it is tried")
        one(rename.format("away", table))
        until(lambda: work() and one(count) >= 1, "it is written")
        other._process.kill()
        other._process.wait()
        counted = "RateLimitHour.objects.using('default').get(name='site').allowed"
        before = one(counted)
        until(lambda: bool(one("ask()")) and one(counted) > before, "it goes on")
        other._process.stdin.close()


def test_the_last_hours_of_a_quiet_site_are_copied_without_a_further_request(
    tmp_path: Path, prefix: str
) -> None:
    """The process that wrote last copies them. It stops when there is nothing new, and the next
    request starts it again.
    """
    path = migrated(tmp_path / "db.sqlite3")
    counted = "sum(RateLimitHour.objects.using('default').values_list('allowed', flat=True))"
    with Worker(prefix, {"default": path}, compare_seconds=0.05) as worker:
        worker("from django_ratelimit_lua.contrib.statistics.models import RateLimitHour")
        worker("from django_ratelimit_lua.contrib.statistics import hours")
        worker("hours.KEEP_SECONDS = 0.2")
        worker(f"rule(options={KEPT})")
        total = 0
        for _ in range(2):
            before = total
            deadline = time.monotonic() + 20
            while worker(counted) <= before and time.monotonic() < deadline:
                worker("ask()")
                total += 1
            for _ in range(5):  # Another look has just been made.
                worker("ask()")
                total += 1
            until(lambda total=total: worker(counted) == total, "the last requests are written")
            until(lambda: not worker("hours.keeping.is_running"), "the process stops looking")


def test_missed_hours_are_copied_later(
    settings: Any, moved: Callable[[float], None], direct: Any, prefix: str
) -> None:
    """Hours after the last row of each name are copied, also after an outage of Redis or of the
    database.
    """
    mail = RateLimiter("mail.late", "1000/h", durable=True)
    for days in (30, 20, 0):
        moved(-days * DAY)
        mail.hit("ada")
    moved(0)
    stop(20)  # No thread is to ask the one server for the other.
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    with pytest.raises(StoreError):
        keeping._keep()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url()}}
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ratelimit_statistics_ratelimithour RENAME TO away")
    try:
        with pytest.raises(DatabaseError):
            keeping._keep()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO ratelimit_statistics_ratelimithour")
    keeping._keep()
    assert rows("mail.late") == [(1, 0)] * 3
    RateLimitHour.objects.filter(moment__gt=int(time.time()) - 25 * DAY).delete()
    keeping._keep()
    assert rows("mail.late") == [(1, 0)] * 3


def test_any_span_is_read_exactly(direct: Any) -> None:
    """For any start and step, an hour that is in Redis and in the database counts once, with the
    larger of both counts.
    """
    dice, today = random.Random(7), int(time.time()) // DAY
    counted: dict[str, Counter[int]] = {"redis": Counter(), "rows": Counter(), "both": Counter()}
    for name, of in counted.items():
        for hour in dice.sample(range((today - 4) * 24, today * 24), 60):
            in_redis, in_rows = dice.randint(1, 9), dice.randint(1, 9)
            if name != "rows":
                direct.hincrby(
                    key_of(name, b"hours:%d" % (hour // 24)).decode(), f"a{hour % 24:02}", in_redis
                )
            if name != "redis":
                RateLimitHour.objects.create(name=name, moment=hour * HOUR, allowed=in_rows)
            of[hour * HOUR] = {"redis": in_redis, "rows": in_rows, "both": max(in_redis, in_rows)}[
                name
            ]

    @given(
        name=st.sampled_from(list(counted)),
        start=st.integers((today - 5) * DAY, today * DAY),
        step=st.sampled_from([HOUR, 3 * HOUR, DAY]),
        steps=st.integers(0, 60),
    )
    @example_settings(deadline=None, max_examples=examples(60))
    def check(name: str, start: int, step: int, steps: int) -> None:
        found = kept_series(name, Span(start, start + steps * step, step))
        assert [point.moment for point in found] == [
            start + number * step for number in range(steps)
        ]
        for point in found:
            first = (
                point.moment if point.moment > start else start - start % HOUR
            )  # Whole hours are in the first.
            of = sum(
                number
                for hour, number in counted[name].items()
                if first <= hour < point.moment + step
            )
            assert dict(point.counts) == ({"a": of} if of else {})

    check()


@pytest.mark.parametrize(
    "zone", ["UTC", "Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"]
)
@pytest.mark.parametrize("period", ["week", "90d"])
def test_a_page_counts_each_request_once_and_survives_a_loss_in_redis(
    zone: str, period: str, settings: Any, direct: Any, moved: Callable[[float], None]
) -> None:
    """This holds in every time zone. Hours that Redis has lost are read from the database."""
    settings.TIME_ZONE = zone
    mail = RateLimiter("mail.drawn", "1000/h", durable=True)
    for days in (6, 3, 0):
        moved(-days * DAY)
        mail.hit("ada", 1)
        mail.hit("ada", 1)
    moved(0)
    assert one("mail.drawn", period).requests == 6
    keep_hours()
    told = one("mail.drawn", period)
    assert told.requests == sum(point.requests for point in told.points) == 6
    direct.delete(*direct.keys(key_of("mail.drawn", b"hours:*").decode()))
    assert one("mail.drawn", period).requests == 6


@pytest.mark.parametrize(
    ("zone", "changed"),
    [
        ("Europe/Berlin", datetime(2025, 3, 30)),
        ("Europe/Berlin", datetime(2025, 10, 26)),
        ("America/Havana", datetime(2025, 3, 9)),
        ("America/Havana", datetime(2025, 11, 2)),
        ("America/Santiago", datetime(2025, 9, 7)),
        ("Africa/Casablanca", datetime(2025, 2, 23)),
        ("UTC", datetime(2024, 2, 29)),
    ],
)
def test_the_days_of_a_page_are_those_of_the_sites_time_zone(
    zone: str, changed: datetime, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days have 23 to 25 hours. At any time of viewing, each request is counted on its
    local date.
    """
    settings.TIME_ZONE = zone
    dice, place = random.Random(zone), ZoneInfo(zone)
    middle = round(changed.replace(tzinfo=place).timestamp()) // HOUR * HOUR
    counted: Counter[date] = Counter()
    for hour in range(-5 * 24, 5 * 24):
        moment, number = middle + hour * HOUR, dice.randint(1, 9)
        RateLimitHour.objects.create(name="days", moment=moment, allowed=number)
        counted[datetime.fromtimestamp(moment, place).date()] += number
    for hours in (-30, -1, 0, 1, 23, 24, 25, 90):
        now = middle + hours * HOUR + 1800
        today = datetime.fromtimestamp(now, place).date()
        monkeypatch.setattr(report, "time", Moved(now - time.time()))
        points = one("days", "90d").points
        days = [today - timedelta(days=ago) for ago in range(89, -1, -1)]
        assert [point.at.date() for point in points] == days
        assert [point.requests for point in points] == [counted[day] for day in days]


def test_unchanged_hours_cost_few_queries() -> None:
    """Hours are compared in batches, so the number of queries does not depend on the number of
    hours. New hours are inserted in as few statements as the database allows.
    """
    counts = {}
    fields = [field for field in RateLimitHour._meta.concrete_fields if not field.primary_key]
    for number in (1, 48, 400):
        hours = {moment * HOUR: {"allowed": moment} for moment in range(number)}
        assert RateLimitHour.keep("default", f"x{number}", hours) == number
        with CaptureQueriesContext(connection) as same:
            assert RateLimitHour.keep("default", f"x{number}", hours) == 0
        with CaptureQueriesContext(connection) as more:
            assert RateLimitHour.keep("default", f"x{number}", {**hours, 0: {"allowed": 7}}) == 1
        with CaptureQueriesContext(connection) as new:
            assert RateLimitHour.keep("default", f"y{number}", hours) == number
        inserts = sum("INSERT" in query["sql"] for query in new.captured_queries)
        rows_at_once = connection.ops.bulk_batch_size(fields, [RateLimitHour()] * number)
        assert inserts == -(-number // rows_at_once)
        counts[number] = [len(same), len(more), len(new) - inserts]
    assert counts[1] == counts[48] == counts[400]
    assert sum("SELECT" in query["sql"] for query in same.captured_queries) == 1


def test_hours_in_redis_are_not_pruned_and_old_ones_are_not_copied(
    settings: Any, moved: Callable[[float], None]
) -> None:
    """A pruned hour would otherwise be copied again. Hours older than `RATELIMIT_HISTORY_DAYS` are
    neither kept nor copied.
    """
    mail = RateLimiter("mail.pruned", "1000/h", durable=True)
    for ago in (80, 50, 20, 0):
        moved(-ago * DAY)
        mail.hit("ada")
    moved(0)
    old = int(time.time()) // HOUR * HOUR - 100 * DAY
    RateLimitHour.objects.create(name="mail.pruned", moment=old, allowed=1)
    assert keep_hours() == 4
    assert "hours of statistics 1\n" in command("history", "prune", "--older", "30d", "--dry-run")
    assert "hours of statistics 1\n" in command("history", "prune", "--older", "30d")
    assert (keep_hours(), len(rows("mail.pruned"))) == (0, 4)
    settings.RATELIMIT_HISTORY_DAYS = 30
    keeping._keep()
    assert (keep_hours(), len(rows("mail.pruned"))) == (0, 2)


def test_the_number_of_durable_names_is_bounded(
    direct: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes together keep at most as many durable names as names are counted separately.
    Names that were last used more than ninety days ago are left out.
    """
    key = key_of(SITE, b"durable").decode()
    monkeypatch.setattr(writing, "MAX_NAMES", 3)
    monkeypatch.setattr(known_call_sites, "durable", set())
    hour = int(time.time()) // HOUR
    direct.zadd(key, {"long ago": hour - 92 * 24, "lately": hour - 80 * 24})
    assert list(durable_names()) == ["lately"]
    for number in range(8):
        RateLimiter(f"tenant:{number}", "5/h", durable=True).hit("ada")
        recorder.flush()
    assert set(map(bytes.decode, direct.zrange(key, 0, -1))) == {
        "lately",
        "tenant:0",
        "tenant:1",
        "tenant:2",
    }
    assert keep_hours() == 3


def test_a_durable_decorator_stores_the_hours_of_its_view(rf: RequestFactory) -> None:
    """The hours are stored under the group, or under the name of the function or class-based view.
    A decorator without `durable` stores nothing.
    """

    @ratelimit(group="written.here", key="ip", rate="1/h", durable=True)
    def grouped(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @ratelimit(key="ip", rate="5/h", durable=True)
    def named(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @method_decorator(ratelimit(key="ip", rate="5/h", durable=True), name="dispatch")
    class Kept(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    @ratelimit(group="not.kept", key="ip", rate="5/h")
    def other(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    for view in (grouped, grouped, named, Kept.as_view(), other):
        view(rf.get("/"))
    assert keep_hours() == 3
    here = f"{__name__}.{test_a_durable_decorator_stores_the_hours_of_its_view.__name__}.<locals>"
    names = RateLimitHour.objects.values_list("name", flat=True)
    assert set(names) == {f"{here}.Kept.dispatch", f"{here}.named", "written.here"}
    assert rows("written.here") == [(1, 1)]
    with pytest.raises(LimitError, match="durable"):
        ratelimit(group="x" * 201, key="ip", rate="5/h", durable=True)(other)


def test_the_field_durable_works_in_settings_yaml_and_admin(settings: Any, client: Any) -> None:
    """The field is accepted in settings, exported to YAML, and stored by the admin."""
    settings.RATELIMIT_RULES = [
        {"name": "written", "path": "/ok", "key": "ip", "rate": "5/h", "durable": True}
    ]
    assert visits(1) == [200]
    assert keep_hours() == 1
    RateLimitRule.objects.create(name="row", path="/x", key="ip", rate="3/m", options=KEPT)
    assert "durable: true" in export()
    assert RateLimitRule.objects.get().spec["durable"] is True
    other = RateLimitRule.objects.create(name="other", path="/x", key="ip", rate="3/m")
    assert "durable" not in other.spec


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ratelimit", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_shows_and_prunes_hours(settings: Any) -> None:
    """`stats show` prints a table of the last day, or JSON. `history prune` deletes old rows, and
    `--dry-run` lists them first.
    """
    settings.RATELIMIT_HISTORY_DAYS = None
    assert command("stats", "show") == "Nothing was counted yet.\n"
    mail = RateLimiter("mail.shown", "2/h")
    for _ in range(3):
        mail.hit("ada")
    lines = command("stats", "show").splitlines()
    assert lines[1].split() == ["mail.shown", "2", "1", "0", "0", "0", "0", "0", "1"]
    found = json.loads(command("stats", "show", "--json"))
    assert found["site"]["allowed"] == 2
    assert (
        found["rows"][0]["refused"] == total("mail.shown", Span.last(86_400, HOUR)).counts["r"] == 1
    )
    now, old = timezone.now(), timezone.now() - timedelta(days=500)
    for at in (now, old):
        RateLimitHour.objects.create(name="x", moment=int(at.timestamp()) // HOUR * HOUR, allowed=1)
        RateLimitOverride.objects.create(network="203.0.113.1", effect="block", ends=at)
    RateLimitChange.objects.filter(pk=RateLimitChange.objects.first().pk).update(at=old)
    said = command("history", "prune", "--older", "400d", "--dry-run")
    assert said.startswith("would delete rows from before 20")
    assert said.endswith(": ended overrides 1, changes 1, hours of statistics 1\n")
    assert command("history", "prune", "--older", "400d").startswith("deleted")
    assert (RateLimitHour.objects.count(), RateLimitOverride.objects.count()) == (1, 1)
    assert command("history", "prune", "--older", "400d").endswith(
        ": ended overrides 0, changes 0, hours of statistics 0\n"
    )
    with pytest.raises(CommandError, match="--older 'soon'"):
        command("history", "prune", "--older", "soon")
