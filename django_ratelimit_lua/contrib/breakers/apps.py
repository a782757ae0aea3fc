"""The Django application `django_ratelimit_lua.contrib.breakers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from django.apps import AppConfig
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...extension import Document, Extension, Finding, HomeSection, Metric, register
from ...rules.stacks import Mark
from .circuits import circuits
from .exceptions import CircuitOpen
from .gauges import METRICS
from .responses import ReducedCapacity
from .rows import BreakerRow, read_rows


class BreakersExtension(Extension):
    """The hooks of the optional app `breakers`."""

    name = "breakers"
    verbs = ("django_ratelimit_lua.contrib.breakers.verbs.breakers",)

    @property
    def documents(self) -> Sequence[Document]:  # type: ignore[override]
        from .document import DOCUMENT

        return (DOCUMENT,)

    def snapshot(self, using: str) -> list[dict[str, object]]:
        from .models import RateLimitBreaker

        return [row.published() for row in RateLimitBreaker.objects.using(using)]

    def load(
        self,
        part: Iterable[Mapping[str, object]] | None,
        before: Mapping[str, BreakerRow] | None,
        problems: list[str],
    ) -> Mapping[str, BreakerRow]:
        return read_rows(part or (), problems)

    def on_message(self, words: Collection[bytes]) -> None:
        circuits.heard(words)

    def on_gap(self) -> None:
        circuits.doubt()

    def is_urgent(self) -> bool:
        return circuits.in_use()  # An operator may have forced one of them.

    def inspect(self, marks: Sequence[Mark], has_handler: bool) -> Iterable[Finding]:
        from .inspection import inspect

        return inspect(marks, has_handler)

    def error_details(self, error: Exception) -> ReducedCapacity | None:
        if isinstance(error, CircuitOpen):
            return ReducedCapacity(error)
        return None

    def home(self, request: HttpRequest) -> Iterable[HomeSection]:
        from .home import sections

        return sections(request)

    def metrics(self) -> Iterable[Metric]:
        return METRICS


class BreakersConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.breakers"
    label = "ratelimit_breakers"
    verbose_name = _("Rate limits: circuit breakers")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401

        register(BreakersExtension())
