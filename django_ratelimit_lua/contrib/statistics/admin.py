"""The pages of the statistics: an overview of all limits, and a page for each; also as JSON."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils import formats
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.client_links import client_links
from ...admin.curves import curve_context
from ...admin.identities import WHO, readable_parts
from ...admin.pages import VIEW_RULES, Page, page_response, register_page
from ...conf import conf
from ...exceptions import StoreError
from ...extension import HomeSection
from ...identity.names import name_words
from ...limits.rate import Rate
from ...operations.admin_urls import admin_url
from ...operations.call_sites import call_sites_of
from ...operations.curve import Curve
from ...operations.formatting import (
    between_words,
    clients_words,
    moment_words,
    readable,
)
from ...operations.health import Health, health
from ...operations.plot import Plot, labels, largest, ticks
from .reading import known_names
from .report import (
    OVERVIEW_PERIODS,
    PERIOD_NAMES,
    PERIODS,
    RESULT_NAMES,
    SORTS,
    Counts,
    Encoder,
    Overview,
    Point,
    Report,
    named,
    one,
    overview,
    why_uncounted,
)
from .space_saving import Estimate

APP = "django_ratelimit_lua"
COUNTS = tuple(one.name for one in fields(Counts))
# Translators: formats of Django's date filter
STEP_FORMATS: dict[str, tuple[Any, int, Any]] = {
    "hour": ("H:i", 10, "H:i"),
    "day": ("H:i", 6, "H:i"),
    "week": (gettext_lazy("D j M, H:i"), 8, gettext_lazy("D j")),
    "90d": (gettext_lazy("D j M"), 14, gettext_lazy("j M")),
}
"""The date format of the steps of each period, and every how many of them the axis has a label, in
another format.
"""
CSV_COLUMNS = ("name", "kind", "mode", *COUNTS, "people_refused")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""How texts begin that a spreadsheet takes for formulas."""
COLUMNS = {
    "name": gettext_lazy("name"),
    "now": gettext_lazy("now, per minute"),
    "requests": gettext_lazy("requests"),
    "refused": gettext_lazy("refused"),
    "share": gettext_lazy("share refused"),
    "people": gettext_lazy("clients refused"),
    "p95": gettext_lazy("95th percentile decision time"),
}
OTHERS = {
    "changes": gettext_lazy("changes"),
    "overrides": gettext_lazy("overrides"),
    "tiers": gettext_lazy("tiers"),
    "periods": gettext_lazy("limits for other periods"),
}
"""Why a curve differs from the refusals."""
HEALTH = ("ok", "seconds", "error", "revision", "is_paused", "problems")
"""The overview's part about `Health`."""
FORM_WORDS = {"settings": "settings", "code": "instead"}
"""How the form of a new rule names the limit that it replaces, by kind."""
MAX_TITLE_LENGTH = 120
MAX_HOME_ROWS = 5
"""Limits that the page of the core's app lists."""


