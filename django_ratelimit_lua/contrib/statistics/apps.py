"""The Django application `django_ratelimit_lua.contrib.statistics`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register


class StatisticsExtension(Extension):
    name = "statistics"
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def on_message(self, words: Collection[bytes]) -> None:
        from .recorder import recorder

        recorder.forget(words)

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        from .forget import forget

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
