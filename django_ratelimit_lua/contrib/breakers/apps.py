"""The Django application `django_ratelimit_lua.contrib.breakers`, and its hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, Metric, register
from ...rules.provider import refresh_ruleset
from .shared_state import read_states, receive_changes

MAX_LABELS = 200
Gauge = Mapping[tuple[str, ...], float]


class BreakersExtension(Extension):
    """Publishes forced states, receives changes, and adds gauges."""

    name = "breakers"

    def snapshot(self, using: str) -> dict[str, str]:
        """Return the forced states by the names of the breakers."""
        from .models import RateLimitBreaker

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


def _make_gauge(states: Mapping[str, str], values: Iterable[str]) -> Gauge:
    """Return 1 for the state of a breaker and 0 for its other states, by name and state.

    Only the first `MAX_LABELS` breakers are included.
    """
    labelled = sorted(states.items())[:MAX_LABELS]
    return {(name, value): float(value == state) for name, state in labelled for value in values}


def _read_own() -> Gauge:
    return _make_gauge(read_states(), ("closed", "open", "half-open"))


def _read_forced() -> Gauge:
    states = dict.fromkeys(read_states(), "")
    states.update(refresh_ruleset().parts.get("breakers") or {})
    return _make_gauge(states, ("open", "closed"))


class BreakersConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.breakers"
    label = "ratelimit_breakers"
    verbose_name = _("Rate limits: circuit breakers")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(BreakersExtension())
