"""What limits do, for people and programs: an overview of all, and one rule or call site in full.

Both are what JSON can have: the pages of the admin draw them, and `?format=json` answers them as they are. Moments are
ISO 8601 with the offset of the site's time zone; shares are from 0 to 1; durations are in seconds.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import conf
from ..limits import algorithms
from ..limits.limit import Limit
from ..limits.rate import LimitError, Rate
from ..models import RateLimitChange, RateLimitOverride, RateLimitRule
from ..publishing.publish import primary
from ..rules.callsite import known_call_sites
from ..rules.describe import period_words, reading
from ..rules.places import look_for_call_sites
from ..rules.rule import UNWRITABLE, RuleError
from ..rules.ruleset import settings_rules
from ..stats.buckets import quantile
from ..stats.keys import HOUR, OTHER, SITE
from ..stats.reading import (
    Detail,
    Look,
    Offender,
    Point,
    Span,
    Total,
    detail,
    dropped,
    known_names,
    lately,
    looks,
    marks,
    people_refused,
    refused_people,
    series,
    times,
    top,
    total,
    was_counted,
)  # fmt: skip
from ..stats.results import BANNED
from ..stats.writing import why_unwritable
from .call_sites import call_sites_of
from .curve import Curve
from .health import health
from .kept_hours import kept_series

DAY = 86_400
BLOCK = "block"
"""Under which blocks are counted that no rule is needed for."""
KINDS = {
    "admin": gettext_lazy("rule"),
    "settings": gettext_lazy("rule of the settings"),
    "code": gettext_lazy("limit in the code"),
    "block": gettext_lazy("blocks without a rule"),
    "other": gettext_lazy("further names, counted as one"),
    "unknown": gettext_lazy("limit in the code, or not there any more"),
    "gone": gettext_lazy("not there any more"),
}
RESULTS = {
    "allowed": "adh", "refused": "rvg", "would_be_refused": "s", "blocked": "b", "exempt": "x", "policy": "e",
    "failed": "f",
}  # fmt: skip
"""Results as the pages tell them, by the letters that they are counted by: see `stats.results`."""
SORTS = ("name", "requests", "refused", "share", "people", "now", "p95")
PERIODS = {
    "hour": (3600, 60),
    "day": (DAY, 1800),
    "week": (7 * DAY, 3 * 3600),
    "90d": (90 * DAY, DAY),
}
"""How long each is, and a step of its chart, in seconds."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for: a rule of the admin (`row`) or the settings, or limits in the code, `limits` as far as
    they are constant."""

    name: str
    kind: str
    reading: str = ""
    mode: str = ""
    row: RateLimitRule | None = None
    limits: tuple[Limit, ...] = field(default=(), compare=False)

    def told(self) -> dict[str, Any]:
        """For pages and programs."""
        return {
            "name": self.name,
            "kind": self.kind,
            "reading": self.reading,
            "mode": self.mode,
            "rule": None if self.row is None else self.row.pk,
        }


def named(name: str) -> Named:
    """What a name stands for."""
    row = RateLimitRule.objects.using(primary()).named(name).prefetch_related("tiers").first()
    if row is not None:
        try:
            template = row.compiled().template
        except RuleError:
            template = None
        return Named(name, "admin", row.reading(), row.mode, row, () if template is None else template.limits(name))
    return _in_code(name)


def _in_code(name: str) -> Named:
    for rule in settings_rules():
        if rule.name == name:
            limits = () if rule.template is None else rule.template.limits(name)
            return Named(name, "settings", reading(rule.given or {}), rule.mode, None, limits)
    sites = call_sites_of(name)
    if sites:
        limits = tuple(limit for site in sites for limit in site.limits)
        return Named(name, "code", "; ".join(site.words() for site in sites), "", None, limits)
    return Named(name, _kind_of(name))


def _kind_of(name: str) -> str:
    if name in (BLOCK, OTHER):
        return "block" if name == BLOCK else "other"
    if known_call_sites.knows(name):
        return "code"
    return "unknown" if name in known_call_sites else "gone"  # Of long names, and beyond the first, nobody knows.


def is_seen(what: Named) -> bool:
    """Whether there is something of that name, or was in the last ninety days. Raises `StoreError`."""
    return what.kind not in ("unknown", "gone") or was_counted(what.name)


def overview(sort: str = "-refused", query: str = "", page: int = 1, size: int = 50) -> dict[str, Any]:
    """What every rule and call site did in the last day, so many on a page. Raises `StoreError`.

    `sort`: one of `SORTS`, with a minus: the largest first.
    """
    sort = sort if sort.removeprefix("-") in SORTS else "-refused"
    seconds, now = 0.0, datetime.datetime.now(datetime.UTC).timestamp()
    last = known_names()
    rules = {row.name: row for row in RateLimitRule.objects.using(primary()).prefetch_related("tiers")}
    look_for_call_sites()
    names = {*rules, *(rule.name for rule in settings_rules() if rule.template is not None), *known_call_sites.names()}
    counted = [name for name, hour in last.items() if hour > now - DAY - 3600]
    wanted = query.strip().casefold()
    shown = [name for name in sorted({*names, *counted}) if wanted in name.casefold()]
    asked = set(counted)
    found = looks([name for name in shown if name in asked])
    rows = {name: _row(name, found.get(name)) for name in shown}
    by, is_down = sort.removeprefix("-"), sort.startswith("-")

    def complete(some: Sequence[str], columns: Iterable[str]) -> None:
        nonlocal seconds
        some = [name for name in some if name in asked]
        for column in columns:
            if column == "now":
                seconds, counts = lately(some)
                for name in some:
                    rows[name]["per_minute"] = _rates(counts[name], seconds)
            elif column == "people":
                refused = [name for name in some if rows[name]["refused"] or rows[name]["would_be_refused"]]
                for name, people in refused_people(refused).items():
                    rows[name]["people_refused"] = people
            elif column == "p95":
                for name, histogram in times(some).items():
                    rows[name]["p95_seconds"] = _finite(quantile(0.95, histogram))

    later = ("now", "people", "p95")
    complete(shown, [by] if by in later else [])
    ordered = sorted(shown, key=str.casefold, reverse=by == "name" and is_down)
    if by != "name":
        ordered.sort(key=lambda name: _sorted_by(rows[name], by), reverse=is_down)
    pages = max(1, -(-len(ordered) // size))
    page = min(max(page, 1), pages)
    ordered = ordered[(page - 1) * size : page * size]
    complete(ordered, [column for column in later if column != by])
    for name in ordered:
        row = rules.get(name)
        told = _in_code(name) if row is None else Named(name, "admin", row.reading(), row.mode, row)
        rows[name] |= {**told.told(), "hours": _hours(found.get(name))}
    of_site = looks([SITE])[SITE]
    site = _row(SITE, of_site)
    seconds, counts = lately([SITE])
    site |= {
        "hours": _hours(of_site),
        "per_minute": _rates(counts[SITE], seconds),
        "p95_seconds": _finite(quantile(0.95, times([SITE])[SITE])),
    }
    del site["name"], site["people_refused"]
    return {
        "at": _moment(now),
        "site": site,
        "rows": [rows[name] for name in ordered],
        "names": len(shown),
        "page": page,
        "pages": pages,
        "sort": sort,
        "query": query,
        "dropped": dropped(),
    }


def last_days(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each of these names did in the last day, as rows of the overview. Raises `StoreError`."""
    return {name: {**_row(name, look), "hours": _hours(look)} for name, look in looks(names).items()}


