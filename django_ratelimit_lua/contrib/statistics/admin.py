"""What limits do, for an operator: an overview of all, and a page for each rule or call site.

Also as JSON.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path, reverse
from django.utils import formats
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...admin.history import WHO, changed_words
from ...admin.identities import ReadablePart, readable_parts
from ...admin.inspector import may_inspect
from ...admin.pages import Page, page_response, register_page
from ...admin.times import moment_element
from ...conf import conf
from ...exceptions import StoreError
from ...identity.names import name_words
from ...limits.rate import Rate
from ...models import RateLimitChange
from ...operations.call_sites import call_sites_of
from ...operations.curve import Curve, plot_curve, scale
from ...operations.formatting import (
    between_words,
    clients_words,
    moment_words,
    number_words,
    readable,
    share_words,
)
from ...operations.health import Health, health
from ...operations.plot import Mark, Plot, labels, largest, ticks
from .core_pages import VIEW
from .report import (
    PERIODS,
    RESULT_NAMES,
    SORTS,
    Encoder,
    Point,
    Report,
    What,
    curve_members,
    identities,
    is_seen,
    named,
    one,
    overview,
    why_uncounted,
)

APP = "django_ratelimit_lua"
PERIOD_NAMES = {
    "hour": gettext_lazy("last hour"),
    "day": gettext_lazy("last day"),
    "week": gettext_lazy("last week"),
    "90d": gettext_lazy("90 days"),
}
COLUMNS = {
    "name": gettext_lazy("name"),
    "now": gettext_lazy("now, per minute"),
    "requests": gettext_lazy("requests"),
    "refused": gettext_lazy("refused"),
    "share": gettext_lazy("share refused"),
    "people": gettext_lazy("clients refused"),
    "p95": gettext_lazy("95 of 100 decided within"),
}
HEALTH = ("ok", "seconds", "error", "revision", "is_paused", "problems")
"""The overview's part about `Health`."""
MAX_TITLE_LENGTH = 120


def may_see(request: HttpRequest) -> bool:
    """Whether the pages answer them."""
    return bool(request.user.has_perm(VIEW))


