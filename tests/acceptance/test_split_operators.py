"""Splits for operators: in a rule, and on the page of processes."""

from __future__ import annotations

import asyncio
import os
import socket
from io import StringIO
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.urls import path

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine.heartbeat import (
    DESCRIPTIONS,
    Heartbeat,
    ProcessShare,
    heartbeat,
    processes,
)
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.health import ahealth, health
from django_ratelimit_lua.store import get_store
from tests.users import ADMIN_MIDDLEWARE, staff

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quiet")]
urlpatterns = [path("admin/", admin.site.urls)]
HERE = "/admin/django_ratelimit_lua/processes/"
HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with an admin."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE


def beat_twice() -> Heartbeat:
    """Send heartbeats of two processes, of which one uses a split limit. Its second heartbeat
    describes its part.
    """
    busy, idle = Heartbeat(), Heartbeat()
    busy.use(Limit("search<b>", "100/m", split="equal"))
    for _ in range(2):
        busy.beat()
        idle.beat()
    return busy


def test_the_process_page_lists_processes_and_their_parts() -> None:
    """It shows host, process, age and the parts of split limits, for users who may view rules."""
    ada = staff("view_ratelimitrule", name="ada")
    assert "No process has" in ada.get(HERE).content.decode()
    beat_twice()
    page = ada.get(HERE).content.decode()
    assert "2 processes" in page
    for text in (f">{os.getpid()}<", "search&lt;b&gt;: 100 of 100", "—"):
        assert text in page
    assert staff("view_identities", name="bob").get(HERE).status_code == 403
    assert "Processes" in ada.get("/admin/").content.decode()


def test_the_process_page_reports_that_redis_is_unavailable(settings: Any) -> None:
    """The page has the reason instead of the processes."""
    ada = staff("view_ratelimitrule", name="ada")
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    page = ada.get(HERE)
    assert page.status_code == 200
    assert "Redis is unavailable" in page.content.decode()


def test_health_and_its_command_list_the_processes() -> None:
    """They list the same processes as the page, without a process that has ended and without
    unreadable data.
    """
    busy = beat_twice()
    found = health().processes
    assert [(process.host, process.pid) for process in found] == [(HOST, os.getpid())] * 2
    parts = [part for process in found for part in process.parts]
    assert [(part.name, part.units, part.limit) for part in parts] == [("search<b>", 100, 100)]
    assert asyncio.run(ahealth()).processes == found
    output = StringIO()
    call_command("ratelimit", "health", stdout=output, stderr=StringIO())
    assert f"process {os.getpid()} on {HOST}, up for " in output.getvalue()
    assert "100 of 100 of search<b>" in output.getvalue()
    assert "no split limit" in output.getvalue()
    busy.goodbye()
    assert len(processes()) == 1
    get_store().execute(b"HSET", conf.CACHE_PREFIX + DESCRIPTIONS, b"x", b"garbage")
    assert len(processes()) == 1


def test_a_split_in_a_rule_applies_immediately() -> None:
    """The split is in YAML and in the published rules. An invalid value is an error at
    its field.
    """
    limiter = RateLimiter("search", "5/h")
    rule = RateLimitRule(name="search", limit=100, unit="h", split="equal")
    rule.full_clean()
    rule.save()
    limiter.hit("ada")
    heartbeat.beat()
    decision = limiter.hit("ada")
    assert (decision.source, decision.limits[0].limit) == ("split", 100)
    assert heartbeat.part_of(Limit("search", "1/h", split="equal")) == ProcessShare(0, 1)
    output = StringIO()
    call_command("ratelimit", "rules", "export", stdout=output)
    assert "split: equal" in output.getvalue()
    rule.split = "half"
    with pytest.raises(ValidationError) as error:
        rule.full_clean()
    assert "must be one of: equal" in str(error.value.message_dict["split"])
