"""The metrics: totals of all processes for Prometheus, and each decision for OpenTelemetry.

The totals are in Redis, so no process keeps its own, and no directory of `PROMETHEUS_MULTIPROC_DIR`
is needed. OpenTelemetry gets a counter, a histogram of times, and a span for each decision, because
its instrumentation of redis-py does not see the commands of limits, which bypass redis-py's command
API. Labels are names of rules and call sites, never values of a request.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...engine import DecidedCharge
from ...engine.bans import count_active_bans
from ...exceptions import StoreError
from ...extension import Metric as Gauge
from ...extension import extensions
from ...limits.decision import Decision
from ...operations.formatting import readable
from ...process.forks import renew_after_fork
from ...store import FAILURES, get_store, rules_key
from .counters import (
    LABELS,
    MAX_LABELS,
    OTHER,
    REST,
    SITE,
    SOURCES,
    TIME_BOUNDS,
    WAIT_BOUNDS,
    results_of,
)
from .reading import execute_all, read_totals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger("django_ratelimit_lua")


class Collector:
    """Collects the counts when prometheus-client's registry is scraped.

    If Redis does not reply, it returns only `ratelimit_store_up 0`. Unknown counters are left out,
    because a total that falls looks like a restart.
    """

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, for the registry, without calling Redis."""
        return _make_families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their current values."""
        families = _make_families()
        store_up = families["store_up"]
        try:
            counts_by_name = read_totals()
            (revision,) = execute_all([(b"HGET", rules_key(), b"revision")])
            gauges = {gauge.name: gauge.read() for gauge in _iterate_gauges()}
        except StoreError:
            store_up.add_metric([], 0)
            return [store_up]
        store_up.add_metric([], float(not get_store().is_paused))
        rules_revision = (revision or b"0").partition(b"-")[0]
        families["rules_revision"].add_metric([], int(rules_revision))
        for gauge_name, numbers_by_labels in gauges.items():
            for labels, number in numbers_by_labels.items():
                families[gauge_name].add_metric([readable(label) for label in labels], number)
        _add_site(families, counts_by_name.pop(SITE))
        for label, counts in _sum_by_label(counts_by_name).items():
            _add_limit(families, label, counts)
        return families.values()


def _sum_by_label(counts_by_name: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Return the counts by label, which several names may share."""
    by_label: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, counts in counts_by_name.items():
        label = REST if name == OTHER else readable(name)
        by_label[label].update(counts)
    return by_label


def _add_limit(families: Mapping[str, Any], label: str, counts: Counter[str]) -> None:
    """Add the counts of one rule or call site."""
    for letter, (mode, result) in LABELS.items():
        if counts[letter]:
            families["decisions"].add_metric([label, mode, result], counts[letter])
    families["units"].add_metric([label, "allowed"], counts["u"])
    families["units"].add_metric([label, "refused"], counts["w"])
    families["near_limit"].add_metric([label], counts["n"])


def _add_site(families: Mapping[str, Any], counts: Counter[str]) -> None:
    """Add the histograms and the errors of the whole site."""
    for source, letter in SOURCES.items():
        histogram = _make_histogram(counts, f"t{letter}", f"T{letter}", TIME_BOUNDS)
        families["decision_seconds"].add_metric([source], *histogram)
    families["waiting_seconds"].add_metric([], *_make_histogram(counts, "q", "Q", WAIT_BOUNDS))
    for kind in FAILURES:
        families["store_errors"].add_metric([kind], counts[f"E{kind}"])


def _make_histogram(
    counts: Counter[str], letters: str, letters_of_sum: str, bounds: Sequence[float]
) -> tuple[list[tuple[str, int]], float]:
    """Return the cumulative buckets of a histogram by their bounds, and the sum of its seconds."""
    buckets = []
    seen = 0
    for number, bound in enumerate([*map(repr, bounds), "+Inf"]):
        seen += counts[f"{letters}{number}"]
        buckets.append((bound, seen))
    return buckets, counts[letters_of_sum] / 1e6


def _iterate_gauges() -> Iterable[Gauge]:
    """Yield the gauges of the core and of other optional apps."""
    yield BANS_ACTIVE
    for extension in extensions:
        yield from extension.metrics()


BANS_ACTIVE = Gauge(
    "bans_active",
    "Bans that are in force, by rule or call site.",
    ("rule",),
    lambda: {(name,): number for name, number in count_active_bans().most_common(MAX_LABELS)},
)


