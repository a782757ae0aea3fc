"""What limits do, for an operator: an overview of all, and a page for each rule or call site; also as JSON."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils import formats
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..exceptions import StoreError
from ..limits.rate import Rate
from ..models import RateLimitChange
from ..operations.call_sites import call_sites_of
from ..operations.curve import Between, CurvePoint, plot_curve, scale
from ..operations.plot import Mark, Plot, labels, largest, sparkline, ticks
from ..operations.seen import (
    KINDS,
    PERIODS,
    SORTS,
    Named,
    changes_of,
    condition,
    identities,
    is_seen,
    named,
    one,
    overview,
    pattern,
    span_of,
    without_numbers,
)  # fmt: skip
from ..operations.words import clients_words, moment_words, number_words, share_words
from ..rules.describe import whom
from ..stats.names import NOTHING, Name, name_words
from .history import WHO, changed_words
from .inspector import may_inspect
from .last_day import RESULT_NAMES, VIEW, between_words, counts_words, day_words
from .limits import breakable
from .pages import Page
from .times import moment_element, moment_text

APP = "django_ratelimit_lua"
PERIOD_NAMES = {
    "hour": gettext_lazy("last hour"),
    "day": gettext_lazy("last day"),
    "week": gettext_lazy("last week"),
    "90d": gettext_lazy("90 days"),
}
SOURCES = {
    "redis": gettext_lazy("Redis"),
    "deny-cache": gettext_lazy("deny cache"),
    "lease": gettext_lazy("leases"),
    "split": gettext_lazy("split shares"),
    "fallback": gettext_lazy("fallback"),
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
LARGEST_FIRST = frozenset(SORTS) - {"name"}
LAST_CHANGES = 8
LONGEST_TITLE = 120


def may_see(request: HttpRequest) -> bool:
    """Whether the pages answer them."""
    return bool(request.user.has_perm(VIEW))


class StatisticsPages(Page):
    """The two pages, where the admin expects those of a model."""

    class Media:
        js = ("django_ratelimit_lua/statistics.js",)

    may_see = staticmethod(may_see)

    def get_urls(self) -> list[Any]:
        """The overview, and that of one name, which stands in the query: names have slashes, and whatever else."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.overview_view), name="django_ratelimit_lua_statistics_changelist"),
            path("one/", view(self.one_view), name="django_ratelimit_lua_statistics_one"),
        ]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """All rules and call sites."""
        if not may_see(request):
            raise PermissionDenied
        asked = request.GET
        sort, query = asked.get("sort", "-refused"), asked.get("q", "")
        number = asked.get("page", "1")
        page = int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 1
        told: dict[str, Any] = {"health": condition()}
        try:
            _ask_first(told["health"])
            told |= overview(sort, query, page)
        except StoreError as error:
            told |= {"error": str(error), "rows": without_numbers(query), "query": query}
        changes = self._last_changes(request)
        told["changes"] = [
            {"at": moment_text(change.at), "by": change.by, "kind": change.kind,
             "name": change.name, "action": change.action}
            for change in changes
        ]  # fmt: skip
        if asked.get("format") == "json":
            return _json(told)
        is_known = "error" not in told
        context = {
            "title": _("Statistics"),
            "told": told,
            "is_known": is_known,
            "rows": [_shown_row(row, is_known=is_known) for row in told["rows"]],
            "site": _shown_row({"name": "", **told["site"]}, is_known=True) if is_known else None,
            "columns": _columns(asked, told.get("sort", "")) if is_known else [],
            "changes": [
                {"change": change, "at": moment_element(change.at), "words": changed_words(change)}
                for change in changes
            ],
            "pages": _pages(asked, told) if is_known else [],
            "fallback": _fallback(told["site"]["sources"]) if is_known else "",
        }
        return self._answer(request, "overview.html", context)

    def one_view(self, request: HttpRequest) -> HttpResponse:
        """One rule or call site."""
        if not may_see(request):
            raise PermissionDenied
        asked = request.GET
        name, period = asked.get("name", ""), asked.get("period", "day")
        if not name:
            query = {"format": "json"} if asked.get("format") == "json" else {}
            return HttpResponseRedirect(self._url("changelist", **query))
        if period not in PERIODS:
            period = "day"
        may_see_who = bool(request.user.has_perm(WHO))
        told: dict[str, Any] = {}
        try:
            _ask_first(condition())
            what = named(name)
            if not is_seen(what):
                return self._never_seen(request, what, period)
            told = one(name, period)
            told |= {"identities": identities(name, period) if may_see_who else None}
        except StoreError as error:
            told = {**named(name).told(), "period": period, "error": str(error)}
        if asked.get("format") == "json":
            return _json(told)
        context = {
            "title": name_words(name, LONGEST_TITLE),
            "told": told,
            "what": KINDS[told["kind"]],
            "reading": breakable(_readable(told["reading"])),
            "is_known": "error" not in told,
            "may_see_who": may_see_who,
            "periods": [(key, words, _query(asked, period=key, limit=None)) for key, words in PERIOD_NAMES.items()],
            "json": _query(asked, format="json"),
            "rule_url": self._rule_url(request, told["rule"]),
        }
        if context["is_known"]:
            context |= self._drawn(request, told)
        return self._answer(request, "one.html", context)

    def _never_seen(self, request: HttpRequest, what: Named, period: str) -> HttpResponse:
        """404, with words: there is nothing of that name, and nothing was counted."""
        error = _("Nothing of this name has been counted in the last ninety days, and no rule or limit has it.")
        if request.GET.get("format") == "json":
            return _json({**what.told(), "period": period, "error": error}, 404)
        title = name_words(what.name, LONGEST_TITLE)
        answer = self._answer(request, "never.html", {"title": title, "error": error})
        answer.status_code = 404
        return answer

    def _drawn(self, request: HttpRequest, told: dict[str, Any]) -> dict[str, Any]:
        points, asked = told["points"], request.GET
        span = span_of(told["period"])
        changes = changes_of(named(told["name"]), span)
        moments = [_step_words(point["at"], told["period"]) for point in points]
        marks = [
            Mark((change.at.timestamp() - span.start) / (span.end - span.start), str(number),
                 f"{moment_words(change.at)} {change.by}: {'; '.join(changed_words(change))}")
            for number, change in enumerate(changes, start=1)
        ]  # fmt: skip
        present = [word for word in RESULT_NAMES if told[word] or word in ("allowed", "refused")]
        words = _summary(told)
        who = told["identities"]
        is_rehearsal = not told["counts_since"]["refused"] and bool(told["counts_since"]["would_be_refused"])
        return {
            "is_rehearsal": is_rehearsal,
            "words": words,
            "pattern": pattern(_refusals(told["counts_since"]), told["people_refused"]),
            "reaches_back": _reaches_back(told),
            "row": _shown_row(told, is_known=True),
            "charts": [
                _chart(told, points, moments, marks, words, kind, width)
                for kind, width in (("wide", 960), ("narrow", 400))
            ],
            "keys": [(word, RESULT_NAMES[word]) for word in present],
            "table": [
                (moment, [number_words(point[word]) for word in present])
                for moment, point in reversed(list(zip(moments, points, strict=True)))
                if point["requests"]
            ],
            "changes": [
                {"number": number, "at": moment_element(change.at), "change": change,
                 "words": changed_words(change)}
                for number, change in enumerate(changes, start=1)
            ],
            "has_slots": any(limit["period_seconds"] == 0.0 for limit in told["limits"]),
            "curves": [
                _shown_curve(
                    place, curve, told, asked.get(f"limit{place}", ""),
                    self._form_url(request, told, round(curve["period_seconds"] * 1_000_000)),
                )
                for place, curve in enumerate(told["curves"])
            ],
            "who": [] if who is None else [
                (title, unit, _shown_people(request, who[key], told))
                for key, title, unit in (
                    ("refused", _("Would be refused most"), _("would be refused"))
                    if is_rehearsal else ("refused", _("Refused most"), _("refused")),
                    ("used", _("Used most"), _("units")),
                )
            ],
            "since": _since_words(told),
            "shows": conf.SHOW_IDENTITIES,
        }  # fmt: skip

    def _last_changes(self, request: HttpRequest) -> list[RateLimitChange]:
        kinds = [RateLimitChange.Kind.RULE]
        if request.user.has_perm(f"{APP}.view_ratelimitoverride"):
            kinds += [RateLimitChange.Kind.OVERRIDE, RateLimitChange.Kind.IDENTITY]
        return list(RateLimitChange.objects.filter(kind__in=kinds)[:LAST_CHANGES])

    def _url(self, name: str, **query: str) -> str:
        url = reverse(f"admin:django_ratelimit_lua_statistics_{name}", current_app=self.admin_site.name)
        return f"{url}?{urlencode(query)}" if query else url

    def _rule_url(self, request: HttpRequest, pk: int | None) -> str:
        if pk is None:
            return ""
        return reverse("admin:django_ratelimit_lua_ratelimitrule_change", args=[pk], current_app=self.admin_site.name)

    def _form_url(self, request: HttpRequest, told: Mapping[str, Any], period_us: int) -> str:
        """The form in which another limit for that period is saved, up to what it fills in; empty for who may not."""
        user = request.user
        if told["rule"] is not None:
            return f"{self._rule_url(request, told['rule'])}?" if user.has_perm(f"{APP}.change_ratelimitrule") else ""
        word = {"settings": "settings", "code": "instead"}.get(told["kind"])
        if word is None or not user.has_perm(f"{APP}.add_ratelimitrule"):
            return ""
        url = reverse("admin:django_ratelimit_lua_ratelimitrule_add", current_app=self.admin_site.name)
        query = {word: _readable(told["name"])}
        sites = call_sites_of(told["name"])
        if word == "instead" and len({site.key for site in sites}) > 1:  # A rule takes the place of one of them.
            periods = [{rate.period_us for rate in site.rates if isinstance(rate, Rate)} for site in sites]
            query["which"] = str(next((place for place, of in enumerate(periods) if period_us in of), 0))
        return f"{url}?{urlencode(query)}&"

    def _answer(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        base = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "may_inspect": may_inspect(request),
        }
        return TemplateResponse(request, f"admin/{APP}/statistics/{template}", {**base, **context})


