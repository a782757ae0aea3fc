"""The Django application `django_ratelimit_lua.contrib.statistics`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...engine.decide import PlannedCharge
from ...extension import ClientRecord, Column, Extension, HomeSection, register
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from . import checks  # noqa: F401 - registers itself
from .conf import settings
from .forget import forget
from .recorder import recorder
from .rule_field import DURABLE
from .telemetry import telemetry

if TYPE_CHECKING:
    from ...models import RateLimitRule
    from ...operations.explain import ExplainedLimit


def _last_days(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
) -> Mapping[str, object]:
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

    def links(self, request: HttpRequest, rule: RateLimitRule) -> Iterator[tuple[str, str]]:
        url = self.limit_url(request, rule.name)
        if url:
            yield gettext("Statistics"), url

    def limit_url(self, request: HttpRequest, name: str) -> str:
        from .core_pages import limit_url

        return limit_url(request, name)

    def rehearsal(self, rule: RateLimitRule) -> str:
        from .core_pages import rehearsal

        return rehearsal(rule)

    def history(self, met: ExplainedLimit) -> str:
        from .core_pages import history_words

        return history_words(met)

    def client(
        self, request: HttpRequest, digest: str, name: str = ""
    ) -> Mapping[str, ClientRecord]:
        from .core_pages import client_records

        return client_records(request, digest, name)

    def home(self, request: HttpRequest) -> Iterable[HomeSection]:
        from .home import sections

        return sections(request)

    def health(self) -> Iterable[str]:
        from .core_pages import health_warnings

        return health_warnings()

    def on_decision(
        self,
        planned: Sequence[PlannedCharge],
        decision: Decision,
        seconds: float,
        exempt: Sequence[PlannedCharge],
        state: RequestState | None,
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

    def outdated(self, using: str, before: datetime) -> Mapping[str, QuerySet[Model]]:
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
