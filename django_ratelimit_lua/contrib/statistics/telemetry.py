"""Decisions for OpenTelemetry: a counter, a histogram of times, and a span for each decision.

Instrumentation of redis-py does not see the commands of limits, because they bypass its command
API.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from ...engine import DecidedCharge
from ...limits.decision import Decision
from ...operations.formatting import readable
from ...process.forks import renew_after_fork
from .keys import MAX_LABELS, REST
from .results import LABELS, TIME_BOUNDS, results_of

logger = logging.getLogger("django_ratelimit_lua")


class Telemetry:
    """Records decisions with OpenTelemetry.

    An error there is logged once, and changes no decision. The instruments are made with the first
    decision of a process, so a forked process has its own exporter.
    """

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._instruments: Any = None
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
            self._record(results_of(charges, decision, exempt)[0], decision.source, seconds)
        except Exception as error:  # An exporter of the project's, or no package at all.
            if not self._has_failed:
                logger.warning("Decisions cannot be recorded with OpenTelemetry: %r", error)
            self._has_failed = True

    def _record(self, results: dict[str, str], source: str, seconds: float) -> None:
        if self._instruments is None:
            self._instruments = _make_instruments()
        decisions, duration, tracer = self._instruments
        end = time.time_ns()
        for name, letter in results.items():
            if name not in self._names and len(self._names) >= MAX_LABELS:
                name = REST
            self._names.add(name)
            mode, result = LABELS[letter]
            attributes = {
                "ratelimit.rule": readable(name),
                "ratelimit.mode": mode,
                "ratelimit.result": result,
                "ratelimit.source": source,
            }
            decisions.add(1, attributes)
            duration.record(seconds, attributes)
            start = end - int(seconds * 1e9)
            tracer.start_span("ratelimit.decide", start_time=start, attributes=attributes).end(end)


def _make_instruments() -> tuple[Any, Any, Any]:
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("django_ratelimit_lua")
    return (
        meter.create_counter("ratelimit.decisions", "{decision}"),
        meter.create_histogram(
            "ratelimit.decision.duration", "s", explicit_bucket_boundaries_advisory=TIME_BOUNDS
        ),
        trace.get_tracer("django_ratelimit_lua"),
    )


telemetry = Telemetry()
