"""The extension: the statistics on the pages of the core, in its commands and its hooks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.pages import VIEW_RULES
from ...engine.decide import PlannedCharge
from ...exceptions import StoreError
from ...extension import Column, Extension
from ...identity.request_state import RequestState
from ...limits.decision import Decision
from ...models import RateLimitRule
from ...operations.explain import ExplainedLimit
from ...operations.formatting import (
    between_words,
    clients_words,
    moment_words,
    number_words,
    share_words,
)
from .conf import settings
from .forget import forget
from .hours import look, outdated_hours
from .keys import DAY, HOUR
from .reading import Span, history, known_names, shadow_numbers, totals_of
from .recorder import recorder
from .report import last_days, moment_of
from .results import FAILED
from .rule_field import DURABLE
from .telemetry import telemetry
from .writing import why_unwritable

_NOT_LET_GO = ("refused", "blocked", "would_be_refused", "failed")


def last_day_cells(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
) -> dict[str, SafeString]:
    """Return the last day of each name that was counted.

    A cell has a drawing that leads to the page of the name, and the requests that were not allowed;
    for a rule in shadow mode, also those that it would have refused.
    """
    cells = {}
    for name, day in last_days(list(rules)).items():
        rule = rules[name]
        words = ""
        if rule is not None and rule.mode == "shadow":
            words = extension.rehearsal(rule)
        if day.requests:
            spark = day.spark
            url = extension.limit_url(request, name)
            if url:
                spark = format_html('<a href="{}">{}</a>', url, spark)
            counts = day.words(_NOT_LET_GO)
            text = '<div class="ratelimit-seen">{} {}</div>{}'
            cells[name] = format_html(text, spark, counts, words)
        elif words:
            cells[name] = format_html("{}", words)
    return cells


class StatisticsExtension(Extension):
    """Counts decisions, and adds statistics to the pages and commands of the core."""

    name = "statistics"
    rule_fields = (DURABLE,)
    columns = (Column("last_day", gettext_lazy("last day"), last_day_cells),)
    tasks = MappingProxyType(
        {
            "hours": "writes statistics that are to be kept to the database, every five minutes "
            "until nothing is new"
        }
    )
    verbs = ("django_ratelimit_lua.contrib.statistics.verbs.stats",)

    def links(self, request: HttpRequest, rule: RateLimitRule) -> Iterator[tuple[str, str]]:
        url = self.limit_url(request, rule.name)
        if url:
            yield _("Statistics"), url

    def limit_url(self, request: HttpRequest, name: str) -> str:
        if not request.user.has_perm(VIEW_RULES):
            return ""
        query = urlencode({"name": name}, errors="replace")
        return f"{reverse('admin:ratelimit_statistics_statistics_one')}?{query}"

    def rehearsal(self, rule: RateLimitRule) -> str:
        try:
            numbers = shadow_numbers(rule.declared())
        except StoreError:
            return _("Redis is unavailable: what the rule would have refused is not known.")
        if not numbers.seen:
            return _("This version of the rule has seen no request in shadow mode yet.")
        return _(
            "Seen: %(seen)s requests, from %(clients)s. Would have refused: %(refused)s "
            "(%(share)s), from %(refused_clients)s."
        ) % {
            "seen": number_words(numbers.seen),
            "clients": clients_words(numbers.people),
            "refused": number_words(numbers.refused),
            "share": share_words(numbers.refused / numbers.seen),
            "refused_clients": clients_words(numbers.refused_people),
        }

    def history(self, met: ExplainedLimit) -> str:
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

    def health(self) -> Iterator[str]:
        error = why_unwritable()
        if error is not None:
            yield f"statistics cannot be written, or not all: {error}"
        today = int(time.time()) // DAY * DAY
        totals = totals_of(list(known_names()), Span(today, today + DAY, HOUR))
        for name, total in sorted(totals.items()):
            number = total.counts[FAILED]
            if number:
                requests = f"{number} request{'s' * (number > 1)}"
                yield f"rule {name!r} could not be applied to {requests} today; see the log"

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

    def outdated(self, using: str, before: datetime) -> Mapping[str, Any]:
        return {"hours of statistics": outdated_hours(using, before)}


extension = StatisticsExtension()