def _ask_first(health: Mapping[str, Any]) -> None:
    """Raises `StoreError` where no decision can be made: then nobody waits for statistics, which have more time."""
    if not health["ok"]:
        raise StoreError(health["error"])


def _json(told: Mapping[str, Any], status: int | None = None) -> JsonResponse:
    """`status`: 200, or 503 where there is an error, but for another."""
    response = JsonResponse(told, status=status or (503 if "error" in told else 200))
    response.headers["Cache-Control"] = "private, no-store"
    return response


def _readable(text: str) -> str:
    """A name as a page can have it: what is half a character is a question mark."""
    return text.encode("utf-8", "replace").decode()


def _query(asked: Mapping[str, str], **changes: str | None) -> str:
    """The query of this page, but for what is changed."""
    query = {name: value for name, value in {**dict(asked.items()), **changes}.items() if value is not None}
    return urlencode({name: _readable(value) for name, value in query.items()})


def _columns(asked: Mapping[str, str], sort: str) -> list[dict[str, Any]]:
    """The columns: of those that sort, the query that sorts by them, or the other way round."""
    columns = []
    for name, words in COLUMNS.items():
        is_sorted = sort.removeprefix("-") == name
        other = sort.removeprefix("-") if sort.startswith("-") else f"-{name}"
        first = f"-{name}" if name in LARGEST_FIRST else name
        columns.append(
            {"name": name, "words": words, "query": _query(asked, sort=other if is_sorted else first, page=None),
             "order": ("descending" if sort.startswith("-") else "ascending") if is_sorted else ""}
        )  # fmt: skip
    return columns


