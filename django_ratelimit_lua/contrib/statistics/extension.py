"""The hooks of the optional app `statistics`: counting, and pages and commands of the core.

What only pages and commands need is imported by their hooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from ...engine.decided_charge import DecidedCharge
from ...extension import ClientRecord, Column, Extension, HomeSection
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...limits.options import Option
from ...limits.values import flag
from . import checks  # noqa: F401 - registers itself
from .conf import settings
from .recorder import recorder
from .telemetry import telemetry

if TYPE_CHECKING:
    from ...models import RateLimitRule
    from ...operations.explain import ExplainedLimit

DURABLE = Option(
    flag,
    gettext_noop("keep statistics"),
    gettext_noop(
        "The counts of each hour are kept in the database. Otherwise they are kept for 90 days."
    ),
    default=False,
)


def _last_day_cells(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
) -> dict[str, SafeString]:
    from .core_pages import last_day_cells

    return last_day_cells(request, rules)


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    options = MappingProxyType({"durable": DURABLE})
    columns = (Column("last_day", gettext_lazy("last day"), _last_day_cells),)
    tasks = MappingProxyType(
        {
            "hours": "writes durable statistics to the database, every five minutes while there "
            "are new ones"
        }
    )
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def on_decision(
        self,
        charges: Sequence[DecidedCharge],
        decision: Decision,
        seconds: float,
        exempt: Sequence[DecidedCharge],
        state: RequestState | None,
    ) -> None:
        recorder.add(charges, decision, seconds, exempt, state)
        if settings.OPENTELEMETRY:
            telemetry.record(charges, decision, seconds, exempt)

    def on_failed_rule(self, name: str) -> None:
        recorder.add_failed(name)

    def on_message(self, words: Collection[bytes]) -> None:
        recorder.forget()

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        from .forget import forget

        return forget(digests)

    def tend(self) -> None:
        from .hours import look

        look()

    def outdated(self, using: str, before: datetime) -> Mapping[str, QuerySet[Model]]:
        from .hours import outdated_hours

        return {"hours of statistics": outdated_hours(using, before)}

    def links(self, request: HttpRequest, rule: RateLimitRule) -> Iterator[tuple[str, str]]:
        url = self.limit_url(request, rule.name)
        if url:
            yield _("Statistics"), url

    def home(self, request: HttpRequest) -> Iterable[HomeSection]:
        from .admin import home_sections

        return home_sections(request)

    def limit_url(self, request: HttpRequest, name: str) -> str:
        from .core_pages import limit_url

        return limit_url(request, name)

    def rehearsal(self, rule: RateLimitRule) -> str:
        from .core_pages import rehearsal

        return rehearsal(rule)

    def history(self, met: ExplainedLimit) -> str:
        from .core_pages import history

        return history(met)

    def client(
        self, request: HttpRequest, digest: str, name: str = ""
    ) -> Mapping[str, ClientRecord]:
        from .clients import client_records

        return client_records(request, digest, name)

    def health(self) -> Iterable[str]:
        from .core_pages import health_warnings

        return health_warnings()
