"""The Django application `django_ratelimit_lua.contrib.statistics`, and its hooks.

What only pages and commands need is imported by their hooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from ...engine import DecidedCharge
from ...extension import ClientRecord, Column, Extension, Section, register
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...limits.options import Option
from ...limits.values import flag
from .conf import settings
from .recorder import forget_clients, recorder

if TYPE_CHECKING:
    from ...models import RateLimitRule

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
    """Return the cells of the column, see `sections.last_day_cells`."""
    from .sections import last_day_cells

    return last_day_cells(request, rules)


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    options = MappingProxyType({"durable": DURABLE})
    columns = (Column("last_day", _("last day"), _last_day_cells),)

    def on_decision(
        self,
        charges: Sequence[DecidedCharge],
        decision: Decision,
        seconds: float,
        exempt: Sequence[DecidedCharge],
        state: RequestState | None,
    ) -> None:
        """Count a decision, and record it with OpenTelemetry if that is set."""
        recorder.add(charges, decision, seconds, exempt, state)
        if settings.OPENTELEMETRY:
            from .metrics import telemetry

            telemetry.record(charges, decision, seconds, exempt)

    def on_message(self, words: Collection[bytes]) -> None:
        recorder.forget()

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        return forget_clients(digests)

    def sections(self, request: HttpRequest, name: str = "") -> Iterable[Section]:
        from .sections import page_sections

        return page_sections(request, name)

    def client(
        self, request: HttpRequest, digest: str, name: str = ""
    ) -> Mapping[str, ClientRecord]:
        from .sections import client_records

        return client_records(request, digest, name)


class StatisticsConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.statistics"
    label = "ratelimit_statistics"
    verbose_name = _("Rate limits: statistics")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import hours  # noqa: F401 - it adds a job to the flusher

        register(StatisticsExtension())