def _pages(asked: Mapping[str, str], told: Mapping[str, Any]) -> list[tuple[int, str]]:
    if told["pages"] < 2:
        return []
    return [(number, _query(asked, page=str(number))) for number in range(1, told["pages"] + 1)]


def _shown_row(row: Mapping[str, Any], *, is_known: bool) -> dict[str, Any]:
    """A row for the template: numbers as words."""
    name = _readable(row["name"])
    shown = {
        "name": breakable(name_words(row["name"])),
        "query": urlencode({"name": name}),
        "kind": KINDS.get(row.get("kind", ""), ""),
        "mode": row.get("mode", ""),
        "reading": breakable(_readable(row.get("reading", ""))),
    }
    if not is_known:
        return shown
    share, hours = row["share_refused"], row.get("hours", ())
    refused = row["refused"] or row["would_be_refused"]
    return {
        **shown,
        "requests": number_words(row["requests"]),
        "refused": number_words(row["refused"]) if row["refused"] else "",
        "would_be_refused": number_words(row["would_be_refused"]) if row["would_be_refused"] else "",
        "banned": number_words(row["banned"]) if row["banned"] else "",
        "blocked": number_words(row["blocked"]) if row["blocked"] else "",
        "failed": number_words(row["failed"]) if row["failed"] else "",
        "share": "—" if share is None else share_words(share),
        "people": number_words(row["people_refused"]) if row.get("people_refused") else "—",
        "each": pattern(refused, row.get("people_refused", 0)),
        "now": rate_words(row["per_minute"]["requests"]),
        "now_refused": rate_words(row["per_minute"]["refused"]) if row["per_minute"]["refused"] else "",
        "p95": "—" if row["p95_seconds"] is None else milliseconds_words(row["p95_seconds"]),
        "sources": _sources_words(row["sources"]),
        "spark": sparkline(hours, day_words(row)) if hours and row["requests"] else "",
        "is_refusing": bool(row["refused"]),
        "is_idle": not row["requests"],
    }


