"""The hooks of the optional app `statistics`: counting, and pages and commands of the core.

What only pages and commands need is imported by their hooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy, gettext_noop

from ...engine import DecidedCharge
from ...extension import ClientRecord, Column, Extension, Section
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...limits.options import Option
from ...limits.values import flag
from . import hours  # noqa: F401 - it registers itself
from .conf import settings
from .recorder import recorder
from .telemetry import telemetry

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
    from .core_pages import last_day_cells

    return last_day_cells(request, rules)


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    options = MappingProxyType({"durable": DURABLE})
    columns = (Column("last_day", gettext_lazy("last day"), _last_day_cells),)

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

    def on_message(self, words: Collection[bytes]) -> None:
        recorder.forget()

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        from .forget import forget

        return forget(digests)

    def sections(self, request: HttpRequest, name: str = "") -> Iterable[Section]:
        from .sections import sections

        return sections(request, name)

    def client(
        self, request: HttpRequest, digest: str, name: str = ""
    ) -> Mapping[str, ClientRecord]:
        from .core_pages import client_records

        return client_records(request, digest, name)
