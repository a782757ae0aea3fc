"""The number of held slots as a Prometheus metric."""

from __future__ import annotations

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.slots import in_flight
from tests.acceptance import test_slot_operators
from tests.clusters import until

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="NO METRICS TEST: install prometheus-client"
)
from django_ratelimit_lua.contrib.statistics.prometheus import register  # noqa: E402

pytestmark = pytest.mark.django_db(transaction=True)
site, held = test_slot_operators.site, test_slot_operators.held


def test_metrics_include_the_number_of_held_slots(held: tuple[RateLimiter, RateLimiter]) -> None:
    """Held units are reported by limit. Released slots are not counted."""
    registry = prometheus_client.CollectorRegistry()
    register(registry)
    until(lambda: in_flight() == {"exports": 3, "imports:slots": 1}, "all are told", 20)
    told = {
        sample.labels["rule"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "ratelimit_in_flight"
    }
    assert told == {"exports": 3, "imports:slots": 1}