def rate_words(number: float) -> str:
    """So many a minute; tenths where there are few."""
    return number_words(round(number)) if number >= 10 or not number else formats.number_format(round(number, 1), 1)


def milliseconds_words(seconds: float) -> str:
    """The time of a decision, as the upper bound of its bucket."""
    return _("%(number)s ms") % {"number": formats.number_format(f"{seconds * 1000:g}")}


def _sources_words(sources: Mapping[str, int]) -> list[str]:
    whole = sum(sources.values())
    ordered = sorted(sources.items(), key=lambda pair: -pair[1])
    return [f"{SOURCES.get(source, source)} {share_words(number / whole)}" for source, number in ordered if number]


def _fallback(sources: Mapping[str, int]) -> str:
    number = sources.get("fallback", 0)
    if not number:
        return ""
    text = ngettext(
        "%(number)s decision of the last day was made without Redis, by the fallback.",
        "%(number)s decisions of the last day were made without Redis, by the fallback.", number,
    )  # fmt: skip
    return text % {"number": number_words(number)}


def _summary(told: Mapping[str, Any]) -> str:
    """What is refused, and to whom, in a sentence or two."""
    if not told["requests"]:
        return _("No requests in this time.")
    refused, shadow = told["refused"], told["would_be_refused"]
    if not refused and not shadow:
        text = _("Refused: none of %(requests)s requests.")
        return text % {"requests": number_words(told["requests"])}
    number, number_since = refused or shadow, told["counts_since"]["refused" if refused else "would_be_refused"]
    if number_since != number and refused:
        text = _(
            "Refused: %(number)s of %(requests)s requests (%(share)s). "
            "Since %(since)s: %(number_since)s, from %(clients)s."
        )
    elif number_since != number:
        text = _(
            "Would be refused: %(number)s of %(requests)s requests (%(share)s). "
            "Since %(since)s: %(number_since)s, from %(clients)s."
        )
    elif refused:
        text = _("Refused: %(number)s of %(requests)s requests (%(share)s), from %(clients)s.")
    else:
        text = _("Would be refused: %(number)s of %(requests)s requests (%(share)s), from %(clients)s.")
    words = text % {
        "requests": number_words(told["requests"]),
        "number": number_words(number),
        "share": share_words(number / told["requests"]),
        "clients": clients_words(told["people_refused"]),
        "number_since": number_words(number_since),
        "since": _since_words(told),
    }
    if told["banned"]:
        words += " " + _("By bans: %(number)s.") % {"number": number_words(told["banned"])}
    first = (told["identities"] or {}).get("refused", ())[:3]
    at_least = sum(each["least"] for each in first)
    if first and told["people_refused"] > 3 and told["period"] in ("hour", "day") and at_least >= 2:
        share = share_words(min(1.0, at_least / number_since))
        words += " " + _("The first three of them account for %(share)s of that.") % {"share": share}
    return words