def _make_families() -> dict[str, Any]:
    """Return all metrics without values, by name without prefix."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    def counter(name: str, text: str, *labels: str) -> Any:
        return CounterMetricFamily(f"ratelimit_{name}", text, labels=labels)

    return {
        "decisions": counter(
            "decisions",
            "Decisions by rule or call site, its mode and the result.",
            "rule",
            "mode",
            "result",
        ),
        "units": counter(
            "units",
            "Units that hits took, or would have taken if they were refused.",
            "rule",
            "result",
        ),
        "near_limit": counter(
            "near_limit", "Hits that were allowed with 80 % or more of the limit used.", "rule"
        ),
        "decision_seconds": HistogramMetricFamily(
            "ratelimit_decision_seconds",
            "Duration of decisions, by the source of the decision.",
            labels=["source"],
        ),
        "waiting_seconds": HistogramMetricFamily(
            "ratelimit_waiting_seconds",
            "Time that requests waited before the application began with them.",
        ),
        "store_up": GaugeMetricFamily(
            "ratelimit_store_up", "Whether Redis answers the process that was scraped."
        ),
        "store_errors": counter(
            "store_errors", "Calls for requests that Redis did not answer.", "kind"
        ),
        "rules_revision": GaugeMetricFamily(
            "ratelimit_rules_revision", "The revision of the rules that are in force."
        ),
        **{
            metric.name: GaugeMetricFamily(
                f"ratelimit_{metric.name}", metric.help, labels=metric.labels
            )
            for metric in _iterate_gauges()
        },
    }


def register(registry: CollectorRegistry | None = None) -> Collector:
    """Add the metrics to a registry of the project, once for each process.

    Call it in `AppConfig.ready`, for example, but not with `PROMETHEUS_MULTIPROC_DIR`, which shows
    the metrics of no registry.

    Args:
        registry: The registry; by default that of prometheus-client, which django-prometheus shows.
    """
    from prometheus_client import REGISTRY

    collector = Collector()
    (registry or REGISTRY).register(collector)
    return collector


class Telemetry:
    """Records decisions with OpenTelemetry.

    An error there is logged once, and changes no decision. The instruments are made with the first
    decision of a process, so a forked process has its own exporter.
    """

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._instruments: _Instruments | None = None  # Made with the first decision.
        self._names: set[str] = set()
        self._has_failed = False

    def record(
        self,
        charges: Sequence[DecidedCharge],
        decision: Decision,
        seconds: float,
        exempt: Sequence[DecidedCharge],
    ) -> None:
        """Record a decision that took this many seconds; see `Recorder.add`."""
        try:
            results, _whole = results_of(charges, decision, exempt)
            self._record(results, decision.source, seconds)
        except Exception as error:  # An exporter of the project's, or no package at all.
            if not self._has_failed:
                logger.warning("Decisions cannot be recorded with OpenTelemetry: %r", error)
            self._has_failed = True

    def _record(self, results: dict[str, str], source: str, seconds: float) -> None:
        """Record the result of each rule or call site with all instruments.

        Beyond the first `MAX_LABELS` names, results are recorded as those of `REST`.
        """
        if self._instruments is None:
            self._instruments = _make_instruments()
        instruments = self._instruments
        end = time.time_ns()
        for name, letter in results.items():
            is_counted = name in self._names or len(self._names) < MAX_LABELS
            label = name if is_counted else REST
            self._names.add(label)
            mode, result = LABELS[letter]
            attributes = {
                "ratelimit.rule": readable(label),
                "ratelimit.mode": mode,
                "ratelimit.result": result,
                "ratelimit.source": source,
            }
            instruments.decisions.add(1, attributes)
            instruments.duration.record(seconds, attributes)
            start = end - int(seconds * 1e9)
            tracer = instruments.tracer
            span = tracer.start_span("ratelimit.decide", start_time=start, attributes=attributes)
            span.end(end)


class _Instruments(NamedTuple):
    """The counter of decisions, the histogram of their times, and the tracer."""

    decisions: Any
    duration: Any
    tracer: Any


def _make_instruments() -> _Instruments:
    """Return the instruments of a process."""
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("django_ratelimit_lua")
    return _Instruments(
        meter.create_counter("ratelimit.decisions", "{decision}"),
        meter.create_histogram(
            "ratelimit.decision.duration", "s", explicit_bucket_boundaries_advisory=TIME_BOUNDS
        ),
        trace.get_tracer("django_ratelimit_lua"),
    )


telemetry = Telemetry()
