"""How long requests waited, as a histogram."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import Client

from tests.acceptance.admin.test_admin import site  # noqa: F401 - a fixture
from tests.acceptance.admin.test_admin_overview import shown

pytestmark = pytest.mark.django_db(transaction=True)
WAITED = (0.3, 0.7, 0.7, 45.0)


def visit(settings: Any) -> None:
    """Send requests that waited, without any rule, and one of which that is not known."""
    settings.RATELIMIT_REQUEST_START = "X-Request-Start"
    settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32"]
    for waited in WAITED:
        start = f"t={time.time() - waited:.3f}"
        assert Client().get("/admin/login/", headers={"X-Request-Start": start}).status_code == 200
    assert Client().get("/admin/login/").status_code == 200


def test_the_overview_shows_how_long_requests_waited(operator: Client, settings: Any) -> None:
    """A table of waiting times; nothing while it is not known."""
    assert "Waiting time of requests" not in shown(operator)
    visit(settings)
    text = shown(operator)
    assert "≤ 500 ms 1 ≤ 1000 ms 2 longer 1" in text.replace("\N{NBSP}", " ")


def test_prometheus_has_a_histogram(settings: Any) -> None:
    """Its buckets are cumulative, and its sum is in seconds."""
    pytest.importorskip("prometheus_client", reason="NO METRICS TEST: install prometheus-client")
    from django_ratelimit_lua.contrib.statistics.metrics import Collector

    visit(settings)
    [family] = [each for each in Collector().collect() if each.name == "ratelimit_waiting_seconds"]
    values = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert values["ratelimit_waiting_seconds_bucket", "0.5"] == 1
    assert values["ratelimit_waiting_seconds_bucket", "1.0"] == 3
    assert values["ratelimit_waiting_seconds_bucket", "+Inf"] == len(WAITED)
    assert values["ratelimit_waiting_seconds_sum", None] == pytest.approx(sum(WAITED), abs=1)
