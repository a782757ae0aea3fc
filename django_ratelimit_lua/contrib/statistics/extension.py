"""The hooks of the optional app `statistics`: counting, and pages and commands of the core."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...engine.decide import PlannedCharge
from ...exceptions import StoreError
from ...extension import ClientRecord, Column, Extension, HomeSection
from ...identity.names import name_words
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...models import RateLimitRule
from ...operations.explain import ExplainedLimit
from ...operations.formatting import (
    between_words,
    clients_words,
    count_words,
    moment_element,
    moment_words,
    number_words,
    share_words,
)
from . import checks  # noqa: F401 - registers itself
from .clients import HourOfClient, hours_of_clients
from .conf import settings
from .forget import forget
from .hours import look, outdated_hours
from .keys import DAY, HOUR
from .reading import Span, history, known_names, shadow_numbers, totals_of
from .recorder import recorder
from .report import last_days, moment_of
from .results import FAILED
from .rule_field import DURABLE
from .space_saving import Estimate
from .telemetry import telemetry
from .writing import why_unwritable

VIEW = "django_ratelimit_lua.view_ratelimitrule"
MAX_ROWS = 50
_NOT_LET_GO = ("refused", "blocked", "would_be_refused", "failed")


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    rule_fields = (DURABLE,)
    tasks = MappingProxyType(
        {
            "hours": "writes durable statistics to the database, every five minutes while there "
            "are new ones"
        }
    )
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def __init__(self) -> None:
        self.columns = (Column("last_day", gettext_lazy("last day"), self._last_day_cells),)

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
        look()

    def outdated(self, using: str, before: datetime) -> Mapping[str, QuerySet[Model]]:
        return {"hours of statistics": outdated_hours(using, before)}

    def links(self, request: HttpRequest, rule: RateLimitRule) -> Iterator[tuple[str, str]]:
        url = self.limit_url(request, rule.name)
        if url:
            yield _("Statistics"), url

    def home(self, request: HttpRequest) -> Iterable[HomeSection]:
        from .home import sections  # It registers the pages in the admin.

        return sections(request)

    def limit_url(self, request: HttpRequest, name: str) -> str:
        """Return the URL of the page of a name; empty if the operator may not see it."""
        if not request.user.has_perm(VIEW):
            return ""
        query = urlencode({"name": name}, errors="replace")
        return f"{reverse('admin:ratelimit_statistics_statistics_one')}?{query}"

    def _last_day_cells(
        self, request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
    ) -> dict[str, SafeString]:
        """Return the cells of the column "last day", for each name that was counted.

        A cell contains a plot that links to the page of the name, and the requests that were not
        allowed; for a rule in shadow mode, also those that it would have refused.
        """
        cells = {}
        for name, day in last_days(list(rules)).items():
            rule = rules[name]
            words = ""
            if rule is not None and rule.mode == "shadow":
                words = self.rehearsal(rule)
            if day.requests:
                spark = day.spark
                url = self.limit_url(request, name)
                if url:
                    spark = format_html('<a href="{}">{}</a>', url, spark)
                counts = day.words(_NOT_LET_GO)
                text = '<div class="ratelimit-seen">{} {}</div>{}'
                cells[name] = format_html(text, spark, counts, words)
            elif words:
                cells[name] = format_html("{}", words)
        return cells

    def rehearsal(self, rule: RateLimitRule) -> str:
        """Return the requests that this version of a rule has seen in shadow mode, in words."""
        try:
            numbers = shadow_numbers(rule.declared())
        except StoreError:
            return _("Redis is unavailable: the count of refusals is unknown.")
        if not numbers.seen:
            return _("This version of the rule has seen no request in shadow mode yet.")
        return _(
            "This version of the rule has seen %(seen)s requests, from %(clients)s. Would have "
            "refused: %(refused)s (%(share)s), from %(refused_clients)s."
        ) % {
            "seen": number_words(numbers.seen),
            "clients": clients_words(numbers.people),
            "refused": number_words(numbers.refused),
            "share": share_words(numbers.refused / numbers.seen),
            "refused_clients": clients_words(numbers.refused_people),
        }

    def history(self, met: ExplainedLimit) -> str:
        """Return the last hour of the client that a limit counts; empty if Redis is unavailable."""
        try:
            found = history(met.counted_as, met.charge.digest)
        except StoreError:
            return ""
        parts = []
        if found.used is not None:
            parts.append(_("units used: %(number)s") % {"number": between_words(*found.used)})
        if found.refused is not None:
            text = _("requests refused: %(number)s")
            if met.state is not None and met.state.mode == "shadow":
                text = _("requests that would be refused: %(number)s")
            parts.append(text % {"number": between_words(*found.refused)})
        if not parts:
            return _("Not among the clients that used most or were refused most in the last hour.")
        return _("Since %(moment)s: %(numbers)s") % {
            "moment": moment_words(moment_of(found.since)),
            "numbers": ", ".join(parts),
        }

    def client(
        self, request: HttpRequest, digest: str, name: str = ""
    ) -> Mapping[str, ClientRecord]:
        """Return the hours in which clients were refused most or used most, by digest."""
        found: dict[str, list[HourOfClient]] = {}
        for hour in hours_of_clients(digest, [name] if name else []):
            hours = found.setdefault(hour.digest, [])
            if len(hours) < MAX_ROWS:
                hours.append(hour)
        names = {hour.name for hours in found.values() for hour in hours}
        shadow = RateLimitRule.objects.filter(name__in=names, mode="shadow")
        rehearsing = set(shadow.values_list("name", flat=True))
        return {
            digest: ClientRecord(
                next((one.name for hour in hours for one in hour[3:] if one and one.name), []),
                _("The last 24 hours"),
                [_("limit"), _("hour"), _("refused"), _("units used")],
                [
                    self._hour_row(request, hour, is_shadow=hour.name in rehearsing)
                    for hour in hours
                ],
            )
            for digest, hours in found.items()
        }

    def _hour_row(self, request: HttpRequest, hour: HourOfClient, *, is_shadow: bool) -> list[Any]:
        url = self.limit_url(request, hour.name)
        label: Any = name_words(hour.name)
        if url:
            label = format_html('<a href="{}">{}</a>', url, label)
        if is_shadow:
            label = format_html("{} ({})", label, _("shadow mode"))
        return [label, moment_element(moment_of(hour.moment)), *map(_times_words, hour[3:])]

    def health(self) -> Iterator[str]:
        """Yield why statistics cannot be written, and the rules that could not be applied today.

        Raises:
            StoreError: Redis is unavailable.
        """
        error = why_unwritable()
        if error is not None:
            yield f"some statistics cannot be written: {error}"
        today = int(time.time()) // DAY * DAY
        totals = totals_of(list(known_names()), Span(today, today + DAY, HOUR))
        for name, total in sorted(totals.items()):
            number = total.counts[FAILED]
            if number:
                requests = count_words(number, "request")
                yield f"rule {name!r} could not be applied to {requests} today; see the log"


def _times_words(client: Estimate | None) -> str:
    if client is None:
        return "—"
    return between_words(max(0, client.times - client.error), client.times)
