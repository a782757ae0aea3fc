"""The OpenTelemetry metrics and spans of decisions, as the SDK collects them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.contrib.statistics import metrics as statistics_metrics
from django_ratelimit_lua.contrib.statistics.metrics import telemetry
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import visits
from tests.urls import aok, ok

pytest.importorskip("opentelemetry.sdk", reason="NO TELEMETRY TEST: install opentelemetry-sdk")
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
READER, SPANS = InMemoryMetricReader(), InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def providers() -> None:
    """Set the providers, which a process can do only once."""
    metrics.set_meter_provider(MeterProvider([READER]))
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(tracing)


@pytest.fixture(autouse=True)
def switched_on(settings: Any) -> Iterator[None]:
    settings.RATELIMIT_OPENTELEMETRY = True
    telemetry._begin()
    collected()
    SPANS.clear()
    yield
    telemetry._begin()


def points(reader: Any = READER) -> dict[tuple[str, ...], Any]:
    """Return the points by instrument and by the values of its attributes."""
    found = reader.get_metrics_data()
    return {
        (metric.name, *(str(value) for _, value in sorted(point.attributes.items()))): point
        for resource in (found.resource_metrics if found else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


_before: dict[tuple[str, ...], int] = {}


def collected() -> dict[tuple[str, ...], int]:
    """Return the numbers of requests and durations since the last call."""
    found = points().items()
    counts = {key: getattr(of, "value", getattr(of, "count", 0)) for key, of in found}
    news = {key: count - _before.get(key, 0) for key, count in counts.items()}
    _before.update(counts)
    return {key: count for key, count in news.items() if count}


def test_requests_and_durations_are_reported_by_rule_and_result() -> None:
    """This holds for every source, in sync and async code."""
    assert listener.wait_until_listening(30)  # As it begins to listen, it forgets what was refused.
    mail = RateLimiter("otel.mail", "3/h")
    for _ in range(3):
        mail.hit("ada")
    mail.peek("ada")
    asyncio.run(mail.ahit("ada"))
    mail.hit("ada")
    expected = {("allowed", "redis"): 3, ("refused", "redis"): 1, ("refused", "deny-cache"): 1}
    assert collected() == {
        (f"ratelimit.{name}", "enforce", result, "otel.mail", source): count
        for name in ("decisions", "decision.duration")
        for (result, source), count in expected.items()
    }
    point = points()["ratelimit.decision.duration", "enforce", "allowed", "otel.mail", "redis"]
    assert point.explicit_bounds[:2] == (50e-6, 100e-6)
    assert 0 < point.sum < 60


def test_shadow_refusals_blocks_and_exemptions_are_reported() -> None:
    """They have the same results as in the statistics, without data of the request."""
    RateLimitRule.objects.create(name="otel.site", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="otel.quiet", path="/ok", key="ip", rate="1/h", mode="shadow")
    RateLimitOverride.objects.create(network="203.0.113.2", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.3", effect="block")
    visits(2, "203.0.113.1")
    visits(1, "203.0.113.2")
    visits(1, "203.0.113.3")
    counts = collected()
    found = {key[1:-1]: counts[key] for key in counts if key[0] == "ratelimit.decisions"}
    expected = {("enforce", "allowed", "otel.site"): 2}
    expected |= {("shadow", result, "otel.quiet"): 1 for result in ("allowed", "refused")}
    for result in ("exempt", "blocked"):
        expected |= {("", result, name): 1 for name in ("otel.site", "otel.quiet")}
    assert found == expected
    told = [point.attributes for point in points().values()]
    names = ("rule", "result", "mode", "source")
    assert set().union(*told) <= {f"ratelimit.{name}" for name in names}
    assert "203.0.113" not in str(told)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_decision_is_a_span_of_the_request(kind: str) -> None:
    """Its attributes are rule, mode, result and source. It lies in the request's span."""
    limited = ratelimit(group="otel.view", key="ip", rate="1/h", block=False)
    view = limited(ok) if kind == "plain" else async_to_sync(limited(aok))
    tracer = trace.get_tracer("tests")
    for _ in range(2):
        with tracer.start_as_current_span("GET /"):
            view(RequestFactory().get("/"))
    spans = SPANS.get_finished_spans()
    assert [span.name for span in spans] == ["ratelimit.decide", "GET /"] * 2
    for decision, of_request in zip(spans[::2], spans[1::2], strict=True):
        assert decision.parent.span_id == of_request.context.span_id
        assert of_request.start_time <= decision.start_time
        assert decision.start_time < decision.end_time <= of_request.end_time
    first, second = (dict(span.attributes) for span in spans[::2])
    assert first.pop("ratelimit.rule").startswith("otel.view")
    expected = {"mode": "enforce", "result": "allowed", "source": "redis"}
    assert first == {f"ratelimit.{name}": value for name, value in expected.items()}
    assert second["ratelimit.result"] == "refused"


def test_rule_names_beyond_the_bound_are_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is the maximum number of label values in metrics."""
    monkeypatch.setattr(statistics_metrics, "MAX_LABELS", 2)
    for number in range(5):
        RateLimiter(f"otel.made-{number}", "5/h").hit("ada")
    counts = collected()
    found = {key[-2]: counts[key] for key in counts if key[0] == "ratelimit.decisions"}
    assert found == {"otel.made-0": 1, "otel.made-1": 1, "other": 3}


def test_disabled_telemetry_reports_nothing(settings: Any) -> None:
    """No instruments are created."""
    settings.RATELIMIT_OPENTELEMETRY = False
    RateLimiter("otel.off", "9/h").hit("ada")
    assert telemetry._instruments is None
    assert collected() == {}


def test_without_the_package_a_hit_is_decided(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The log reports the missing package once."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # As where it is not installed.
    limiter = RateLimiter("otel.none", "2/h")
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua"):
        assert [limiter.hit("ada").allowed for _ in range(3)] == [True, True, False]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Decisions cannot be recorded with OpenTelemetry: ModuleNotFoundError"
    )
