"""The statistics for Prometheus: totals of all processes, whichever of them is scraped.

The totals are in Redis, so no process keeps its own, and no directory of `PROMETHEUS_MULTIPROC_DIR`
is needed. Labels are names of rules and call sites, never values of a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.bans import count_active_bans
from ...exceptions import StoreError
from ...extension import Metric as Gauge
from ...extension import extensions
from ...operations.formatting import readable
from ...store import FAILURES, get_store, rules_key
from .keys import MAX_LABELS, OTHER, REST, SITE
from .reading import ask, totals
from .results import LABELS, SOURCES, TIME_BOUNDS, WAIT_BOUNDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


class Collector:
    """Collects the counts when prometheus-client's registry is scraped.

    If Redis does not reply, it returns only `ratelimit_store_up 0`. Unknown counters are left out,
    because a total that falls looks like a restart.
    """

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values, for the registry, without calling Redis."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their current values."""
        families = _families()
        store_up = families["store_up"]
        try:
            counts_of = totals()
            (revision,) = ask([(b"HGET", rules_key(), b"revision")])
            gauges = {metric.name: metric.read() for metric in _gauges()}
        except StoreError:
            store_up.add_metric([], 0)
            return [store_up]
        store_up.add_metric([], float(not get_store().is_paused))
        number = (revision or b"0").partition(b"-")[0]
        families["rules_revision"].add_metric([], int(number))
        for name, numbers in gauges.items():
            for labels, number in numbers.items():
                families[name].add_metric([*map(readable, labels)], number)
        site = counts_of.pop(SITE)
        by_label: dict[str, Counter[str]] = {}
        for name, counts in counts_of.items():
            label = readable(name)
            if name == OTHER:
                label = REST
            by_label.setdefault(label, Counter()).update(counts)
        for label, counts in by_label.items():
            for letter, (mode, result) in LABELS.items():
                if counts[letter]:
                    families["decisions"].add_metric([label, mode, result], counts[letter])
            families["units"].add_metric([label, "allowed"], counts["u"])
            families["units"].add_metric([label, "refused"], counts["w"])
            families["near_limit"].add_metric([label], counts["n"])
        for source, letter in SOURCES.items():
            histogram = _histogram(site, f"t{letter}", f"T{letter}", TIME_BOUNDS)
            families["decision_seconds"].add_metric([source], *histogram)
        families["waiting_seconds"].add_metric([], *_histogram(site, "q", "Q", WAIT_BOUNDS))
        for kind in FAILURES:
            families["store_errors"].add_metric([kind], site[f"E{kind}"])
        return families.values()


def _histogram(
    counts: Counter[str], word: str, word_of_sum: str, bounds: Sequence[float]
) -> tuple[list[tuple[str, int]], float]:
    """Return the cumulative buckets of a histogram, and the sum of its seconds."""
    buckets = []
    seen = 0
    for number, bound in enumerate([*map(repr, bounds), "+Inf"]):
        seen += counts[f"{word}{number}"]
        buckets.append((bound, seen))
    return buckets, counts[word_of_sum] / 1e6


def _gauges() -> Iterable[Gauge]:
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


def _families() -> dict[str, Any]:
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
            for metric in _gauges()
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