def without_numbers(query: str = "") -> list[dict[str, Any]]:
    """What there is to show, where Redis cannot be asked."""
    rows = [
        Named(row.name, "admin", row.reading(), row.mode, row).told()
        for row in RateLimitRule.objects.using(primary()).prefetch_related("tiers")
    ]
    present = {row["name"] for row in rows}
    look_for_call_sites()
    names = {*known_call_sites.names(), *(rule.name for rule in settings_rules() if rule.template is not None)}
    rows += [_in_code(name).told() for name in names - present]
    wanted = query.strip().casefold()
    return sorted((row for row in rows if wanted in row["name"].casefold()), key=lambda row: row["name"].casefold())


def condition() -> dict[str, Any]:
    """Whether Redis, breaker, rules and the writing of statistics are well. The last is tried: other processes may
    have counted what this one has not."""
    state = health()
    tried = why_unwritable() if state.ok and state.statistics is None and conf.STATISTICS else None
    return {
        "ok": state.ok,
        "seconds": round(state.seconds, 6),
        "error": state.error,
        "revision": state.revision,
        "is_paused": state.is_paused,
        "problems": list(state.problems),
        "statistics": state.statistics if tried is None else str(tried),
    }


def one(name: str, period: str, now: float | None = None) -> dict[str, Any]:
    """What one rule or call site did in a period; who, is told by `identities`. Raises `StoreError`."""
    what = named(name)
    span = span_of(period, now)
    # What is drawn by hours may be in the database, where Redis has lost it.
    if span.step == DAY:
        points = _by_day(kept_series(name, span._replace(step=HOUR)))
    else:
        points = kept_series(name, span) if span.step >= HOUR else series(name, span)
    histograms = detail(name, span)
    # Whole hours, or days, that begin together: what is not counted by minutes.
    whole = total(name, Span(histograms.since, span.end, 3600))
    counts = sum((point.counts for point in points), Counter[str]())
    changes = changes_of(what, span)
    seconds, latest = lately([name])
    numbers = _counted(counts)
    told = {
        **what.told(),
        "at": _moment(_now() if now is None else now),
        "period": period,
        "from": _moment(span.start),
        "to": _moment(span.end),
        "step_seconds": span.step,
        **numbers,
        "share_refused": _share(numbers),
        "people_refused": people_refused(name, span),
        "per_minute": _rates(latest[name], seconds),
        "p95_seconds": _finite(histograms.time_within(0.95)),
        "sources": dict(whole.sources),
        "units": whole.units,
        "near_limit": whole.near,
        "points": [{"at": _moment(point.moment), **_counted(point.counts)} for point in points],
        "changes": [told_change(change) for change in changes],
        "limits": [
            {"limit": limit.rate.limit, "burst": limit.burst, "period_seconds": limit.rate.period,
             "algorithm": limit.algorithm, "mode": limit.mode}
            for limit in what.limits
        ],
    }  # fmt: skip
    told["curves"] = [told_curve(curve) for curve in curves(what, span, histograms, whole)]
    told["since"] = _moment(histograms.since)
    told["counts_since"] = _counted(whole.counts)
    return told