def _refusals(counts: Mapping[str, int]) -> int:
    return counts["refused"] or counts["would_be_refused"]


def _since_words(told: Mapping[str, Any]) -> str:
    return moment_words(datetime.datetime.fromisoformat(told["since"]))


def _reaches_back(told: Mapping[str, Any]) -> bool:
    """Whether what is counted by hours, or days, begins before the chart does."""
    return datetime.datetime.fromisoformat(told["since"]) < datetime.datetime.fromisoformat(told["from"])


def _step_words(at: str, period: str) -> str:
    moment = datetime.datetime.fromisoformat(at)
    if period in ("hour", "day"):
        return formats.date_format(moment, "H:i")
    # Translators: formats of Django's date filter
    return formats.date_format(moment, _("D j M, H:i") if period == "week" else _("D j M"))


def _axis(points: Sequence[Mapping[str, Any]], period: str) -> list[tuple[float, str]]:
    """The moments that the time axis names, as shares of its length."""
    number = len(points)
    axis = []
    for place, point in enumerate(points):
        moment = datetime.datetime.fromisoformat(point["at"])
        if moment.minute % (10 if period == "hour" else 60) == 0 and (
            period == "hour" or (period == "day" and moment.hour % 3 == 0)
        ):
            axis.append((place / number, formats.date_format(moment, "H:i")))
        elif period == "week" and moment.hour < 3:
            # Translators: a format of Django's date filter
            axis.append((place / number, formats.date_format(moment, _("D j"))))
        elif period == "90d" and moment.weekday() == 0 and moment.isocalendar().week % 2 == 0:
            # Translators: a format of Django's date filter
            axis.append((place / number, formats.date_format(moment, _("j M"))))
    return [(at, words) for at, words in axis if 0.01 < at < 0.98]


def _chart(
    told: Mapping[str, Any], points: Sequence[Any], moments: Sequence[str], marks: Sequence[Mark],
    words: str, kind: str, width: int,
) -> SafeString:  # fmt: skip
    """A stacked bar for each step of the time."""
    about = {"name": name_words(told["name"]), "period": PERIOD_NAMES[told["period"]]}
    scale = ticks(largest(points))
    hovers = [
        f"{moment}: {counts_words(point) or _('no requests')}" for moment, point in zip(moments, points, strict=True)
    ]
    plot = Plot(
        _("Requests of %(name)s, %(period)s") % about, words, f"ratelimit-chart {kind}", width=width,
        across=_axis(points, told["period"]), up=labels(scale), marks=marks, hovers=hovers,
    )  # fmt: skip
    plot.bars(points, scale[-1])
    return plot.svg()


