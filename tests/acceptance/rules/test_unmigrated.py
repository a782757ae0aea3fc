"""An installed app without migrations is reported once with the remedy, and publishing is not
retried.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.health import health
from django_ratelimit_lua.publishing import triggers
from django_ratelimit_lua.rules import provider
from tests.acceptance.commands.test_command import said
from tests.acceptance.rules.test_rules import another_process

pytestmark = pytest.mark.django_db(transaction=True)
urlpatterns = [path("ok", lambda request: HttpResponse("ok"))]
REMEDY = "manage.py migrate"


@pytest.fixture
def unmigrated(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Start anew on a database without the package's tables, and return the attempts to publish."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_RULES = [{"name": "site", "path": "/", "key": "ip", "rate": "2/h"}]
    call_command("migrate", "django_ratelimit_lua", "zero", verbosity=0)
    asked: list[int] = []
    publish = triggers.publish

    def counting(**options: Any) -> int:
        asked.append(1)
        return publish(**options)

    monkeypatch.setattr(triggers, "publish", counting)
    monkeypatch.setattr(triggers, "_warned", False)
    monkeypatch.setattr(triggers, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(provider, "COMPARE_SECONDS", 0.0)
    provider.problems.clear()
    another_process()
    try:
        yield asked
    finally:
        call_command("migrate", "django_ratelimit_lua", verbosity=0)


def get() -> int:
    return Client().get("/ok").status_code


def test_a_missing_migration_is_logged_once_and_not_retried_forever(
    unmigrated: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are limited by the rules of the settings."""
    assert [get() for _ in range(20)] == [200, 200] + [429] * 18
    threading.Event().wait(0.2)
    assert len(unmigrated) <= 2
    assert [record.message for record in caplog.records if REMEDY in record.message] == [
        triggers.UNMIGRATED
    ]
    assert not [record for record in caplog.records if "cannot be read" in record.message]
    assert not triggers.publishing.is_running
    assert REMEDY in health().problems[0]
    call_command("migrate", "django_ratelimit_lua", verbosity=0)
    RateLimitRule.objects.create(name="all", path="/ok", key="path", rate="0/m")
    assert get() == 429
    assert provider.load_ruleset().by_name["all"].source == "admin"
    assert health().problems == ()


def test_a_migration_by_another_process_is_detected(
    unmigrated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process detects it with its first edit."""
    assert get() == 200
    known = provider.problems.database
    call_command("migrate", "django_ratelimit_lua", verbosity=0)
    provider.problems.database = known  # As if it had not happened here.
    rules = provider.load_ruleset()
    RateLimitRule.objects.create(name="all", path="/ok", key="path", rate="0/m")
    provider.problems.database, provider._ruleset, provider.database = known, rules, None
    assert get() == 429
    assert health().problems == ()


def test_the_check_of_the_database_reports_the_missing_migration(
    unmigrated: list[int], no_others: None
) -> None:
    """`manage.py check --database default` names the command."""

    def reported() -> list[str]:
        found = run_checks(databases=["default"], tags=[Tags.database])
        return [
            f"{each.msg} {each.hint}" for each in found if each.id == "django_ratelimit_lua.W040"
        ]

    (text,) = reported()
    assert "is installed, but not migrated" in text
    assert "manage.py migrate" in text
    call_command("migrate", "django_ratelimit_lua", verbosity=0)
    assert reported() == []


def test_migrate_prints_no_warning_about_itself(
    unmigrated: list[int], settings: Any, no_others: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`migrate` runs the checks of the database before it creates the tables."""
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    settings.SILENCED_SYSTEM_CHECKS = ["admin.E408", "admin.E409", "admin.E410"]
    output = io.StringIO()
    call_command("migrate", "django_ratelimit_lua", skip_checks=False, stdout=output, stderr=output)
    assert "Applying django_ratelimit_lua.0001_initial" in output.getvalue()
    assert "django_ratelimit_lua.W" not in output.getvalue()


def test_commands_report_the_missing_migration(unmigrated: list[int]) -> None:
    """Each command names the remedy, without a traceback."""
    for command in ("export", "mode site off"):
        with pytest.raises(CommandError, match=REMEDY):
            said(*command.split())
    output = io.StringIO()
    call_command("ratelimit", "health", stdout=output, stderr=output)
    assert REMEDY in output.getvalue()
    assert "a decision takes" in output.getvalue()
    assert "site: 2 per hour" in said("list")