def curves(what: Named, span: Span, histograms: Detail, whole: Total) -> list[Curve]:
    """The refusal curves of a name: one for each period that was counted, the shortest first; slots are of none, as
    with others of them requests would have met others. `whole`: what was counted
    since the histograms begin."""
    by_period: dict[int, Limit] = {}
    for limit in what.limits:
        by_period.setdefault(limit.rate.period_us, limit)
    others = _other_limits(what, Span(histograms.since, span.end, 3600))
    refused = whole.refused + whole.would_be_refused
    periods = sorted(period_us for period_us in histograms.used if period_us)
    is_alone = len(histograms.used) == 1
    found = []
    for period_us in periods:
        curve = Curve.counted(period_us, by_period.get(period_us), histograms, marks(what.name, period_us, span))
        known = set() if curve.today is None else {curve.today}
        why = set()
        for reason, algorithm, rate, burst in others:
            if rate.period_us != period_us:
                continue
            of = curve.of(rate, burst)
            known.add(of)
            if curve.now is None or (of, rate.limit, algorithm) != (
                curve.today, curve.now.rate.limit, curve.now.algorithm,
            ):  # fmt: skip
                why.add(reason)
        found.append(
            replace(
                curve, lowest=min(known) if known and refused else None, refused=refused,
                is_alone=is_alone, others=tuple(sorted(why)),
                is_steady=is_alone and bool(known) and not why, is_unit=whole.units == whole.allowed,
            )
        )  # fmt: skip
    return found


