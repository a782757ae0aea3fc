"""The hooks of the optional app `breakers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from ...extension import Extension, Finding, HomeSection, Metric
from ...rules.stacks import Mark
from . import checks  # noqa: F401 - registers itself
from .circuits import circuits
from .document import DOCUMENT
from .exceptions import CircuitOpen
from .gauges import METRICS
from .inspection import SEE, inspect
from .models import RateLimitBreaker
from .operations import breakers
from .responses import ReducedCapacity
from .rows import BreakerRow, read_rows


class BreakersExtension(Extension):
    """The hooks of the optional app `breakers`."""

    name = "breakers"
    verbs = ("django_ratelimit_lua.contrib.breakers.verbs.breakers",)
    documents = (DOCUMENT,)

    def snapshot(self, using: str) -> list[dict[str, object]]:
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
        return inspect(marks, has_handler)

    def error_details(self, error: Exception) -> ReducedCapacity | None:
        if isinstance(error, CircuitOpen):
            return ReducedCapacity(error)
        return None

    def home(self, request: HttpRequest) -> Iterator[HomeSection]:
        """Yield a section with the breakers that are not closed, if the user may see breakers."""
        from ...operations.admin_urls import admin_url

        if not any(map(request.user.has_perm, SEE)):
            return
        page = admin_url(request, "ratelimit_breakers_breaker")
        rows = [
            (f"{page}?{urlencode({'name': one.name})}", one.name, one.forced_words or one.words)
            for one in breakers()
            if one.forced or one.state not in ("closed", None)
        ]
        if rows:
            items = format_html_join("", '<li><a href="{}">{}</a>: {}</li>', rows)
            body = format_html('<ul class="ratelimit-last">{}</ul>', items)
            yield HomeSection(_("Breakers that are not closed"), body, is_problem=True)

    def metrics(self) -> Iterable[Metric]:
        return METRICS
