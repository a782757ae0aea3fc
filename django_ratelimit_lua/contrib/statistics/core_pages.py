"""The statistics on pages and in commands of the core."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...exceptions import StoreError
from ...models import RateLimitRule
from ...operations.admin_urls import admin_url
from ...operations.explain import ExplainedLimit
from ...operations.formatting import (
    between_words,
    clients_words,
    count_words,
    moment_words,
    number_words,
    share_words,
)
from .keys import DAY, HOUR, MINUTE
from .reading import Span, add_up, known_names, last_hour_of, series, shadow_numbers
from .report import last_days, moment_of
from .results import FAILED
from .writing import why_unwritable

VIEW = "django_ratelimit_lua.view_ratelimitrule"
NOT_ALLOWED = ("refused", "blocked", "would_be_refused", "failed")


def limit_url(request: HttpRequest, name: str) -> str:
    """Return the URL of the page of a name; empty if the operator may not see it."""
    if not request.user.has_perm(VIEW):
        return ""
    page = admin_url(request, "ratelimit_statistics_statistics_one")
    return f"{page}?{urlencode({'name': name}, errors='replace')}"


def last_day_cells(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
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
            words = rehearsal(rule)
        if day.requests:
            spark = day.spark
            url = limit_url(request, name)
            if url:
                spark = format_html('<a href="{}">{}</a>', url, spark)
            text = '<div class="ratelimit-seen">{} {}</div>{}'
            cells[name] = format_html(text, spark, day.words(NOT_ALLOWED), words)
        elif words:
            cells[name] = format_html("{}", words)
    return cells


def rehearsal(rule: RateLimitRule) -> str:
    """Return the requests that this version of a rule has seen in shadow mode, in words."""
    try:
        numbers = shadow_numbers(rule.spec)
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


def history(met: ExplainedLimit) -> str:
    """Return the last hour of the client that a limit counts; empty if Redis is unavailable."""
    since = Span.last(HOUR, MINUTE).start
    try:
        used, refused = (
            last_hour_of(met.counted_as, met.charge.digest, what) for what in ("used", "refused")
        )
    except StoreError:
        return ""
    parts = []
    if used is not None:
        parts.append(_("units used: %(number)s") % {"number": between_words(*used)})
    if refused is not None:
        text = _("requests refused: %(number)s")
        if met.state is not None and met.state.mode == "shadow":
            text = _("requests that would be refused: %(number)s")
        parts.append(text % {"number": between_words(*refused)})
    if not parts:
        return _("Not among the clients that used most or were refused most in the last hour.")
    return _("Since %(moment)s: %(numbers)s") % {
        "moment": moment_words(moment_of(since)),
        "numbers": ", ".join(parts),
    }


def health_warnings() -> Iterator[str]:
    """Yield why statistics cannot be written, and the rules that could not be applied today.

    Raises:
        StoreError: Redis is unavailable.
    """
    error = why_unwritable()
    if error is not None:
        yield f"some statistics cannot be written: {error}"
    today = int(time.time()) // DAY * DAY
    counts = series(list(known_names()), Span(today, today + DAY, HOUR))
    for name, points in sorted(counts.items()):
        number = add_up(points)[FAILED]
        if number:
            requests = count_words(number, "request")
            yield f"rule {name!r} could not be applied to {requests} today; see the log"
