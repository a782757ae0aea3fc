"""Splits in operators' hands: weights of hosts in a rule, and the processes with their parts."""

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
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
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
    """Two processes, of which one uses a limit by the weight of its host. Its second heartbeat
    describes its part.
    """
    busy, idle = Heartbeat(), Heartbeat()
    busy.use(Limit("search<b>", "100/m", split=f"{HOST}=3"))
    for _ in range(2):
        busy.beat()
        idle.beat()
    return busy


def test_the_process_page_lists_processes_and_their_parts() -> None:
    """Host, process, age and, of each split limit, the part and the weight; for those who may see
    rules.
    """
    ada = staff("view_ratelimitrule", name="ada")
    assert "No process has" in ada.get(HERE).content.decode()
    beat_twice()
    page = ada.get(HERE).content.decode()
    assert "2 processes" in page
    for text in (f">{os.getpid()}<", "search&lt;b&gt;: 100 of 100 (weight 3)", "—"):
        assert text in page
    assert staff("view_identities", name="bob").get(HERE).status_code == 403
    assert "Processes" in ada.get("/admin/").content.decode()


def test_the_process_page_reports_that_redis_is_unavailable(settings: Any) -> None:
    """It is shown without processes, and with the reason."""
    ada = staff("view_ratelimitrule", name="ada")
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    page = ada.get(HERE)
    assert page.status_code == 200
    assert "Redis is unavailable" in page.content.decode()


def test_health_and_its_command_list_the_processes() -> None:
    """As the page does; a process that said goodbye is gone, and what nobody can read is
    left out."""
    busy = beat_twice()
    found = health().processes
    assert [(process.host, process.pid) for process in found] == [(HOST, os.getpid())] * 2
    parts = [part for process in found for part in process.parts]
    assert [(part.name, part.units, part.limit, part.weight) for part in parts] == [
        ("search<b>", 100, 100, 3)
    ]
    assert asyncio.run(ahealth()).processes == found
    output = StringIO()
    call_command("ratelimit", "health", stdout=output, stderr=StringIO())
    assert f"process {os.getpid()} on {HOST}, up for " in output.getvalue()
    assert "100 of 100 of search<b> (weight 3)" in output.getvalue()
    assert "no split limit" in output.getvalue()
    busy.goodbye()
    assert len(processes()) == 1
    get_store().execute(b"HSET", conf.CACHE_PREFIX + DESCRIPTIONS, b"x", b"garbage")
    assert len(processes()) == 1


def test_edited_weights_in_a_rule_apply_immediately() -> None:
    """They are in the history, in YAML and in the published rules."""
    limiter = RateLimiter("search", "5/h")
    rule = RateLimitRule(name="search", limit=100, unit="h", split="WEB-1=3, web-2 = 1")
    rule.full_clean()
    rule.save()
    limiter.hit("ada")
    heartbeat.beat()
    assert limiter.hit("ada").source == "split"
    for split, own in ((f"{HOST}=4", 4), ("equal", 1)):
        rule.split = split
        rule.save()
        limiter.hit("ada")
        heartbeat.beat()
        limit = limiter.hit("ada").limits[0]
        assert limit.limit == 100
        assert heartbeat.part_of(Limit("search", "1/h", split="equal")) == ProcessShare(0, own, own)
    changes = RateLimitChange.objects.filter(name="search")
    assert any(change.after.get("split") == f"{HOST}=4" for change in changes)
    rule.split = "web-1=3"
    rule.save()
    output = StringIO()
    call_command("ratelimit", "rules", "export", stdout=output)
    assert "split: web-1=3" in output.getvalue()


@pytest.mark.parametrize(
    ("weights", "entry"),
    [
        ("web-1=3, web-2", "web-2"),
        ("web-1=0", "web-1=0"),
        ("a=1,A=2", "A=2"),
        ("web 1=2", "web 1=2"),
        ("web-1=1.5", "web-1=1.5"),
        ("a=1001", "a=1001"),
        ("a=1,", ""),
        ("half", "half"),
    ],
)
def test_an_invalid_weight_is_named_with_the_valid_form(weights: str, entry: str) -> None:
    """In the form at its field, and in code."""
    rule = RateLimitRule(name="x", limit=5, unit="h", split=weights, key="ip", path="/")
    with pytest.raises(ValidationError) as error:
        rule.full_clean()
    assert error.value.message_dict == {
        "split": [
            f"{entry!r} is not a weight: write 'equal', or each host once, with a whole number "
            "from 1 to 1000, for "
            "example web-1=3, web-2=1."
        ]
    }
    with pytest.raises(ValueError, match="for example web-1=3, web-2=1") as error_of_code:
        Limit("x", "5/h", split=weights)
    assert repr(entry) in str(error_of_code.value)


def test_a_limit_first_used_in_an_outage_uses_the_share_of_all_processes(
    settings: Any,
) -> None:
    """Also a process that was idle is counted there: a share is one of all processes'."""
    others = [Heartbeat() for _ in range(3)]
    for other in others:
        other.beat()
    assert heartbeat.beat() == 4
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    limiter = RateLimiter("search", "10/h", split="equal")
    decisions = [limiter.hit("ada") for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 3 + [False] * 3
    assert {decision.source for decision in decisions if decision.allowed} == {"fallback"}
