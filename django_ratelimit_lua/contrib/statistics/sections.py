"""The statistics on pages of the core: *Overview*, a limit, the list of limits, and a client."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import formats
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...admin.identities import client_links, readable_names, visible_name
from ...admin.limits import limit_url
from ...admin.pages import Context, may_see_rules
from ...conf import conf
from ...extension import ClientRecord, Section
from ...models import RateLimitRule
from ...models.rule import rules_database
from ...operations.formatting import breakable, moment_words, number_words
from ...operations.known_limits import place_words
from ...rules.rule import is_storable
from . import reading
from .clients import Estimate
from .counters import HOUR, SITE, TOP_HOURS, WAIT_BOUNDS, percentile_95
from .recorder import recorder
from .report import (
    GROUPS,
    PERIOD_NAMES,
    PERIODS,
    RESULT_NAMES,
    Column,
    Report,
    Timeline,
    describe_limit,
    draw_bars,
    find_spec,
    local_moment,
    read_limits,
    read_outages,
    read_stored_timeline,
    read_timelines,
    result_words,
    share_words,
    span_of,
)

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
NOT_ALLOWED = ("refused", "blocked", "would_be_refused", "failed")
MAX_NAMES = 500
"""Maximum number of limits to read lists of clients of: those that counted something last."""


def page_sections(request: HttpRequest, name: str) -> Iterator[Section]:
    """Yield the counts of a period, of the whole site or of one limit. See `Extension.sections`."""
    context = _limit_context(request, name) if name else _site_context(request)
    if not context:  # A name without a rule and without counts.
        return
    body = render_to_string("admin/ratelimit_statistics/report.html", context, request)
    yield Section(_("Requests"), body)


def _read_period(request: HttpRequest, periods: Collection[str]) -> str:
    """Return the period that the request selects, or the last day."""
    period = request.GET.get("period", "")
    return period if period in periods else "day"


def _site_context(request: HttpRequest) -> Context:
    """Return the context of the section on the page *Overview*."""
    # The database keeps no hours of the whole site.
    periods = [period for period in PERIODS if period != "year"]
    period = _read_period(request, periods)
    site = read_timelines([SITE], period)[SITE]
    used = [timeline for timeline in read_limits(period) if timeline.numbers["requests"]]
    return {
        **_timeline_context(request, site, periods),
        "notices": [*_notices(), *_outage_words()],
        "reports": [
            _limits_report(request, used[:MAX_ROWS], period),
            _clients_report(request, SITE, period, site.refusals),
            _clients_report(request, SITE, period, "used"),
            *_waits_reports(period),
            _steps_report(site),
        ],
    }


def _limit_context(request: HttpRequest, name: str) -> Context:
    """Return the context of the section on the page of a limit; empty for an unknown name."""
    row = _load_rules([name]).get(name)
    spec = find_spec(name, row)
    timeline = read_stored_timeline(name, _read_period(request, PERIODS))
    if not (spec or timeline.numbers or name in reading.read_names()):
        return {}
    notices = []
    if spec.get("mode") == "shadow":
        notices.append(rehearsal(spec))
    rule = row.name if row else ""
    return {
        **_timeline_context(request, timeline, PERIODS),
        "notices": notices,
        "reports": [
            _clients_report(request, name, timeline.period, timeline.refusals, rule),
            _clients_report(request, name, timeline.period, "used", rule),
            _steps_report(timeline),
        ],
    }


def _timeline_context(
    request: HttpRequest, timeline: Timeline, periods: Collection[str]
) -> Context:
    """Return the links of the periods, the figures and the chart of a timeline."""
    step_format = STEP_FORMATS[timeline.period]
    names = [formats.date_format(local_moment(step.moment), step_format) for step in timeline.steps]
    counts = [step.counts for step in timeline.steps]
    numbers = timeline.numbers
    p95 = percentile_95(reading.read_histogram(timeline.name, span_of(timeline.period)))
    hovers = [f"{name}, {result_words(step)}" for name, step in zip(names, counts, strict=True)]
    return {
        "period": timeline.period,
        "periods": [(key, PERIOD_NAMES[key], _build_query(request, key)) for key in periods],
        "tiles": [
            (_("requests"), number_words(numbers["requests"]), ""),
            (
                RESULT_NAMES[timeline.refusals],
                number_words(numbers[timeline.refusals]),
                "refused" if numbers["refused"] else "",
            ),
            (_("share of requests"), timeline.share_words, ""),
            (_("95th percentile decision time"), milliseconds_words(p95) if p95 else "—", ""),
            (_("decided by"), timeline.source_words or "—", "words"),
        ],
        "chart": draw_bars(counts, timeline.label, hovers),
        "most": number_words(max(step["requests"] for step in counts)),
        "axis": [names[0], names[len(names) // 2], names[-1]],
    }


def _build_query(request: HttpRequest, period: str) -> str:
    """Return the query of this page in another period."""
    return urlencode(request.GET.dict() | {"period": period}, errors="replace")


def _notices() -> Iterator[str]:
    """Yield the errors of writing, and the number of counts that were dropped."""
    if recorder.error is not None:
        yield _("Some statistics cannot be written: %s") % recorder.error
    number = reading.count_dropped()
    if number:
        text = _("Counts of the last 7 days that could not be written and are missing: %s")
        yield text % number_words(number)


def _outage_words() -> Iterator[str]:
    """Yield a sentence for each of the last outages, the latest first."""
    for outage in reversed(read_outages()[-MAX_OUTAGES:]):
        yield _("Decided without Redis from %(start)s to %(end)s: %(number)s decisions.") % {
            "start": moment_words(local_moment(outage.start)),
            "end": moment_words(local_moment(outage.end)),
            "number": number_words(outage.decisions),
        }


def _limits_report(request: HttpRequest, timelines: Iterable[Timeline], period: str) -> Report:
    """Return the table of the limits, with a small chart of each."""
    rules = _load_rules(timeline.name for timeline in timelines)
    return Report(
        _("Limits that refuse most"),
        [
            Column(_("name")),
            Column(PERIOD_NAMES[period], "spark"),
            Column(_("requests"), "number"),
            Column(_("refused"), "number"),
            Column(_("share of requests"), "number"),
        ],
        [_limit_row(request, timeline, rules.get(timeline.name)) for timeline in timelines],
        PERIOD_NAMES[period],
        _("A request with three limits counts in three rows, and once for the whole site."),
    )


def _load_rules(names: Iterable[str]) -> dict[str, RateLimitRule]:
    stored = RateLimitRule.objects.using(rules_database())
    writable = [name for name in names if is_storable(name)]
    return stored.in_bulk(writable, field_name="name")


def _limit_row(request: HttpRequest, timeline: Timeline, row: RateLimitRule | None) -> list[Any]:
    """Return the row of a limit; `row` is its rule in the database, if it has one."""
    numbers = timeline.numbers
    refused = number_words(numbers["refused"])
    if numbers["refused"]:
        refused = format_html('<strong class="refused">{}</strong>', refused)
    others = result_words(numbers, [word for word in RESULT_NAMES if word not in ORDINARY])
    return [
        format_html(
            '{}<div class="help">{}</div>',
            limit_link(request, timeline.name),
            breakable(describe_limit(timeline.name, row)),
        ),
        timeline.spark,
        number_words(numbers["requests"]),
        format_html('{}<div class="would">{}</div>', refused, others),
        timeline.share_words,
    ]


def _steps_report(timeline: Timeline) -> Report:
    """Return the numbers of the chart, the latest first."""
    words = [word for word in RESULT_NAMES if timeline.numbers[word]]
    step_format = STEP_FORMATS[timeline.period]
    return Report(
        _("Requests"),
        [
            Column(_("from")),
            *[Column(RESULT_NAMES[word], "number") for word in words],
        ],
        [
            [
                formats.date_format(local_moment(moment), step_format),
                *[number_words(counts[word]) for word in words],
            ]
            for moment, counts in reversed(timeline.steps)
            if counts["requests"]
        ],
        PERIOD_NAMES[timeline.period],
        is_closed=True,
    )


def _waits_reports(period: str) -> Iterator[Report]:
    """Yield how long requests waited, if the application knows it."""
    histogram = reading.read_histogram(SITE, span_of(period), b"waits:%d")
    bounds = [*(f"≤ {milliseconds_words(bound)}" for bound in WAIT_BOUNDS), _("longer")]
    rows = [[bounds[bucket], number_words(histogram[bucket])] for bucket in sorted(histogram)]
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
    # A client whose count may be zero is noise of the estimates.
    estimates = reading.read_top_clients(name, hours, column)
    clients = [estimate for estimate in estimates if estimate.bounds[0] > 0][:MAX_ROWS]
    since = moment_words(local_moment(hours[0] * HOUR))
    return Report(
        CLIENT_TITLES[what],
        [
            Column(_("client")),
            Column(RESULT_NAMES.get(what, _("units")), "number"),
            Column(_("actions"), "acts"),
        ],
        _client_rows(request, clients, name, rule),
        _("since %(moment)s") % {"moment": since},
        _client_note(request, any(client.error for client in clients), what),
    )


def _client_rows(
    request: HttpRequest, clients: Sequence[Estimate], name: str, rule: str
) -> list[list[Any]]:
    """Return a row for each client: its name, its estimated count, and links to actions."""
    labels = [visible_name(request, client.name) for client in clients]
    named = [(client.digest, label) for client, label in zip(clients, labels, strict=True)]
    links = client_links(request, named, name, rule)
    rows = []
    for client, label, link in zip(clients, readable_names(labels), links, strict=True):
        context = {"name": label, "links": link}
        words, actions = (
            render_to_string(f"admin/django_ratelimit_lua/client_{part}.html", context, request)
            for part in ("name", "acts")
        )
        rows.append([words, between_words(*client.bounds), actions])
    return rows


def _client_note(request: HttpRequest, has_errors: bool, what: str) -> str:
    """Return the explanation below a list of clients."""
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


def limit_link(request: HttpRequest, name: str) -> SafeString:
    """Return a link to the page of a limit, with the name of the limit."""
    # Blocks without a rule, and names beyond the maximum, are no limits.
    if name in GROUPS:
        return format_html("{}", GROUPS[name])
    return format_html(
        '<a href="{}">{}</a>', limit_url(request, name), breakable(place_words(name))
    )


def last_day_cells(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
) -> dict[str, SafeString]:
    """Return the cells of the column "last day", for each name that was counted.

    A cell contains a chart that links to the page of the name, and the requests that were not
    allowed.
    """
    return {
        name: format_html(
            '<div class="ratelimit-seen"><a href="{}">{}</a> {}</div>',
            limit_url(request, name),
            timeline.spark or _("Statistics"),
            result_words(timeline.numbers, NOT_ALLOWED),
        )
        for name, timeline in read_timelines(list(rules), "day").items()
        if timeline.numbers
    }


def rehearsal(spec: Mapping[str, object]) -> str:
    """Return the requests that this version of a rule has seen in shadow mode, in words.

    Raises:
        StoreError: Redis is unavailable.
    """
    numbers = reading.read_shadow_numbers(spec)
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


def client_records(request: HttpRequest, digest: str, name: str) -> dict[str, ClientRecord]:
    """Return the limits under which clients were among the top clients of the last 24 hours.

    See `Extension.client`.
    """
    now = int(time.time()) // HOUR
    hours = range(now - TOP_HOURS + 1, now + 1)
    headings = [_("limit"), _("refused"), _("units used")]
    records: dict[str, ClientRecord] = {}
    for limit in [name] if name else _read_recent_names(now - TOP_HOURS):
        lists = reading.read_client_lists(limit, hours)
        if not any(f'["{digest}'.encode() in text for text in lists):
            continue  # Parsing all lists would take much longer.
        refused = {client.digest: client for client in reading.merge_client_lists(lists, "refused")}
        used = {client.digest: client for client in reading.merge_client_lists(lists, "used")}
        for client in sorted({*refused, *used}):
            if client.startswith(digest):
                label = (refused.get(client) or used[client]).name
                empty = ClientRecord(label, _("The last 24 hours"), headings, [])
                row = _client_row(request, limit, refused.get(client), used.get(client))
                records.setdefault(client, empty).rows.append(row)
    return records


def _read_recent_names(hour: int) -> list[str]:
    """Return the names that were counted after an hour, the latest first, within a bound."""
    names = sorted(reading.read_names().items(), key=lambda pair: -pair[1])
    return [name for name, at in names if at // HOUR > hour][:MAX_NAMES]


def _client_row(
    request: HttpRequest, name: str, refused: Estimate | None, used: Estimate | None
) -> list[Any]:
    """Return the counts of a client under one limit, see `client_records`."""
    if may_see_rules(request):
        link: str = limit_link(request, name)
    else:
        link = str(GROUPS.get(name) or place_words(name))
    refused_words = between_words(*refused.bounds) if refused else "—"
    if refused and read_timelines([name], "day")[name].refusals == "would_be_refused":
        refused_words = f"{RESULT_NAMES['would_be_refused']}: {refused_words}"
    return [link, refused_words, between_words(*used.bounds) if used else "—"]


def clients_words(number: int) -> str:
    """Return an approximate number of clients, in words.

    >>> clients_words(1), clients_words(2)
    ('about 1 client', 'about 2 clients')
    """
    return ngettext("about %(number)s client", "about %(number)s clients", number) % {
        "number": number_words(number)
    }


def between_words(minimum: int, maximum: int) -> str:
    """Return a number with its error from its bounds: "38 ± 2".

    >>> between_words(38, 38), between_words(36, 40)
    ('38', '38 ± 2')
    """
    error = -(-(maximum - minimum) // 2)
    if not error:
        return number_words(maximum)
    return f"{number_words(maximum - error)} ± {number_words(error)}"


def milliseconds_words(seconds: float) -> str:
    """Return the time of a decision, as the upper bound of its bucket."""
    return _("%(number)s ms") % {"number": formats.number_format(f"{seconds * 1000:g}")}
