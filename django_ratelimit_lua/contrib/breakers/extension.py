"""The hooks of the optional app `breakers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...extension import Extension, Metric
from ...rules.provider import refresh_ruleset
from .models import RateLimitBreaker
from .registry import read_states
from .shared_state import receive_changes

MAX_LABELS = 200
Gauge = Mapping[tuple[str, ...], float]


class BreakersExtension(Extension):
    """The hooks of the optional app `breakers`."""

    name = "breakers"

    def snapshot(self, using: str) -> dict[str, str]:
        """Return the forced states by the names of the breakers."""
        rows = RateLimitBreaker.objects.using(using).exclude(forced="")
        return dict(rows.values_list("name", "forced"))

    def on_message(self, words: Collection[bytes]) -> None:
        receive_changes(words)

    def metrics(self) -> Iterable[Metric]:
        labels = ("breaker", "state")
        return (
            Metric("breaker_state", "1 for the state of a circuit breaker.", labels, _read_own),
            Metric(
                "breaker_forced",
                "1 for the state that an operator has forced on a circuit breaker.",
                labels,
                _read_forced,
            ),
        )


def _gauge(states: Mapping[str, str], values: Iterable[str]) -> Gauge:
    labelled = sorted(states.items())[:MAX_LABELS]
    return {(name, value): float(value == state) for name, state in labelled for value in values}


def _read_own() -> Gauge:
    return _gauge(read_states(), ("closed", "open", "half-open"))


def _read_forced() -> Gauge:
    forced = refresh_ruleset().parts.get("breakers") or {}
    return _gauge({**dict.fromkeys(read_states(), ""), **forced}, ("open", "closed"))
