"""The statistics on the page *Overview*, and on the page of a limit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import formats
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.identities import client_links, readable_parts, visible_name
from ...admin.pages import Context
from ...conf import conf
from ...extension import Section
from ...models import RateLimitRule
from ...models.rule import rules_database
from ...operations.formatting import (
    between_words,
    breakable,
    milliseconds_words,
    moment_words,
    number_words,
)
from ...rules.rule import is_unwritable
from . import reading
from .charts import draw
from .core_pages import limit_link, rehearsal
from .keys import HOUR, SITE
from .recorder import recorder
from .report import (
    PERIOD_NAMES,
    PERIODS,
    RESULT_NAMES,
    Column,
    Course,
    Report,
    course_with_stored_hours,
    courses,
    described,
    limits,
    moment_of,
    outages,
    result_words,
    span_of,
    spec_of,
)
from .results import WAIT_BOUNDS, percentile_95

# Translators: formats of Django's date filter
STEP_FORMATS: dict[str, Any] = {
    "hour": "H:i",
    "day": "H:i",
    "week": gettext_lazy("D j M, H:i"),
    "90d": gettext_lazy("D j M"),
    "year": gettext_lazy("j M Y"),
}
"""The date format of the steps of each period."""
CLIENT_TITLES: dict[str, Any] = {
    "refused": gettext_lazy("Clients refused most"),
    "would_be_refused": gettext_lazy("Clients that would be refused most"),
    "used": gettext_lazy("Clients that used most"),
}
MAX_ROWS = 10
"""Limits and clients of a list."""
MAX_OUTAGES = 5
ORDINARY = ("requests", "refused", "allowed", "exempt", "policy")
"""Results that the list of limits does not mention separately."""


def sections(request: HttpRequest, name: str) -> Iterator[Section]:
    """Yield the counts of a period, of the whole site or of one limit. See `Extension.sections`."""
    context = _limit_context(request, name) if name else _site_context(request)
    if not context:
        return
    body = render_to_string("admin/ratelimit_statistics/report.html", context, request)
    yield Section(_("Requests"), body)


def _period(request: HttpRequest, periods: Collection[str]) -> str:
    period = request.GET.get("period", "")
    return period if period in periods else "day"


def _site_context(request: HttpRequest) -> Context:
    periods = [*PERIODS][:-1]  # Of the whole site, the database keeps no hours.
    period = _period(request, periods)
    site = courses([SITE], period)[SITE]
    most = [course for course in limits(period) if course.numbers["requests"]][:MAX_ROWS]
    return {
        **_course_context(request, site, periods),
        "notices": [*_notices(), *_outage_words()],
        "reports": [
            _limits_report(request, most, period),
            _clients_report(request, SITE, period, site.refusals),
            _clients_report(request, SITE, period, "used"),
            *_waits_reports(period),
            _steps_report(site),
        ],
    }


def _limit_context(request: HttpRequest, name: str) -> Context:
    row = _rules([name]).get(name)
    spec = spec_of(name, row)
    course = course_with_stored_hours(name, _period(request, PERIODS))
    if not (spec or course.numbers or name in reading.known_names()):
        return {}
    notices = []
    if spec.get("mode") == "shadow":
        notices.append(rehearsal(spec))
    rule = row.name if row else ""
    return {
        **_course_context(request, course, PERIODS),
        "notices": notices,
        "reports": [
            _clients_report(request, name, course.period, course.refusals, rule),
            _clients_report(request, name, course.period, "used", rule),
            _steps_report(course),
        ],
    }


def _course_context(request: HttpRequest, course: Course, periods: Collection[str]) -> Context:
    """Return the links of the periods, the figures and the chart of a course."""
    step_format = STEP_FORMATS[course.period]
    names = [formats.date_format(moment_of(step.moment), step_format) for step in course.steps]
    counts = [step.counts for step in course.steps]
    numbers = course.numbers
    p95 = percentile_95(reading.times(course.name, span_of(course.period)))
    hovers = [f"{name}, {result_words(each)}" for name, each in zip(names, counts, strict=True)]
    label = f"{PERIOD_NAMES[course.period]}, {result_words(numbers)}"
    return {
        "period": course.period,
        "periods": [(key, PERIOD_NAMES[key], _query(request, key)) for key in periods],
        "tiles": [
            (_("requests"), number_words(numbers["requests"]), ""),
            (
                RESULT_NAMES[course.refusals],
                number_words(numbers[course.refusals]),
                "refused" if numbers["refused"] else "",
            ),
            (_("share of requests"), course.share_words, ""),
            (_("95th percentile decision time"), milliseconds_words(p95) if p95 else "—", ""),
            (_("decided by"), course.source_words or "—", "words"),
        ],
        "chart": draw(counts, label, hovers),
        "most": number_words(max(each["requests"] for each in counts)),
        "axis": [names[0], names[len(names) // 2], names[-1]],
    }


def _query(request: HttpRequest, period: str) -> str:
    """Return the query of this page in another period."""
    return urlencode(request.GET.dict() | {"period": period}, errors="replace")


def _notices() -> Iterator[str]:
    if recorder.error is not None:
        yield _("Some statistics cannot be written: %s") % recorder.error
    number = reading.dropped()
    if number:
        text = _("Counts of the last 7 days that could not be written and are missing: %s")
        yield text % number_words(number)


def _outage_words() -> Iterator[str]:
    for outage in reversed(outages()[-MAX_OUTAGES:]):
        yield _("Decided without Redis from %(start)s to %(end)s: %(number)s decisions.") % {
            "start": moment_words(moment_of(outage.start)),
            "end": moment_words(moment_of(outage.end)),
            "number": number_words(outage.decisions),
        }


def _limits_report(request: HttpRequest, found: Iterable[Course], period: str) -> Report:
    rules = _rules(course.name for course in found)
    return Report(
        _("Limits that refuse most"),
        [
            Column(_("name")),
            Column(PERIOD_NAMES[period], "spark"),
            Column(_("requests"), "number"),
            Column(_("refused"), "number"),
            Column(_("share of requests"), "number"),
        ],
        [_limit_row(request, course, rules.get(course.name)) for course in found],
        PERIOD_NAMES[period],
        _("A request with three limits counts in three rows, and once for the whole site."),
    )


def _rules(names: Iterable[str]) -> dict[str, RateLimitRule]:
    stored = RateLimitRule.objects.using(rules_database())
    writable = [name for name in names if not is_unwritable(name)]
    return stored.in_bulk(writable, field_name="name")


def _limit_row(request: HttpRequest, course: Course, row: RateLimitRule | None) -> list[Any]:
    numbers = course.numbers
    refused = number_words(numbers["refused"])
    if numbers["refused"]:
        refused = format_html('<strong class="refused">{}</strong>', refused)
    others = result_words(numbers, [word for word in RESULT_NAMES if word not in ORDINARY])
    return [
        format_html(
            '{}<div class="help">{}</div>',
            limit_link(request, course.name),
            breakable(described(course.name, row)),
        ),
        course.spark,
        number_words(numbers["requests"]),
        format_html('{}<div class="would">{}</div>', refused, others),
        course.share_words,
    ]


def _steps_report(course: Course) -> Report:
    """Return the numbers of the chart, the latest first."""
    words = [word for word in RESULT_NAMES if course.numbers[word]]
    step_format = STEP_FORMATS[course.period]
    return Report(
        _("Requests"),
        [
            Column(_("from")),
            *[Column(RESULT_NAMES[word], "number") for word in words],
        ],
        [
            [
                formats.date_format(moment_of(moment), step_format),
                *[number_words(counts[word]) for word in words],
            ]
            for moment, counts in reversed(course.steps)
            if counts["requests"]
        ],
        PERIOD_NAMES[course.period],
        is_closed=True,
    )


def _waits_reports(period: str) -> Iterator[Report]:
    """Yield how long requests waited, if the application knows it."""
    numbers = reading.times(SITE, span_of(period), b"waits:%d")
    bounds = [*(f"≤ {milliseconds_words(bound)}" for bound in WAIT_BOUNDS), _("longer")]
    rows = [[bounds[bucket], number_words(numbers[bucket])] for bucket in sorted(numbers)]
    if rows:
        columns = [Column(_("waited")), Column(_("requests"), "number")]
        yield Report(_("Waiting time of requests"), columns, rows, PERIOD_NAMES[period])


def _clients_report(
    request: HttpRequest, name: str, period: str, what: str, rule: str = ""
) -> Report:
    """Return the top clients of a limit or of the whole site, with the links of each.

    Args:
        request: The request of the page.
        name: The limit; `SITE`: all of them.
        period: The period of the page.
        what: One of `CLIENT_TITLES`.
        rule: The name of its rule, if it has one.
    """
    column = "used" if what == "used" else "refused"
    # Longer periods end with their current step, which is after now.
    hours = span_of("hour" if period == "hour" else "day").parts(HOUR)
    # A client that may not have come at all is noise of the estimates.
    clients = [each for each in reading.top(name, hours, column) if each.times > each.error]
    clients = clients[:MAX_ROWS]
    labels = [visible_name(request, client.name) for client in clients]
    named = [(client.digest, label) for client, label in zip(clients, labels, strict=True)]
    links = client_links(request, named, name, rule)
    rows = []
    for client, parts, link in zip(clients, readable_parts(request, labels), links, strict=True):
        context = {"parts": parts, "links": link}
        words, acts = (
            render_to_string(f"admin/django_ratelimit_lua/client_{part}.html", context, request)
            for part in ("name", "acts")
        )
        rows.append([words, between_words(*client.bounds), acts])
    since = moment_words(moment_of(hours[0] * HOUR))
    return Report(
        CLIENT_TITLES[what],
        [
            Column(_("client")),
            Column(RESULT_NAMES.get(what, _("units")), "number"),
            Column(_("actions"), "acts"),
        ],
        rows,
        _("since %(moment)s") % {"moment": since},
        _client_note(request, any(client.error for client in clients), what),
    )


def _client_note(request: HttpRequest, has_errors: bool, what: str) -> str:
    notes = []
    if has_errors:
        notes.append(_("“38 ± 2” means between 36 and 40."))
    if what == "used":  # The list above has the other notes.
        return "".join(notes)
    if not request.user.has_perm("django_ratelimit_lua.view_identities"):
        notes.append(
            _(
                "To see the names of clients, you need the permission “May see the names of "
                "clients”."
            )
        )
    elif conf.SHOW_IDENTITIES == "masked":
        notes.append(
            _(
                "Addresses are shown as networks (/24, /56), but each row is one client, and its "
                "actions apply only to that client."
            )
        )
    return " ".join(notes)