def _shown_curve(
    place: int, told: dict[str, Any], page: Mapping[str, Any], asked: str, form_url: str
) -> dict[str, Any]:
    """A refusal curve for the template."""
    points, today = told["points"], told["today"]
    top = points[-1]["limit"] if points else 1
    chosen = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 14 else None
    if chosen is not None:
        chosen = min(chosen, top)
    looked_at = chosen if chosen is not None else today if today is not None else top
    shown = [point for point in points if point["limit"] <= looked_at][-1:] or points[:1]
    at = next(iter(shown), None)
    drawn = plot_curve(
        [CurvePoint(point["limit"], Between(*point["requests"]), Between(*point["people"])) for point in points],
        told["requests"], told["people"], told["per"], today=today,
    )  # fmt: skip
    drawn.marks = [*drawn.marks, Mark(scale(looked_at, top), kind="chosen")]
    if told["of"] == "burst":
        drawn.axis = _("burst")
    texts = _curve_words(told)
    return {
        "place": place,
        "told": told,
        "svg": drawn.svg(),
        "chosen": looked_at,
        "at": "" if at is None else point_words(at, texts),
        "others": _others_words(told, page, texts),
        "field": f"limit{place}",
        "top": top,
        "texts": texts,
        "form_url": form_url and f"{form_url}{_fills_in(told, page)}",
        "points": [{**point, "x": drawn.x(scale(point["limit"], top))} for point in points],
        "rows": [
            (number_words(point["limit"]), range_words(point["requests"], texts), range_words(point["people"], texts))
            for point in points
        ],
        "json_id": f"ratelimit-curve-{place}",
        "texts_id": f"ratelimit-curve-{place}-texts",
    }


