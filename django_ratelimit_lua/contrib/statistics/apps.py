"""The Django application `django_ratelimit_lua.contrib.statistics`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...extension import Column, Extension, register
from . import checks  # noqa: F401 - registers itself
from .conf import settings
from .forget import forget
from .recorder import recorder
from .rule_field import DURABLE
from .telemetry import telemetry


def _last_days(request: Any, rules: Mapping[str, Any]) -> Mapping[str, Any]:
    from .core_pages import last_day_cells

    return last_day_cells(request, rules)


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    rule_fields = (DURABLE,)
    columns = (Column("last_day", _("last day"), _last_days),)
    tasks = MappingProxyType(
        {
            "hours": "writes durable statistics to the database, every five minutes while there "
            "are new ones"
        }
    )
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def links(self, request: Any, rule: Any) -> Iterator[tuple[str, str]]:
        url = self.limit_url(request, rule.name)
        if url:
            yield gettext("Statistics"), url

    def limit_url(self, request: Any, name: str) -> str:
        from .core_pages import limit_url

        return limit_url(request, name)

    def rehearsal(self, rule: Any) -> str:
        from .core_pages import rehearsal

        return rehearsal(rule)

    def history(self, met: Any) -> str:
        from .core_pages import history_words

        return history_words(met)

    def health(self) -> Iterable[str]:
        from .core_pages import health_warnings

        return health_warnings()

    def on_decision(
        self, planned: Any, decision: Any, seconds: float, exempt: Any, state: Any
    ) -> None:
        recorder.add(planned, decision, seconds, exempt, state)
        if settings.OPENTELEMETRY:
            telemetry.record(planned, decision, seconds, exempt)

    def on_failed_rule(self, name: str) -> None:
        recorder.add_failed(name)

    def on_message(self, words: Collection[bytes]) -> None:
        recorder.forget()

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
        from . import hours  # noqa: F401 - `ratelimit health` lists its task

        register(StatisticsExtension())