class StatisticsPages(Page):
    """The two pages, at the URLs where the admin expects those of a model."""

    class Media:
        css = {"all": ("ratelimit_statistics/statistics.css",)}  # noqa: RUF012 - Django's way
        js = ("django_ratelimit_lua/refresh.js", "ratelimit_statistics/statistics.js")

    may_see = staticmethod(may_see)

    def get_urls(self) -> list[Any]:
        """The URLs of the overview, and of one name, which is in the query because names may
        contain slashes.
        """
        view = self.admin_site.admin_view
        return [
            path("", view(self.overview_view), name="ratelimit_statistics_statistics_changelist"),
            path("one/", view(self.one_view), name="ratelimit_statistics_statistics_one"),
        ]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """All rules and call sites."""
        if not may_see(request):
            raise PermissionDenied
        asked = request.GET
        sort, query = asked.get("sort", "-refused"), asked.get("q", "")
        number = asked.get("page", "1")
        page = int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 1
        state = health()
        found: dict[str, Any] = {"health": {name: getattr(state, name) for name in HEALTH}}
        found["health"]["statistics"] = why_uncounted() if state.ok else None
        try:
            _ask_first(state)
            found |= vars(overview(sort, query, page))
        except StoreError as error:
            found |= {"error": str(error), "query": query}
        if asked.get("format") == "json":
            return _json(found)
        context = {**found, "title": _("Statistics")}
        if "error" not in found:
            context["columns"] = _columns(asked, found["sort"])
            context["fallback"] = _fallback(found["site"].sources)
            if found["pages"] > 1:
                numbers = range(1, found["pages"] + 1)
                context["page_queries"] = [
                    (number, _query(asked, page=str(number))) for number in numbers
                ]
        return self._answer(request, "overview.html", context)

    def one_view(self, request: HttpRequest) -> HttpResponse:
        """One rule or call site."""
        if not may_see(request):
            raise PermissionDenied
        asked = request.GET
        name, period = asked.get("name", ""), asked.get("period", "day")
        is_json = asked.get("format") == "json"
        if not name:
            query = {"format": "json"} if is_json else {}
            return HttpResponseRedirect(self._url("changelist", **query))
        if period not in PERIODS:
            period = "day"
        what = named(name)
        context: dict[str, Any] = {
            "title": name_words(name, MAX_TITLE_LENGTH),
            "what": what,
            "period": period,
            "may_see_who": request.user.has_perm(WHO),
            "periods": [
                (key, words, _query(asked, period=key, limit=None))
                for key, words in PERIOD_NAMES.items()
            ],
            "json": _query(asked, format="json"),
            "rule_url": self._rule_url(what.rule),
        }
        try:
            _ask_first(health())
            if not is_seen(what):
                error = _(
                    "Nothing of this name has been counted in the last ninety days, and no rule "
                    "or limit has it."
                )
                return self._without_page(request, "never.html", context, error, 404)
            page = one(name, period)
            if context["may_see_who"]:
                page = replace(page, identities=identities(name, period))
        except StoreError as error:
            return self._without_page(request, "one.html", context, str(error), 503)
        if is_json:
            return _json(vars(page))
        return self._answer(
            request, "one.html", {**context, "page": page, **self._drawn(request, page)}
        )

    def _without_page(
        self, request: HttpRequest, template: str, context: dict[str, Any], error: str, status: int
    ) -> HttpResponse:
        if request.GET.get("format") == "json":
            return _json(
                {**context["what"].shown, "period": context["period"], "error": error}, status
            )
        answer = self._answer(request, template, {**context, "error": error})
        answer.status_code = status if template == "never.html" else 200
        return answer

    def _drawn(self, request: HttpRequest, page: Report) -> dict[str, Any]:
        moments = [_step_words(point.at, page.period) for point in page.points]
        start, end = page.from_.timestamp(), page.to.timestamp()
        changes = _shown_changes(page.changes)
        marks = [
            Mark(
                (one["change"].at.timestamp() - start) / (end - start),
                str(number),
                f"{moment_words(one['change'].at)} {one['change'].by}: {'; '.join(one['words'])}",
            )
            for number, one in enumerate(changes, start=1)
        ]
        present = [
            word for word in RESULT_NAMES if getattr(page, word) or word in ("allowed", "refused")
        ]
        words = _summary(page)
        hovers = [
            f"{moment}: {point.words() or _('no requests')}"
            for moment, point in zip(moments, page.points, strict=True)
        ]
        refused = (
            (_("Would be refused most"), _("would be refused"))
            if page.is_rehearsal
            else (
                _("Refused most"),
                _("refused"),
            )
        )
        return {
            "words": words,
            "charts": [
                _chart(page, hovers, marks, words, kind, width)
                for kind, width in (("wide", 960), ("narrow", 400))
            ],
            "keys": [(word, RESULT_NAMES[word]) for word in present],
            "table": [
                (moment, [getattr(point, word) for word in present])
                for moment, point in reversed(list(zip(moments, page.points, strict=True)))
                if point.requests
            ],
            "changes": changes,
            "curves": [
                _shown_curve(
                    place,
                    curve,
                    page,
                    request.GET.get(f"limit{place}", ""),
                    self._form_url(request, page, curve.period_us),
                )
                for place, curve in enumerate(page.curves)
            ],
            "who": [
                (*titles, _shown_people(request, page.identities[key], page))
                for key, titles in (("refused", refused), ("used", (_("Used most"), _("units"))))
            ]
            if page.identities is not None
            else [],
            "since": moment_words(page.since),
            "shows": conf.SHOW_IDENTITIES,
        }

    def _url(self, name: str, **query: str) -> str:
        url = reverse(
            f"admin:ratelimit_statistics_statistics_{name}", current_app=self.admin_site.name
        )
        return f"{url}?{urlencode(query)}" if query else url

    def _rule_url(self, pk: int | None) -> str:
        if pk is None:
            return ""
        return reverse(
            "admin:django_ratelimit_lua_ratelimitrule_change",
            args=[pk],
            current_app=self.admin_site.name,
        )

    def _form_url(self, request: HttpRequest, what: What, period_us: int) -> str:
        """The URL of the form that saves another limit for that period, up to its value.

        Empty for users without permission.
        """
        user = request.user
        if what.rule is not None:
            return (
                f"{self._rule_url(what.rule)}?"
                if user.has_perm(f"{APP}.change_ratelimitrule")
                else ""
            )
        word = {"settings": "settings", "code": "instead"}.get(what.kind)
        if word is None or not user.has_perm(f"{APP}.add_ratelimitrule"):
            return ""
        url = reverse(
            "admin:django_ratelimit_lua_ratelimitrule_add", current_app=self.admin_site.name
        )
        query = {word: readable(what.name)}
        sites = call_sites_of(what.name)
        if (
            word == "instead" and len({site.key for site in sites}) > 1
        ):  # A rule takes the place of one of them.
            periods = [
                {rate.period_us for rate in site.rates if isinstance(rate, Rate)} for site in sites
            ]
            query["which"] = str(
                next((place for place, of in enumerate(periods) if period_us in of), 0)
            )
        return f"{url}?{urlencode(query)}&"

    def _answer(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        return page_response(
            self, request, template, {"may_inspect": may_inspect(request), **context}
        )


def _ask_first(state: Health) -> None:
    """Raises `StoreError` if no decision can be made.

    Then the page does not wait for statistics, which have a longer timeout.
    """
    if not state.ok:
        raise StoreError(state.error)


def _json(members: Mapping[str, Any], status: int = 200) -> JsonResponse:
    if "error" in members and status == 200:
        status = 503
    response = JsonResponse(
        {name.rstrip("_"): member for name, member in members.items()}, Encoder, status=status
    )
    response.headers["Cache-Control"] = "private, no-store"
    return response


def _query(asked: Mapping[str, str], **changes: str | None) -> str:
    """The query of this page, but for what is changed."""
    query = {
        name: value
        for name, value in {**dict(asked.items()), **changes}.items()
        if value is not None
    }
    return urlencode({name: readable(value) for name, value in query.items()})


def _columns(asked: Mapping[str, str], sort: str) -> list[dict[str, Any]]:
    """The columns: of those that sort, the query that sorts by them, or the other way round."""
    columns = []
    for name, words in COLUMNS.items():
        is_ascending_next = sort == f"-{name}" or (name == "name" and sort != "name")
        query = _query(asked, sort=name if is_ascending_next else f"-{name}", page=None)
        order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
        columns.append(
            {"name": name, "words": words, "query": query if name in SORTS else "", "order": order}
        )
    return columns


def _shown_changes(changes: Iterable[RateLimitChange]) -> list[dict[str, Any]]:
    return [
        {"change": change, "at": moment_element(change.at), "words": changed_words(change)}
        for change in changes
    ]


def _fallback(sources: Mapping[str, int]) -> str:
    number = sources.get("fallback", 0)
    if not number:
        return ""
    text = ngettext(
        "%(number)s decision of the last day was made without Redis, by the fallback.",
        "%(number)s decisions of the last day were made without Redis, by the fallback.",
        number,
    )
    return text % {"number": number_words(number)}


def _summary(page: Report) -> str:
    """The refusals, and their clients, in a sentence or two."""
    if not page.requests:
        return _("No requests in this time.")
    if page.refused:
        text = _("Refused: %(number)s of %(requests)s requests (%(share)s).")
        number_since = page.counts_since.refused
    elif page.would_be_refused:
        text = _("Would be refused: %(number)s of %(requests)s requests (%(share)s).")
        number_since = page.counts_since.would_be_refused
    else:
        return _("Refused: none of %(requests)s requests.") % {
            "requests": number_words(page.requests)
        }
    number = page.refusals
    sentences = [
        text
        % {
            "number": number_words(number),
            "requests": number_words(page.requests),
            "share": share_words(number / page.requests),
        },
        _("Since %(since)s: %(number)s, from %(clients)s.")
        % {
            "since": moment_words(page.since),
            "number": number_words(number_since),
            "clients": clients_words(page.people_refused),
        },
    ]
    if page.banned:
        sentences.append(_("By bans: %(number)s.") % {"number": number_words(page.banned)})
    return " ".join(sentences)


def _step_words(moment: datetime.datetime, period: str) -> str:
    if period in ("hour", "day"):
        return formats.date_format(moment, "H:i")
    # Translators: formats of Django's date filter
    return formats.date_format(moment, _("D j M, H:i") if period == "week" else _("D j M"))


def _axis(points: Sequence[Point], period: str) -> list[tuple[float, str]]:
    """The moments that the time axis names, as shares of its length."""
    # Translators: formats of Django's date filter
    every, date_format = {
        "hour": (10, "H:i"),
        "day": (6, "H:i"),
        "week": (8, _("D j")),
        "90d": (14, _("j M")),
    }[period]
    step = PERIODS[period][1]
    axis = []
    for place, point in enumerate(points[1:-1], start=1):
        steps_since_1970 = (
            point.at.replace(tzinfo=datetime.UTC).timestamp() // step
        )  # By the clocks of the site.
        if steps_since_1970 % every == 0:
            axis.append((place / len(points), formats.date_format(point.at, date_format)))
    return axis


def _chart(
    page: Report, hovers: Sequence[str], marks: Sequence[Mark], words: str, kind: str, width: int
) -> SafeString:
    """A stacked bar for each step of the time."""
    points = [vars(point) for point in page.points]
    heights = ticks(largest(points))
    title = _("Requests of %(name)s, %(period)s") % {
        "name": name_words(page.name),
        "period": PERIOD_NAMES[page.period],
    }
    plot = Plot(
        title,
        words,
        f"ratelimit-chart {kind}",
        width=width,
        across=_axis(page.points, page.period),
        up=labels(heights),
        marks=marks,
        hovers=hovers,
    )
    plot.bars(points, heights[-1])
    return plot.svg()


def _shown_curve(
    place: int, shown: Curve, page: Report, asked: str, form_url: str
) -> dict[str, Any]:
    """A refusal curve for the template."""
    curve = curve_members(shown)
    points = curve["points"]
    top = points[-1]["limit"]
    chosen = top if shown.today is None else shown.today
    if asked.isascii() and asked.isdecimal() and len(asked) < 14:
        chosen = min(int(asked), top)
    at = [point for point in points if point["limit"] <= chosen][-1]
    drawn = plot_curve(
        shown.points(), shown.requests, shown.people, curve["per"], today=shown.today
    )
    drawn.marks = [*drawn.marks, Mark(scale(chosen, top), kind="chosen")]
    if shown.is_burst:
        drawn.axis = _("burst")
    return {
        "place": place,
        "members": curve,
        "svg": drawn.svg(),
        "chosen": chosen,
        "at": _point_words(at, curve),
        "others": _others_words(shown),
        "field": f"limit{place}",
        "top": top,
        "form_url": form_url and f"{form_url}{_fills_in(curve, page)}",
        "points": [
            {**point, "x": drawn.x(scale(point["limit"], top)), "words": _point_words(point, curve)}
            for point in points
        ],
        "rows": [
            (
                number_words(point["limit"]),
                _range_words(point["requests"]),
                _range_words(point["people"]),
            )
            for point in points
        ],
        "json_id": f"ratelimit-curve-{place}",
    }


def _others_words(shown: Curve) -> str:
    """Why the curve differs from the refusals."""
    if not shown.others:
        return ""
    names = {
        "changes": _("changes"),
        "overrides": _("overrides"),
        "tiers": _("tiers"),
        "periods": _("limits for other periods"),
    }
    text = _(
        "Requests met other limits as well (%(why)s): the curve is as if this one had applied to "
        "all, alone. "
        "%(number)s requests were refused."
    )
    why = ", ".join(names[reason] for reason in shown.others)
    return text % {"why": why, "number": number_words(shown.refused)}


def _range_words(bounds: Sequence[int]) -> str:
    """A number that is known within bounds."""
    least, most = map(number_words, bounds)
    return most if least == most else _("%(least)s to %(most)s") % {"least": least, "most": most}


def _point_words(point: Mapping[str, Any], curve: Mapping[str, Any]) -> str:
    """The refusals that a limit would have made, in a sentence."""
    if curve["of"] == "burst":
        intro = _("A burst of %(limit)s, at the same rate, would have refused")
    else:
        intro = _("%(limit)s per %(per)s would have refused")
    rest = _("%(requests)s requests of %(all_requests)s, and %(people)s clients of %(all_people)s.")
    requests, all_people = _range_words(point["requests"]), number_words(curve["people"])
    values = {
        "limit": number_words(point["limit"]),
        "per": curve["per"],
        "requests": requests if curve["is_exact"] else f"{_('at most')} {requests}",
        "all_requests": number_words(curve["requests"]),
        "people": _range_words(point["people"]),
        "all_people": _("about %(number)s") % {"number": all_people}
        if curve["people_are_estimated"]
        else all_people,
    }
    return f"{intro} {rest}" % values


def _fills_in(curve: Mapping[str, Any], page: Report) -> str:
    """The query for the form, up to the number: see `limits.filled_in`."""
    if curve["of"] == "burst":
        return "burst="
    first = page.limits[0].rate.period if page.limits else curve["period_seconds"]
    if curve["period_seconds"] != first:
        return (
            urlencode({"further": Rate.parse((1, curve["period_seconds"])).per}) + "&further_limit="
        )
    return "limit="


def _shown_people(
    request: HttpRequest, people: Iterable[Mapping[str, Any]], page: Report
) -> list[dict[str, Any]]:
    """Identities for the template, with what can be done about each.

    `page`: of which name they are.
    """
    people = list(people)
    named = [[(part["kind"], part["value"]) for part in each["parts"]] for each in people]
    readable = readable_parts(request, named)
    return [
        _shown_person(request, each, page, parts)
        for each, parts in zip(people, readable, strict=True)
    ]


def _shown_person(
    request: HttpRequest, each: Mapping[str, Any], page: Report, parts: Sequence[ReadablePart]
) -> dict[str, Any]:
    may_override = request.user.has_perm(f"{APP}.add_ratelimitoverride")
    # The digest is examined; what is shown of the client is filled into the form, and not examined.
    inspect = {"name": readable(page.name), "digest": each["digest"]}
    override: dict[str, str] = {}
    for part, shown in zip(each["parts"], parts, strict=True):
        kind, value = part["kind"], part["value"]
        if kind == "ip" and _is_network(value):
            inspect["address"] = value
            override.setdefault("network", value)
        elif shown.is_known_user:
            inspect["user"] = value
            override["user"] = value
    if "user" in override:
        override.pop(
            "network", None
        )  # One override is about one of them: the user is the narrower.
    if not override:
        override = {"client_digest": each["digest"], "duration": "86400"}
    of_rule = {"rule": str(page.rule)} if page.rule is not None else {}
    return {
        "parts": parts or [ReadablePart(_("hidden (%(digest)s)") % {"digest": each["digest"][:8]})],
        "words": ", ".join(part.words for part in parts) or each["digest"][:8],
        "times": between_words(each["least"], each["most"]),
        "inspect": urlencode(inspect) if page.kind != "other" and may_inspect(request) else "",
        "exempt": urlencode({**override, **of_rule, "effect": "exempt"}) if may_override else "",
        "block": urlencode({**override, "effect": "block"}) if may_override else "",
        "is_network": "/" in override.get("network", ""),
    }


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return True


register_page("Statistics", gettext_lazy("Statistics"), StatisticsPages, "ratelimit_statistics")