def _others_words(told: Mapping[str, Any], page: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """Why the curve is not what was refused: another limit held for some, or refused beside it."""
    if told["others"]:
        names = {"tiers": _("tiers"), "overrides": _("overrides"), "changes": _("changes")}
        why = _("Not everybody had this limit all the time (%(why)s): the curve is as if one limit held for all.")
        words = why % {"why": ", ".join(names[each] for each in told["others"])}
    elif not told["is_alone"]:
        words = _("There are limits for other periods beside this one: the curve is as if this one stood alone.")
    else:
        return ""
    at = next((point["requests"] for point in told["points"] if point["limit"] == told["today"]), None)
    number = _refusals(page["counts_since"])
    if at is not None and not at[0] <= number <= at[1]:
        text = _("At today's %(limit)s it has %(curve)s refusals; in fact there were %(number)s.")
        counts = {"limit": number_words(told["today"]), "number": number_words(number)}
        words += " " + text % {**counts, "curve": range_words(at, texts)}
    return words


def _curve_words(told: Mapping[str, Any]) -> dict[str, str]:
    about = {"per": told["per"]}
    if told["of"] == "burst":
        intro = _("A burst of %(limit)s, at the same rate, would have refused")
    else:
        intro = _("%(limit)s per %(per)s would have refused")
    return {
        "intro": intro.replace("%(per)s", about["per"]),
        "between": _("%(least)s to %(most)s"),
        "at_most": "" if told["is_exact"] else _("at most"),
        "rest": _("%(requests)s requests of %(all_requests)s, and %(people)s clients of %(all_people)s."),
        "all_requests": number_words(told["requests"]),
        "all_people": (_("about %(number)s") if told["people_are_estimated"] else "%(number)s")
        % {"number": number_words(told["people"])},
    }


def range_words(bounds: Sequence[int], texts: Mapping[str, str]) -> str:
    """A number that is known within bounds."""
    least, most = bounds
    if least == most:
        return number_words(most)
    return texts["between"] % {"least": number_words(least), "most": number_words(most)}


def point_words(point: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """What a limit would have refused, in a sentence."""
    rest = texts["rest"] % {
        "requests": " ".join(filter(None, (texts["at_most"], range_words(point["requests"], texts)))),
        "people": range_words(point["people"], texts),
        "all_requests": texts["all_requests"],
        "all_people": texts["all_people"],
    }
    return f"{texts['intro'] % {'limit': number_words(point['limit'])}} {rest}"


def _fills_in(told: Mapping[str, Any], page: Mapping[str, Any]) -> str:
    """What the form is asked to fill in, up to the number: see `limits.filled_in`."""
    if told["of"] == "burst":
        return "burst="
    first = page["limits"][0]["period_seconds"] if page["limits"] else told["period_seconds"]
    if told["period_seconds"] != first:
        return urlencode({"further": Rate.parse((1, told["period_seconds"])).per}) + "&further_limit="
    return "limit="


def _shown_people(
    request: HttpRequest, people: Iterable[Mapping[str, Any]], page: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Identities for the template, with what can be done about each; `page`: of which name they are."""
    people = list(people)
    users = _users([part["value"] for each in people for part in each["parts"] if part["kind"] == "user"])
    may_override = request.user.has_perm(f"{APP}.add_ratelimitoverride")
    return [_shown_person(request, each, page, users, may_override=may_override) for each in people]


def readable_parts(request: HttpRequest, named: Sequence[Name]) -> list[list[dict[str, str]]]:
    """Identities as their parts are shown, each with a link where there is one."""
    users = _users([value for name in named for kind, value in name if kind == "user"])
    return [[_shown_part(request, kind, value, users) for kind, value in name] for name in named]


def _users(keys: Sequence[str]) -> dict[str, Any]:
    model, found = get_user_model(), []
    for key in keys:
        try:
            found.append(model._meta.pk.to_python(key))
        except ValidationError:
            continue
    return {str(user.pk): user for user in model._default_manager.filter(pk__in=found)}


def _shown_person(
    request: HttpRequest,
    each: Mapping[str, Any],
    page: Mapping[str, Any],
    users: Mapping[str, Any],
    *,
    may_override: bool,
) -> dict[str, Any]:
    parts = [_shown_part(request, part["kind"], part["value"], users) for part in each["parts"]]
    # The digest is examined; what is shown of the client is filled into the form, and not examined.
    inspect = {"name": _readable(page["name"]), "digest": each["digest"]}
    override: dict[str, str] = {}
    for part in each["parts"]:
        kind, value = part["kind"], part["value"]
        if kind == "ip" and _is_network(value):
            inspect["address"] = value
            override.setdefault("network", value)
        elif kind == "user" and value in users:
            inspect["user"] = value
            override["user"] = value
    if "user" in override:
        override.pop("network", None)  # One override is about one of them: the user is the narrower.
    if not override:
        override = {"client_digest": each["digest"], "duration": "86400"}
    of_rule = {"rule": str(page["rule"])} if page["rule"] is not None else {}
    return {
        "parts": parts or [{"words": _("hidden (%(digest)s)") % {"digest": each["digest"][:8]}, "url": ""}],
        "words": ", ".join(part["words"] for part in parts) or each["digest"][:8],
        "times": between_words(each["least"], each["most"]),
        "inspect": urlencode(inspect) if page["kind"] != "other" and may_inspect(request) else "",
        "exempt": urlencode({**override, **of_rule, "effect": "exempt"}) if may_override else "",
        "block": urlencode({**override, "effect": "block"}) if may_override else "",
        "is_network": "/" in override.get("network", ""),
    }


def _shown_part(request: HttpRequest, kind: str, value: str, users: Mapping[str, Any]) -> dict[str, str]:
    value = _readable(value)
    if kind == "user" and value in users:
        meta = users[value]._meta
        url = ""
        if request.user.has_perm(f"{meta.app_label}.view_{meta.model_name}"):
            try:
                url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[value])
            except NoReverseMatch:
                url = ""
        return {"words": _("user %(user)s") % {"user": users[value]}, "url": url}
    if kind == "ip":
        return {"words": value, "url": ""}
    if value == NOTHING:
        return {"words": _("no %(kind)s") % {"kind": whom(kind)}, "url": ""}
    return {"words": f"{whom(kind)} {value}" if kind else value, "url": ""}


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return True