def _other_limits(what: Named, span: Span) -> list[tuple[str, str, Rate, int | None]]:
    """Limits that held for some, or for some of the time: by what ("changes", "overrides", "tiers"), the algorithm,
    the rate and the burst."""
    given: list[tuple[str, str | None, Any, int | None]] = []
    for change in changes_of(what, span):
        for declared in (change.before, change.after):
            if isinstance(declared, Mapping):
                # Of these, who has no burst of its own has that of the rule.
                algorithm, burst = declared.get("algorithm"), declared.get("burst")
                given.append(("changes", algorithm, declared.get("rate"), burst))
                tiers = declared.get("tiers") or ()
                given += [("changes", algorithm, tier.get("rate"), tier.get("burst") or burst) for tier in tiers]
            else:  # Before the rule was there, or after it, what the code says held.
                of_code = _in_code(what.name).limits
                given += [("changes", limit.algorithm, str(limit.rate), limit.burst) for limit in of_code]
    algorithm, burst = (what.limits[0].algorithm, what.limits[0].burst) if what.limits else (None, None)
    if what.row is not None:
        algorithm, burst = what.row.algorithm or None, what.row.burst
        of_tiers = [(algorithm, row.declared().get("rate"), row.burst or burst) for row in what.row.tiers.all()]
        given = [one for one in given if one[1:] not in of_tiers] + [("tiers", *one) for one in of_tiers]
    about = Q(rule=None) if what.row is None else Q(rule=None) | Q(rule=what.row)
    for override in RateLimitOverride.objects.between(*_moments(span)).filter(about, effect="limit"):
        given.append(("overrides", algorithm, override.rate, override.burst or burst))
    found = []
    for reason, algorithm, rates, burst in given:
        name = algorithms.find(algorithm or conf.ALGORITHM).name
        for text in rates if isinstance(rates, list) else [rates]:
            try:
                found += [(reason, name, Rate.parse(text), burst)] if text else []
            except LimitError:
                continue
    return found


def told_curve(curve: Curve) -> dict[str, Any]:
    """A refusal curve for pages and programs: `points` as (limit, requests, people), the last two as [least, most]."""
    return {
        "period_seconds": curve.period_us / 1_000_000,
        "per": period_words(Rate(1, curve.period_us)),
        "of": "burst" if curve.is_burst else "limit",
        "today": curve.today,
        "is_exact": curve.is_exact,
        "is_of_one_limit": not curve.others,
        "others": list(curve.others),
        "is_alone": curve.is_alone,
        "requests": curve.requests,
        "people": curve.people,
        "people_are_estimated": curve.is_sampled,
        "points": [
            {"limit": point.limit, "requests": list(point.requests), "people": list(point.people)}
            for point in curve.points()
        ],
    }


def identities(name: str, period: str, most: int = 10, now: float | None = None) -> dict[str, list[dict[str, Any]]]:
    """Who was refused most, and who used most units, in the period, from the beginning of an hour, or in its last 24
    hours. Raises `StoreError`."""
    span = span_of(period, now) if PERIODS[period][0] <= DAY else Span.last(DAY, 3600, now)
    return {what: [_told_offender(each) for each in top(name, span, what, most)] for what in ("refused", "used")}


def _told_offender(offender: Offender) -> dict[str, Any]:
    return {
        "digest": offender.digest,
        "parts": [{"kind": kind, "value": value} for kind, value in offender.name],
        "least": offender.times - offender.error,
        "most": offender.times,
    }


def span_of(period: str, now: float | None = None) -> Span:
    """A period of `PERIODS` up to now, in steps that begin as the clocks of the site do. Days have 23 to 25 hours."""
    length, step = PERIODS[period]
    moment = datetime.datetime.fromtimestamp(_now() if now is None else now, datetime.UTC)
    midnight = timezone.localtime(moment).replace(hour=0, minute=0, second=0, microsecond=0)
    if step == DAY:
        tomorrow = midnight + datetime.timedelta(days=1)
        start = tomorrow - datetime.timedelta(seconds=length)
        return Span(int(start.timestamp()), int(tomorrow.timestamp()), step)
    first = int(midnight.timestamp())
    end = first + (int(moment.timestamp()) - first) // step * step + step
    return Span(end - length, end, step)


