"""Statistics that are to be kept are written to the database: every hour, once, whatever is away meanwhile."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.utils import timezone

from django_ratelimit_lua import LimitError, RateLimiter
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.models import RateLimitChange, RateLimitHour, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.kept_hours import kept_names, kept_series
from django_ratelimit_lua.operations.rules_yaml import export
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.publishing import hours as keeping
from django_ratelimit_lua.publishing.hours import keep_hours
from django_ratelimit_lua.stats import recorder as recording
from django_ratelimit_lua.stats.keys import key_of
from django_ratelimit_lua.stats.reading import Span, total
from django_ratelimit_lua.stats.recorder import recorder
from tests.acceptance import test_admin
from tests.acceptance.test_admin import visits
from tests.clusters import until
from tests.server import url
from tests.worker import Worker, migrated

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
HOUR = 3600


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of what is counted, by seconds."""

    def move(seconds: float) -> None:
        recorder.flush()
        monkeypatch.setattr(recording, "time", Moved(seconds))

    return move


class Moved:
    """The module `time`, at another time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def rows(name: str) -> list[tuple[int, int]]:
    """Allowed and refused, by the hours that are kept."""
    found = RateLimitHour.objects.filter(name=name).order_by("moment")
    return list(found.values_list("allowed", "refused"))


def test_rules_and_limiters_say_what_is_kept(moved: Callable[[float], None]) -> None:
    """Of those every hour that Redis has, with all its columns; of others none."""
    RateLimitRule.objects.create(name="kept", path="/ok", key="ip", limit=3, unit="h", durable=True)
    RateLimitRule.objects.create(name="not", path="/ok", key="ip", limit=3, unit="h")
    mail = RateLimiter("mail.kept", "2/h", algorithm="fixed_window", durable=True)
    moved(-80 * 86_400)
    assert visits(2, "203.0.113.9") == [200] * 2
    moved(-5 * HOUR)
    assert visits(3, "203.0.113.8") == [200, 200, 200]
    moved(0)
    assert visits(1, "203.0.113.8") == [429]
    assert [mail.hit("ada", 2).allowed for _ in range(2)] == [True, False]
    assert keep_hours(everything=True) == 4
    assert kept_names() == ["kept", "mail.kept"]
    assert rows("kept") == [(2, 0), (3, 0), (0, 1)]
    row = RateLimitHour.objects.get(name="mail.kept")
    numbers = {column: getattr(row, column) for column in RateLimitHour.columns() if getattr(row, column)}
    assert numbers == {"allowed": 1, "refused": 1, "units": 2, "near": 1, "people_refused": 1}
    assert row.moment % HOUR == 0
    oldest = RateLimitHour.objects.filter(name="kept").earliest("moment")
    assert oldest.people_refused is None  # Nobody knows any more.


def test_it_is_done_again_without_harm(moved: Callable[[float], None], direct: Any) -> None:
    """What is there is raised, never lowered, also where Redis has lost what it had; several may do it at one time."""
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
                hours = {moment - at * HOUR: {"allowed": number, "refused": 20 - number, "people_refused": number}}
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


def test_one_process_at_a_time_writes_also_after_an_outage(tmp_path: Path, prefix: str) -> None:
    """Processes that are told nothing do it by themselves; while the database cannot be written to nothing is lost,
    and who is killed in the middle leaves it to the others."""
    path = migrated(tmp_path / "db.sqlite3")
    count = "RateLimitHour.objects.using('default').count()"
    table = "django_ratelimit_lua_ratelimithour"
    rename = "connections['default'].cursor().execute('ALTER TABLE {} RENAME TO {}')"
    with (
        Worker(prefix, {"default": path}, compare_seconds=0.05) as one,
        Worker(prefix, {"default": path}, compare_seconds=0.05) as other,
    ):
        for worker in (one, other):
            worker("from django_ratelimit_lua.models import RateLimitHour")
            worker("from django_ratelimit_lua.publishing import hours")
            worker("hours.KEEP_SECONDS = 1")
        one("rule(durable=True)")
        one(rename.format(table, "away"))

        def work() -> bool:
            return bool(one("ask()")) and bool(other("ask()"))

        def failed() -> bool:
            return work() and any("'hours' fails" in line for worker in (one, other) for line in worker("said"))

        until(failed, "it is tried")
        one(rename.format("away", table))
        until(lambda: work() and one(count) >= 1, "it is written")
        other._process.kill()
        other._process.wait()
        counted = "RateLimitHour.objects.using('default').get(name='site').allowed"
        before = one(counted)
        until(lambda: bool(one("ask()")) and one(counted) > before, "it goes on")
        other._process.stdin.close()


def test_what_was_missed_is_caught_up(settings: Any, moved: Callable[[float], None], direct: Any, prefix: str) -> None:
    """Once a day all that Redis has is compared; and anew where something has failed."""
    mail = RateLimiter("mail.late", "1000/h", durable=True)
    moved(-30 * 86_400)
    mail.hit("ada")
    moved(0)
    mail.hit("ada")
    keeping._keep()
    assert rows("mail.late") == [(1, 0)] * 2
    moved(-40 * 86_400)
    mail.hit("ada")
    moved(0)
    keeping._keep()
    assert rows("mail.late") == [(1, 0)] * 2  # Not before tomorrow.
    stop(20)  # No thread is to ask the one server for the other.
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    with pytest.raises(StoreError):
        keeping._keep()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url()}}
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_ratelimit_lua_ratelimithour RENAME TO away")
    try:
        with pytest.raises(DatabaseError):
            keeping._keep()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO django_ratelimit_lua_ratelimithour")
    keeping._keep()
    assert rows("mail.late") == [(1, 0)] * 3


def test_longer_times_are_read_from_both(moved: Callable[[float], None], direct: Any) -> None:
    """From the database what Redis has forgotten, from Redis what is not written yet."""
    mail = RateLimiter("mail.long", "1000/h", durable=True)
    today = int(time.time()) // 86_400 * 86_400
    RateLimitHour.objects.create(name="mail.long", moment=today - 200 * 86_400 + HOUR, allowed=5, shadow_refused=2)
    RateLimitHour.objects.create(name="mail.long", moment=today - 200 * 86_400 + 2 * HOUR, allowed=6)
    mail.hit("ada")
    keep_hours()
    mail.hit("ada")
    span = Span(today - 210 * 86_400, today + 86_400, 86_400)
    found = {(point.moment - today) // 86_400: dict(point.counts) for point in kept_series("mail.long", span)}
    assert len(found) == 211
    assert found[-200] == {"a": 11, "s": 2}
    assert found[0] == {"a": 2}
    assert sum(map(len, found.values())) == 3


def test_a_limiter_that_says_so_no_more_is_written_until_then(direct: Any, prefix: str) -> None:
    """And names that no database takes are refused at once."""
    RateLimiter("mail.ended", "5/h", durable=True).hit("ada")
    assert keep_hours() == 1
    key = f"{prefix}{{stats}}:durable"
    direct.zincrby(key, -2, "mail.ended")
    RateLimitHour.objects.all().delete()
    assert keep_hours() == 0
    for name in ("x" * 201, "a\x00b", "\ud800"):
        with pytest.raises(LimitError, match="durable"):
            RateLimiter(name, "5/h", durable=True)


def test_the_word_is_that_of_rules_everywhere(settings: Any, client: Any) -> None:
    """In settings, in YAML and in the admin's form."""
    settings.RATELIMIT_RULES = [{"name": "written", "path": "/ok", "key": "ip", "rate": "5/h", "durable": True}]
    assert visits(1) == [200]
    assert keep_hours() == 1
    RateLimitRule.objects.create(name="row", path="/x", key="ip", limit=3, durable=True)
    assert "durable: true" in export()
    given = RateLimitRule.objects.get().declared()
    assert given["durable"] is True
    assert RateLimitRule.objects.create(name="other", path="/x", key="ip", limit=3).declared().get("durable") is None


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ratelimit_stats", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_shows_and_prunes(settings: Any) -> None:
    """A table of the last day, for people and machines; and what is older goes, after it was shown what that is."""
    settings.RATELIMIT_HISTORY_DAYS = settings.RATELIMIT_STATISTICS_DAYS = None
    assert command("show") == "nothing was counted yet\n"
    mail = RateLimiter("mail.shown", "2/h")
    for _ in range(3):
        mail.hit("ada")
    lines = command("show").splitlines()
    assert lines[1].split() == ["mail.shown", "2", "1", "0", "0", "0", "0", "0", "1"]
    found = json.loads(command("show", "--json"))
    assert found["all"]["allowed"] == 2
    assert found["rules"][0]["refused"] == total("mail.shown", Span.last(86_400, HOUR)).refused == 1
    now, old = timezone.now(), timezone.now() - timedelta(days=500)
    for at in (now, old):
        RateLimitHour.objects.create(name="x", moment=int(at.timestamp()) // HOUR * HOUR, allowed=1)
        RateLimitOverride.objects.create(network="203.0.113.1", effect="block", ends=at)
    RateLimitChange.objects.filter(pk=RateLimitChange.objects.first().pk).update(at=old)
    said = command("prune", "--older", "400d", "--dry-run")
    assert said.startswith("would delete, from before 20")
    assert said.endswith(": hours of statistics 1, ended overrides 1, changes 1\n")
    assert command("prune", "--older", "400d").startswith("deleted")
    assert (RateLimitHour.objects.count(), RateLimitOverride.objects.count()) == (1, 1)
    assert command("prune", "--older", "400d").endswith(": hours of statistics 0, ended overrides 0, changes 0\n")
    with pytest.raises(CommandError, match="--older 'soon'"):
        command("prune", "--older", "soon")


def test_publishing_prunes_a_little_each_time(settings: Any) -> None:
    """Hours that are older than `RATELIMIT_STATISTICS_DAYS`; none where that is None."""
    moment = int(time.time()) // HOUR * HOUR
    for days in (1, 399, 401, 900):
        RateLimitHour.objects.create(name="x", moment=moment - days * 86_400, allowed=1)
    settings.RATELIMIT_STATISTICS_DAYS = None
    RateLimitRule.objects.create(name="one", path="/x", key="ip", limit=3)
    assert RateLimitHour.objects.count() == 4
    settings.RATELIMIT_STATISTICS_DAYS = 400
    RateLimitRule.objects.create(name="two", path="/x", key="ip", limit=3)
    assert RateLimitHour.objects.count() == 2
