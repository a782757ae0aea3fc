"""Decisions for OpenTelemetry: two instruments, and a span for each decision.

Instrumentation of redis-py does not see the commands of limits, because they bypass its command
API. The instruments and the tracer are made with the first decision of a process, so a forked
process has its own exporter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.decided_charge import DecidedCharge
from ...limits.decision import Decision
from ...operations.formatting import readable
from ...process.forks import renew_after_fork
from ...version import __version__
from .buckets import TIME_BOUNDS
from .keys import MAX_LABELS, REST
from .results import LABELS, results_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram
    from opentelemetry.trace import Tracer

logger = logging.getLogger("django_ratelimit_lua")


class Telemetry:
    """Records decisions with OpenTelemetry.

    An error there is logged once, and changes no decision.
    """

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._instruments: tuple[Counter, Histogram, Tracer] | None = None
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
            results, of_all = results_of(charges, decision, exempt)
            if not of_all:
                return
            if self._instruments is None:
                self._instruments = _make_instruments()
            decisions, duration, tracer = self._instruments
            for name, letter in results.items():
                attributes = _attributes(self._known(name), letter)
                decisions.add(1, attributes)
                duration.record(seconds, {**attributes, "ratelimit.source": decision.source})
            name = next((name for name, letter in results.items() if letter == of_all), "")
            attributes = {**_attributes(name, of_all), "ratelimit.source": decision.source}
            end = time.time_ns()
            span = tracer.start_span(
                "ratelimit.decide", start_time=end - int(seconds * 1e9), attributes=attributes
            )
            span.end(end)
        except Exception as error:  # An exporter of the project's, or no package at all.
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "Decisions cannot be recorded with OpenTelemetry: %s: %s",
                    type(error).__name__,
                    error,
                )

    def _known(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= MAX_LABELS:
            return REST
        self._names.add(name)
        return name


def _attributes(name: str, letter: str) -> dict[str, str]:
    mode, result = LABELS[letter]
    attributes = {"ratelimit.rule": readable(name), "ratelimit.result": result}
    if mode:
        attributes["ratelimit.mode"] = mode
    return attributes


def _make_instruments() -> tuple[Counter, Histogram, Tracer]:
    from opentelemetry.metrics import get_meter
    from opentelemetry.trace import get_tracer

    meter = get_meter("django_ratelimit_lua", __version__)
    return (
        meter.create_counter(
            "ratelimit.decisions",
            unit="{decision}",
            description="Decisions by rule or call site, and their results.",
        ),
        meter.create_histogram(
            "ratelimit.decision.duration",
            unit="s",
            description="Duration of decisions.",
            explicit_bucket_boundaries_advisory=TIME_BOUNDS,
        ),
        get_tracer("django_ratelimit_lua", __version__),
    )


telemetry = Telemetry()
