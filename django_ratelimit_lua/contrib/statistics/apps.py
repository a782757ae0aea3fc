"""The Django application `django_ratelimit_lua.contrib.statistics`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register
from . import checks  # noqa: F401 - registers itself
from .conf import settings
from .forget import forget
from .recorder import recorder
from .rule_field import DURABLE
from .telemetry import telemetry


class StatisticsExtension(Extension):
    name = "statistics"
    rule_fields = (DURABLE,)
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def on_decision(self, planned: Any, decision: Any, seconds: float, exempt: Any, state: Any) -> None:
        recorder.add(planned, decision, seconds, exempt, state)
        if settings.OPENTELEMETRY:
            telemetry.record(planned, decision, seconds, exempt)

    def on_failed_rule(self, name: str) -> None:
        recorder.add_failed(name)

    def on_message(self, words: Collection[bytes]) -> None:
        recorder.forget(words)

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        return forget(digests)

    def tend(self) -> None:
        from .hours import look

        look()

    def outdated(self, using: str, before: Any) -> Mapping[str, Any]:
        from .hours import outdated_hours

        return {"hours of statistics": outdated_hours(using, before)}


class StatisticsConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.statistics"
    label = "ratelimit_statistics"
    verbose_name = _("Rate limits: statistics")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(StatisticsExtension())
