"""The number of stored rows and keys is bounded for any number of overrides, and only ended
overrides are removed.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRevision
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.rules.snapshot import EVERY_SECTION, SECTIONS
from tests.acceptance.rules.test_rules import get, rule

pytestmark = pytest.mark.django_db(transaction=True)
Published = Callable[[], set[str]]


class Clock:
    """The clock of the database's rows, which tests move."""

    def __init__(self) -> None:
        self.now = timezone.now()

    def __call__(self) -> datetime.datetime:
        return self.now

    def pass_(self, **span: float) -> None:
        """Move the clock by a span."""
        self.now += datetime.timedelta(**span)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(timezone, "now", clock)
    return clock


@pytest.fixture
def published(direct: redis.Redis, prefix: str) -> Published:
    """Return a function that returns the addresses whose overrides are published."""

    def addresses() -> set[str]:
        fields = [f"overrides:{section}" for section in EVERY_SECTION]
        sections = map(json.loads, direct.hmget(f"{prefix}{{rules}}:1", fields))
        keys = [key for section in sections for key in section["entries"]]
        return {str(ip_address(int(key.removeprefix("ip4/32:"), 16))) for key in keys}

    return addresses


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.rules.test_rules"
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def block(clock: Clock, network: str, **span: float) -> RateLimitOverride:
    ends = clock() + datetime.timedelta(**(span or {"seconds": 1}))
    return RateLimitOverride.objects.create(network=network, effect="block", ends=ends)


def test_only_the_latest_of_many_short_blocks_is_stored(
    clock: Clock, published: Published, settings: Any
) -> None:
    """Redis has the latest block of each section, the database those of the history."""
    settings.RATELIMIT_HISTORY_DAYS = 30
    block(clock, "203.0.113.99", days=1000)
    most = [0, 0, 0]
    for number in range(2 * SECTIONS):
        block(clock, f"10.0.{number >> 8}.{number & 255}")
        clock.pass_(days=1)
        kept = (
            len(published()),
            RateLimitOverride.objects.count(),
            RateLimitChange.objects.count(),
        )
        most = [max(pair) for pair in zip(most, kept, strict=True)]
    assert most[0] == SECTIONS + 1
    assert most[1] <= 33
    assert most[2] <= 33
    assert get(REMOTE_ADDR="203.0.113.99") == [429]


def test_only_ended_overrides_are_removed(clock: Clock, published: Published) -> None:
    """An override that was prolonged is kept, and so is one that begins in the future."""
    block(clock, "203.0.113.1")
    prolonged = block(clock, "203.0.113.2")
    RateLimitOverride.objects.create(
        network="203.0.113.3", effect="block", starts=clock() + datetime.timedelta(days=1)
    )
    clock.pass_(minutes=1)
    RateLimitOverride.objects.filter(pk=prolonged.pk).update(
        ends=clock() + datetime.timedelta(days=2)
    )
    assert published() == {"203.0.113.1", "203.0.113.2", "203.0.113.3"}
    publish(rebuild=True)
    assert published() == {"203.0.113.2", "203.0.113.3"}
    clock.pass_(days=3)
    block(clock, "203.0.113.4", days=1)
    publish(rebuild=True)
    assert published() == {"203.0.113.3", "203.0.113.4"}
    assert RateLimitOverride.objects.count() == 4


def test_history_is_kept_for_the_configured_days(clock: Clock, settings: Any) -> None:
    """History is kept for a year by default, and forever with None."""
    for number in range(5):
        block(clock, f"203.0.113.{number}")
    clock.pass_(days=364)
    rule()
    assert (RateLimitOverride.objects.count(), RateLimitChange.objects.count()) == (5, 6)
    settings.RATELIMIT_HISTORY_DAYS = None
    clock.pass_(days=3000)
    rule("other")
    assert (RateLimitOverride.objects.count(), RateLimitChange.objects.count()) == (5, 7)
    settings.RATELIMIT_HISTORY_DAYS = 365
    with CaptureQueriesContext(connection) as captured:
        rule("third")
    assert (RateLimitOverride.objects.count(), RateLimitChange.objects.count()) == (0, 2)
    assert RateLimitRevision.read("default").revision == 8
    with CaptureQueriesContext(connection) as again:
        rule("fourth")
    assert len(captured) <= len(again) + 5
    assert get() == [200]


def test_the_command_prunes_older_rows(clock: Clock, settings: Any) -> None:
    """Rows are pruned whatever the settings keep, and `--dry-run` shows their number first."""
    settings.RATELIMIT_HISTORY_DAYS = None
    block(clock, "203.0.113.1")
    clock.pass_(days=500)
    block(clock, "203.0.113.2", days=1)
    RateLimitChange.objects.filter(pk=RateLimitChange.objects.earliest("pk").pk).update(
        at=clock() - datetime.timedelta(days=500)
    )
    said = []
    for more in (["--dry-run"], [], []):
        output = io.StringIO()
        call_command("ratelimit", "history", "--prune", "400d", *more, stdout=output)
        said.append(output.getvalue())
    assert said[0].startswith("would delete rows from before 20")
    assert "ended overrides 1, changes 1" in said[0]
    assert "ended overrides 1, changes 1" in said[1]
    assert "ended overrides 0, changes 0" in said[2]
    assert (RateLimitOverride.objects.count(), RateLimitChange.objects.count()) == (1, 1)