def _by_day(points: Iterable[Point]) -> list[Point]:
    """Add up the hours of each day by the clocks of the site."""
    days: dict[str, Point] = {}
    for point in points:
        day = days.setdefault(_moment(point.moment)[:10], Point(point.moment, Counter()))
        day.counts.update(point.counts)
    return list(days.values())


def changes_of(what: Named, span: Span) -> list[RateLimitChange]:
    """Changes of a rule in a time, the first first."""
    if UNWRITABLE.search(what.name):
        return []
    start, end = _moments(span)
    changes = RateLimitChange.objects.using(primary()).filter(kind=RateLimitChange.Kind.RULE, name=what.name)
    return list(changes.filter(at__gte=start, at__lt=end).order_by("at", "pk")[:100])


def _moments(span: Span) -> tuple[datetime.datetime, datetime.datetime]:
    """Its beginning and end as the database has moments: without a zone where `USE_TZ` is off."""
    zone = datetime.UTC if settings.USE_TZ else None
    return datetime.datetime.fromtimestamp(span.start, zone), datetime.datetime.fromtimestamp(span.end, zone)


def told_change(change: RateLimitChange) -> dict[str, Any]:
    """A change for pages and programs."""
    return {"at": _moment(change.at.timestamp()), "by": change.by, "action": change.action, "pk": change.pk}


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def _moment(at: float) -> str:
    return timezone.localtime(datetime.datetime.fromtimestamp(int(at), datetime.UTC)).isoformat()


def _row(name: str, look: Look | None) -> dict[str, Any]:
    whole = Total() if look is None else look.total
    numbers = _counted(whole.counts)
    return {
        "name": name,
        **numbers,
        "share_refused": _share(numbers),
        "people_refused": 0,
        "per_minute": _rates(Counter(), 120.0),
        "p95_seconds": None,
        "sources": dict(whole.sources),
    }


def _hours(look: Look | None) -> list[dict[str, Any]]:
    return [] if look is None else [_told_point(point) for point in look.hours]


def _told_point(point: Point) -> dict[str, Any]:
    return {"at": _moment(point.moment), **_counted(point.counts)}


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    """`banned`: how many of the refused were refused by a ban."""
    told = {word: sum(counts.get(letter, 0) for letter in letters) for word, letters in RESULTS.items()}
    return {"requests": sum(told.values()), **told, "banned": counts.get(BANNED, 0)}


def _share(numbers: Mapping[str, int]) -> float | None:
    return round(numbers["refused"] / numbers["requests"], 6) if numbers["requests"] else None


def _rates(counts: Mapping[str, int], seconds: float) -> dict[str, float]:
    numbers = _counted(counts)
    words = ("requests", "refused", "would_be_refused")
    return {word: round(numbers[word] * 60 / seconds, 1) for word in words}


def _finite(seconds: float | None) -> float | None:
    """JSON has no infinity: more than the last bound is said as that bound."""
    return None if seconds is None else min(seconds, 0.25)


def _sorted_by(row: Mapping[str, Any], by: str) -> Any:
    if by == "now":
        return row["per_minute"]["requests"]
    if by == "refused":
        return row["refused"], row["would_be_refused"], row["requests"]
    if by == "share":
        return row["share_refused"] or 0.0, row["refused"]
    if by == "people":
        return row["people_refused"], row["refused"]
    return row[{"p95": "p95_seconds"}.get(by, by)] or 0.0


def pattern(refused: int, people: int) -> str:
    """What refusals look like: "few" people who come very often, rather programs; "many" people, each a few times,
    rather customers; empty where they are neither."""
    if not people or refused < 20:
        return ""
    each = refused / people
    if each >= 20:
        return _("few, very often: rather programs")
    if people >= 10 and each <= 3:
        return _("many, a few times each: rather customers")
    return ""