class StatisticsPages(Page):
    """The overview and the page of one name, at the URLs where the admin expects a model's."""

    class Media:
        """The style sheet, and the scripts that refresh the page and move along curves."""

        css = {"all": ("ratelimit_statistics/statistics.css",)}  # noqa: RUF012 - Django's way
        js = ("django_ratelimit_lua/refresh.js", "django_ratelimit_lua/curve.js")

    @staticmethod
    def may_see(request: HttpRequest) -> bool:
        return bool(request.user.has_perm(VIEW_RULES))

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of the overview and of one name.

        The name is in the query, because names may contain slashes.
        """
        one_view = self.admin_site.admin_view(self.one_view)
        name = "ratelimit_statistics_statistics_one"
        return [*super().get_urls(), path("one/", one_view, name=name)]

    def view(self, request: HttpRequest) -> HttpResponse:
        """Show all rules and call sites."""
        state = health()
        shown = {name: getattr(state, name) for name in HEALTH} | {"statistics": None}
        query = request.GET.get("q", "")
        found: dict[str, Any] = {"health": shown, "query": query}
        context: dict[str, Any] = {}
        status = 200
        try:
            _require_store(state)
            shown["statistics"] = why_uncounted()
            page = overview(
                request.GET.get("sort", "-refused"),
                query,
                request.GET.get("page", "1"),
                period=request.GET.get("period", "day"),
            )
        except StoreError as error:
            status = 503
            found["error"] = str(error)
        else:
            _hide_names(request, page.identities)
            found |= vars(page)
            numbers = range(1, page.pages + 1)
            context = {
                **clients_context(request, page),
                "columns": _columns(request, page.sort),
                "page_queries": [(number, _query(request, page=str(number))) for number in numbers],
                "formats": _formats(request),
            }
        file = _file(request, found, "statistics", CSV_COLUMNS, found.get("rows", ()), status)
        context |= {"title": _("Statistics"), **found}
        return file or page_response(self, request, "overview.html", context)

    def one_view(self, request: HttpRequest) -> HttpResponse:
        """Show one rule or call site."""
        if not self.may_see(request):
            raise PermissionDenied
        name = request.GET.get("name", "")
        if not name:
            return redirect(f"../?{request.GET.urlencode()}")
        period = request.GET.get("period", "")
        if period not in PERIODS:
            period = "day"
        what = named(name)
        page = None
        error = ""
        status = 200
        try:
            _require_store(health())
            if what.kind == "gone" and name not in known_names():
                status = 404
                error = _(
                    "No rule or limit has this name, and it has no counts of the last 90 days."
                )
            else:
                page = one(name, period)
        except StoreError as raised:
            status = 503
            error = str(raised)
        context: dict[str, object] = {"period": period, "error": error}
        points: Sequence[Point] = ()
        if page is not None:
            _hide_names(request, *page.identities.values())
            points = page.points
        file = _file(
            request, page or vars(what) | context, "limit", ("at", *COUNTS), points, status
        )
        if file is not None:
            return file
        if page is not None:
            context |= self._draw(request, page)
        context |= {
            "title": name_words(name, MAX_TITLE_LENGTH),
            "what": what,
            "is_unknown": status == 404,
            "periods": period_links(request, PERIODS),
            "formats": _formats(request),
        }
        response = page_response(self, request, "one.html", context)
        if status == 404:
            response.status_code = status
        return response

    def _draw(self, request: HttpRequest, page: Report) -> dict[str, object]:
        step_format = STEP_FORMATS[page.period][0]
        moments = [formats.date_format(point.at, step_format) for point in page.points]
        present = [
            word for word in RESULT_NAMES if getattr(page, word) or word in ("allowed", "refused")
        ]
        steps = list(zip(moments, page.points, strict=True))
        nothing = _("no requests")
        hovers = [f"{moment}: {point.words() or nothing}" for moment, point in steps]
        return {
            "page": page,
            "charts": [
                _chart(page, hovers, kind, width)
                for kind, width in (("wide", 960), ("narrow", 400))
            ],
            "keys": [(word, RESULT_NAMES[word]) for word in present],
            "table": [
                (moment, [getattr(point, word) for word in present])
                for moment, point in reversed(steps)
                if point.requests
            ],
            "curves": [
                self._draw_curve(request, place, curve, page)
                for place, curve in enumerate(page.curves)
            ],
            "who": [
                (word, client_rows(request, clients, page.name, page.name if page.rule else ""))
                for word, clients in page.identities.items()
            ],
            "since": moment_words(page.since),
            "clients": clients_words(page.people_refused),
            "shows": conf.SHOW_IDENTITIES,
        }

    def _draw_curve(
        self, request: HttpRequest, place: int, curve: Curve, page: Report
    ) -> dict[str, object]:
        return {
            **curve_context(curve, request.GET.get(f"limit{place}", ""), place),
            "others": ", ".join(str(OTHERS[reason]) for reason in curve.others),
            "form_url": self._form_url(request, curve, page),
        }

    def _form_url(self, request: HttpRequest, curve: Curve, page: Report) -> str:
        """Return the URL of the form that saves another limit; the limit's value is appended to it.

        It is empty for users without permission.
        """
        may = request.user.has_perm
        query = {}
        if page.rule is not None and may(f"{APP}.change_ratelimitrule"):
            url = admin_url(request, f"{APP}_ratelimitrule_change", page.rule)
        elif page.kind in FORM_WORDS and may(f"{APP}.add_ratelimitrule"):
            url = admin_url(request, f"{APP}_ratelimitrule_add")
            query[FORM_WORDS[page.kind]] = readable(page.name)
            periods = [
                [rate.period_us for rate in site.rates if isinstance(rate, Rate)]
                for site in call_sites_of(page.name)
            ]
            places = [place for place, of in enumerate(periods) if curve.period_us in of]
            if places and places[0]:  # A rule takes the place of one of several.
                query["which"] = str(places[0])
        else:
            return ""
        field = "burst"
        if not curve.is_burst:
            query["period"] = Rate(1, curve.period_us).per
            field = "limit"
        return f"{url}?{urlencode({**query, field: ''})}"


def _require_store(state: Health) -> None:
    """Raise `StoreError` if no decision can be made.

    It is checked first, so that the page does not wait for statistics, which have a longer timeout.
    """
    if not state.ok:
        raise StoreError(state.error)


def _file(
    request: HttpRequest,
    members: object,
    name: str,
    columns: Sequence[str],
    rows: Iterable[object],
    status: int,
) -> HttpResponse | None:
    """Return a page as JSON or as CSV, if the query asks for it.

    Args:
        request: The request.
        members: The content of the JSON.
        name: The name of the CSV.
        columns: Its columns.
        rows: A dataclass for each row of it.
        status: The status of the response.
    """
    headers = {"Cache-Control": "private, no-store"}
    match request.GET.get("format"):
        case "json":
            return JsonResponse(members, Encoder, safe=False, status=status, headers=headers)
        case "csv":
            headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
            kind = "text/csv; charset=utf-8"
            response = HttpResponse(content_type=kind, headers=headers, status=status)
            writer = csv.writer(response)
            writer.writerow(columns)
            for row in rows:
                writer.writerow([_cell(getattr(row, column)) for column in columns])
            return response
    return None


def _cell(value: object) -> str:
    text = readable(str(value))
    if text.startswith(FORMULAS):
        return f"'{text}"
    return text


def _formats(request: HttpRequest) -> list[tuple[str, str]]:
    """Return the other formats of a page, with their queries."""
    return [(name.upper(), _query(request, format=name)) for name in ("csv", "json")]


def period_links(request: HttpRequest, periods: Iterable[str]) -> list[tuple[str, Any, str]]:
    """Return each period with its name and the query of this page for it."""
    return [(key, PERIOD_NAMES[key], _query(request, period=key)) for key in periods]


def clients_context(request: HttpRequest, page: Overview) -> dict[str, Any]:
    """Return what templates about the whole site need in addition to the overview."""
    return {
        "who": client_rows(request, page.identities),
        "periods": period_links(request, OVERVIEW_PERIODS),
        "period_name": PERIOD_NAMES[page.period],
        "who_period": PERIOD_NAMES["hour" if page.period == "hour" else "day"],
        "refused_words": RESULT_NAMES["refused"],
        "shows": conf.SHOW_IDENTITIES,
    }


def home_sections(request: HttpRequest) -> Iterator[HomeSection]:
    """Yield the requests and refusals of a period. If counts cannot be written, yield the reason.

    Raises:
        StoreError: Redis is unavailable.
    """
    problem = why_uncounted()
    if problem is not None:
        yield HomeSection(_("Some statistics cannot be written"), problem, is_problem=True)
    page = overview(size=MAX_HOME_ROWS, period=request.GET.get("period", "day"))
    _hide_names(request, page.identities)
    rows = [row for row in page.rows if row.refusals]
    context = {**vars(page), **clients_context(request, page), "rows": rows}
    body = render_to_string("admin/ratelimit_statistics/home.html", context, request)
    yield HomeSection(_("Requests"), body)


def _query(request: HttpRequest, **changes: str) -> str:
    """Return the query of this page with some changes."""
    return urlencode(request.GET.dict() | changes)


def _columns(request: HttpRequest, sort: str) -> list[dict[str, Any]]:
    """Return the columns, with the query that sorts by each, or reverses the order."""
    columns = []
    for name, words in COLUMNS.items():
        query = ""
        if name in SORTS:
            is_ascending_next = sort == f"-{name}" or (name == "name" and sort != "name")
            query = _query(request, sort=name if is_ascending_next else f"-{name}", page="1")
        order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
        columns.append({"name": name, "words": words, "query": query, "order": order})
    return columns


def _axis(points: Sequence[Point], period: str) -> list[tuple[float, str]]:
    """Return the moments that the time axis names, as shares of its length."""
    every, date_format = STEP_FORMATS[period][1:]
    step = PERIODS[period][1]
    axis = []
    for place, point in enumerate(points[1:-1], start=1):
        # By the clocks of the site.
        steps_since_1970 = point.at.replace(tzinfo=datetime.UTC).timestamp() // step
        if steps_since_1970 % every == 0:
            axis.append((place / len(points), formats.date_format(point.at, date_format)))
    return axis


def _chart(page: Report, hovers: Sequence[str], kind: str, width: int) -> SafeString:
    """Return a plot with a stacked bar for each step."""
    points = [vars(point) for point in page.points]
    heights = ticks(largest(points))
    title = _("Requests of %(name)s, %(period)s") % {
        "name": name_words(page.name),
        "period": PERIOD_NAMES[page.period],
    }
    plot = Plot(
        title,
        page.words() or _("No requests in this period."),
        f"ratelimit-chart {kind}",
        width=width,
        across=_axis(page.points, page.period),
        up=labels(heights),
        hovers=hovers,
    )
    plot.bars(points, heights[-1])
    return plot.svg()


def _hide_names(request: HttpRequest, *lists: Iterable[Estimate]) -> None:
    """Remove the names of clients if the user may not see them."""
    if not request.user.has_perm(WHO):
        for client in chain(*lists):
            client.name = []


def client_rows(
    request: HttpRequest, clients: Sequence[Estimate], name: str = "", rule: str = ""
) -> list[dict[str, object]]:
    """Return the rows about clients of a name, or of all names, with the links of each client."""
    parts = readable_parts(request, [client.name for client in clients])
    named = [(client.digest, client.name) for client in clients]
    links = client_links(request, named, name, rule)
    return [
        {
            "parts": parts,
            "times": between_words(*client.bounds),
            "links": links,
        }
        for client, parts, links in zip(clients, parts, links, strict=True)
    ]


register_page("Statistics", gettext_lazy("Statistics"), StatisticsPages, "ratelimit_statistics")
