"""Splits for operators: in a rule, and on the page of processes."""

from __future__ import annotations

import asyncio
import os
import socket
from io import StringIO

import pytest
from django.contrib import admin
from django.core.management import call_command
from django.urls import path

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine.heartbeat import PROCESSES, Heartbeat, heartbeat, live_processes
from django_ratelimit_lua.models import RateLimitChange, RateLimitHost, RateLimitRule
from django_ratelimit_lua.operations.health import ahealth, health
from django_ratelimit_lua.rules.provider import refresh_ruleset
from django_ratelimit_lua.store import get_store
from tests.support.users import staff

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quiet")]
urlpatterns = [path("admin/", admin.site.urls)]
HERE = "/admin/django_ratelimit_lua/processes/"
HOST = socket.gethostname()


def beat_on(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> list[Heartbeat]:
    """Send a heartbeat of a process on each of these hosts."""
    beats = []
    for host in hosts:
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        beats.append(Heartbeat())
        beats[-1].beat()
    return beats


def test_the_process_page_lists_processes_and_parts_by_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shows host, process, age and the part of each host, for users who may view rules."""
    ada = staff("view_ratelimitrule", name="ada")
    assert "No process has" in ada.get(HERE).content.decode()
    beat_on(monkeypatch, "web<b>", "web<b>", "jobs")
    page = ada.get(HERE).content.decode()
    for text in ("3 processes", f"{os.getpid()}, running for", "web&lt;b&gt;", "50 %"):
        assert text in page
    assert '<input type="number"' not in page
    assert ada.post(HERE, {"weight-jobs": "3"}).status_code == 403
    assert staff("view_identities", name="bob").get(HERE).status_code == 403


def test_an_operator_sets_the_weights_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is stored, published with the rules, and recorded in the history."""
    ada = staff("view_ratelimitrule", "change_ratelimitrule", name="ada")
    web, jobs = beat_on(monkeypatch, "web", "jobs")
    page = ada.post(HERE, {"weight-web": "7", "weight-jobs": "0"})
    assert "greater than or equal to 1" in page.content.decode()
    assert not RateLimitHost.objects.exists()
    page = ada.post(HERE, {"weight-web": "7", "weight-jobs": "3"}, follow=True)
    assert "The weights are saved." in page.content.decode()
    assert "70 %" in page.content.decode()
    assert refresh_ruleset().weights == {"web": 7, "jobs": 3}
    web.beat()
    assert (web.share.weights, web.share.units(100)) == ((3, 7), 70)
    jobs.leave()
    page = ada.post(HERE, {"weight-web": "7", "weight-jobs": ""}, follow=True)
    assert "jobs" not in page.content.decode()
    assert refresh_ruleset().weights == {"web": 7}
    changes = RateLimitChange.objects.filter(kind="host").order_by("pk")
    assert [(change.by, change.name, change.action) for change in changes] == [
        ("ada", "jobs", "created"),
        ("ada", "web", "created"),
        ("ada", "jobs", "deleted"),
    ]


def test_an_invalid_published_weight_is_ignored() -> None:
    """It is reported as a problem of the rules."""
    RateLimitHost.objects.create(name="web", weight=7)
    RateLimitHost._base_manager.create(name="odd", weight=0)
    ruleset = refresh_ruleset()
    assert ruleset.weights == {"web": 7}
    assert "the weight of the host 'odd' is 0" in ruleset.problems[0]


def test_health_and_its_command_list_the_processes() -> None:
    """A process that has ended and unreadable data are left out."""
    beats = [Heartbeat() for _ in range(2)]
    for beat in beats:
        beat.beat()
    found = health().processes
    assert [(process.host, process.pid) for process in found] == [(HOST, os.getpid())] * 2
    assert asyncio.run(ahealth()).processes == found
    output = StringIO()
    call_command("ratelimit", "health", stdout=output, stderr=StringIO())
    assert f"process {os.getpid()} on {HOST}, up for " in output.getvalue()
    beats[0].leave()
    assert len(live_processes()) == 1
    get_store().execute(b"ZADD", conf.CACHE_PREFIX + PROCESSES, b"9999999999", b"garbage")
    assert len(live_processes()) == 1


def test_a_split_in_a_rule_applies_immediately() -> None:
    """The split is in YAML and in the published rules."""
    limiter = RateLimiter("search", "5/h")
    rule = RateLimitRule(
        name="search", rate="100/h", options={"algorithm": "token_bucket", "split": True}
    )
    rule.full_clean()
    rule.save()
    decision = limiter.hit("ada")
    assert (decision.source, decision.limits[0].limit) == ("split", 100)
    assert heartbeat.share is not None
    output = StringIO()
    call_command("ratelimit", "rules", "export", stdout=output)
    assert "split: true" in output.getvalue()
