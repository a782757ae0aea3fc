"""What limits do, for people and programs: an overview of all, and one rule or call site in full.

The pages of the admin render these dataclasses; as JSON, each field is a member (see `Encoder`).
Moments are in the site's time zone; shares are from 0 to 1; durations are in seconds.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Q
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...limits.limit import Limit
from ...limits.rate import Rate
from ...models import RateLimitChange, RateLimitOverride, RateLimitRule
from ...operations.call_sites import call_sites_of
from ...operations.curve import Between, Curve
from ...operations.formatting import number_words, share_words
from ...operations.plot import sparkline
from ...publishing.publish import primary
from ...rules.callsite import known_call_sites
from ...rules.describe import period_words, reading
from ...rules.places import look_for_call_sites
from ...rules.rule import UNWRITABLE, RuleError
from ...rules.ruleset import settings_rules
from . import reading as stats
from .kept_hours import kept_series
from .keys import DAY, HOUR, OTHER, SITE
from .marks import Marks
from .reading import Detail, Span, Total
from .recorder import recorder
from .results import BANNED
from .writing import why_unwritable

BLOCK = "block"
"""Under which blocks are counted that no rule is needed for."""
KINDS = {
    "admin": gettext_lazy("rule"),
    "settings": gettext_lazy("rule of the settings"),
    "code": gettext_lazy("limit in the code"),
    "block": gettext_lazy("blocks without a rule"),
    "other": gettext_lazy("further names, counted as one"),
    "gone": gettext_lazy("limit in the code, or not there any more"),
}
RESULTS = {
    "allowed": "adh",
    "refused": "rvg",
    "would_be_refused": "s",
    "blocked": "b",
    "exempt": "x",
    "policy": "e",
    "failed": "f",
}
"""Results as the pages show them, by the letters that they are counted by: see `stats.results`."""
RESULT_NAMES = {
    "refused": gettext_lazy("refused"),
    "blocked": gettext_lazy("blocked"),
    "would_be_refused": gettext_lazy("would be refused"),
    "allowed": gettext_lazy("allowed"),
    "exempt": gettext_lazy("exempt"),
    "policy": gettext_lazy("decided by the policy for outages"),
    "failed": gettext_lazy("not applied"),
}
SOURCES = {
    "redis": gettext_lazy("Redis"),
    "deny-cache": gettext_lazy("deny cache"),
    "lease": gettext_lazy("leases"),
    "split": gettext_lazy("split shares"),
    "fallback": gettext_lazy("fallback"),
}
PERIODS = {
    "hour": (3600, 60),
    "day": (DAY, 1800),
    "week": (7 * DAY, 3 * 3600),
    "90d": (90 * DAY, DAY),
}
"""How long each is, and a step of its chart, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests by what came of them; `banned`: how many of the refused were refused by a ban."""

    requests: int = 0
    allowed: int = 0
    refused: int = 0
    would_be_refused: int = 0
    blocked: int = 0
    exempt: int = 0
    policy: int = 0
    failed: int = 0
    banned: int = 0

    @property
    def refusals(self) -> int:
        """What was refused, or would have been if nothing was."""
        return self.refused or self.would_be_refused

    def words(self, results: Iterable[str] = RESULT_NAMES) -> str:
        """How many there were of these results; empty: none."""
        numbers = vars(self)
        return ", ".join(
            f"{number_words(numbers[word])} {RESULT_NAMES[word]}"
            for word in results
            if numbers[word]
        )


@dataclass(frozen=True, kw_only=True)
class Point(Counts):
    """What was counted in one step, which begins at a moment."""

    at: datetime.datetime


@dataclass(frozen=True, kw_only=True)
class Day(Counts):
    """What was counted in a day."""

    hours: Sequence[Point] = ()

    @property
    def spark(self) -> SafeString | str:
        """The day as a small drawing; empty if nothing was counted."""
        words = _("Last day: %(counts)s") % {"counts": self.words() or _("no requests")}
        return sparkline([vars(hour) for hour in self.hours], words) if self.requests else ""


@dataclass(frozen=True)
class PerMinute:
    """Requests a minute, of now."""

    requests: float = 0.0
    refused: float = 0.0
    would_be_refused: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Numbers(Counts):
    """The counts of a span.

    `p95_seconds`: the 95th percentile of the decision time; `sources`: decisions by source.
    """

    share_refused: float | None = None
    per_minute: PerMinute = PerMinute()
    p95_seconds: float | None = None
    sources: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_words(self) -> str:
        """The sources of decisions, the most frequent first, with their shares."""
        whole = sum(self.sources.values())
        ordered = sorted(self.sources.items(), key=lambda pair: -pair[1])
        return ", ".join(
            f"{SOURCES.get(source, source)} {share_words(of / whole)}"
            for source, of in ordered
            if of
        )


@dataclass(frozen=True, kw_only=True)
class Site(Day, Numbers):
    """What was counted of the whole site in a day."""


@dataclass(frozen=True, kw_only=True)
class What:
    """The limit behind a name: a rule of the admin (`rule`: its row's key) or the settings, or
    limits in the code.
    """

    name: str
    kind: str = ""
    reading: str = ""
    mode: str = ""
    rule: int | None = None

    @property
    def kind_words(self) -> str:
        return str(KINDS[self.kind])


@dataclass(frozen=True, kw_only=True)
class Row(What, Site):
    """What one rule or call site did in a day."""

    people_refused: int = 0

    @property
    def pattern(self) -> str:
        """What its refusals look like."""
        return pattern(self.refusals, self.people_refused)


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What every rule and call site did in the last day, one page of many.

    `names`: how many there are in all.
    """

    at: datetime.datetime
    site: Site
    rows: Sequence[Row]
    names: int
    page: int
    pages: int
    sort: str
    query: str
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Report(What, Numbers):
    """The counts of one rule or call site in a period.

    Counts without minutes begin at `since`, with an hour or a day; `counts_since`: the requests
    since then.
    """

    at: datetime.datetime
    period: str
    from_: datetime.datetime
    to: datetime.datetime
    step_seconds: int
    people_refused: int
    units: int
    near_limit: int
    points: Sequence[Point]
    changes: Sequence[RateLimitChange]
    limits: Sequence[Limit]
    curves: Sequence[Curve]
    since: datetime.datetime
    counts_since: Counts
    identities: Mapping[str, Sequence[Any]] | None = None

    @property
    def is_rehearsal(self) -> bool:
        """Whether nothing was refused, and something would have been."""
        return not self.counts_since.refused and bool(self.counts_since.would_be_refused)

    @property
    def reaches_back(self) -> bool:
        """Whether what is counted by hours, or days, begins before the chart does."""
        return self.since < self.from_

    @property
    def has_slots(self) -> bool:
        """Whether one of its limits is of slots."""
        return any(limit.rate.is_slots for limit in self.limits)

    @property
    def pattern(self) -> str:
        """What its refusals look like."""
        return pattern(self.counts_since.refusals, self.people_refused)


class Encoder(DjangoJSONEncoder):
    """The JSON of what is shown: each field is a member, but for an underscore at the end of its
    name.
    """

    def default(self, o: Any) -> Any:
        """What stands for an object."""
        if isinstance(o, datetime.datetime):
            return o.isoformat()
        if isinstance(o, Curve):
            return curve_members(o)
        if isinstance(o, RateLimitChange):
            return {"at": moment_of(o.at.timestamp()), "by": o.by, "action": o.action, "pk": o.pk}
        if isinstance(o, Limit):
            return {
                "limit": o.rate.limit,
                "burst": o.burst,
                "period_seconds": o.rate.period,
                "algorithm": o.algorithm,
                "mode": o.mode,
            }
        if is_dataclass(o):
            return {one.name.rstrip("_"): getattr(o, one.name) for one in fields(o)}
        return super().default(o)


@dataclass(frozen=True, kw_only=True)
class Named(What):
    """The limit behind a name, with its row, and its constant limits."""

    row: RateLimitRule | None = None
    limits: tuple[Limit, ...] = field(default=(), compare=False)

    @property
    def shown(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(What)}


def named(name: str) -> Named:
    """The limit behind a name."""
    row = RateLimitRule.objects.using(primary()).named(name).prefetch_related("tiers").first()
    if row is None:
        return _in_code(name)
    try:
        template = row.compiled().template
    except RuleError:
        template = None
    return replace(_of_row(row), limits=() if template is None else template.limits(name))


def _of_row(row: RateLimitRule) -> Named:
    return Named(
        name=row.name, kind="admin", reading=row.reading(), mode=row.mode, rule=row.pk, row=row
    )


def _in_code(name: str) -> Named:
    for rule in settings_rules():
        if rule.name == name:
            limits = () if rule.template is None else rule.template.limits(name)
            return Named(
                name=name,
                kind="settings",
                reading=reading(rule.given or {}),
                mode=rule.mode,
                limits=limits,
            )
    sites = call_sites_of(name)
    if sites:
        limits = tuple(limit for site in sites for limit in site.limits)
        return Named(
            name=name, kind="code", reading="; ".join(site.words() for site in sites), limits=limits
        )
    if name in (BLOCK, OTHER):
        kind = "block" if name == BLOCK else "other"
    else:
        kind = (
            "code" if known_call_sites.knows(name) else "gone"
        )  # Or of a long name, which is not known.
    return Named(name=name, kind=kind)


def is_seen(what: What) -> bool:
    """Whether there is something of that name, or was in the last ninety days.

    Raises `StoreError`.
    """
    return what.kind != "gone" or stats.was_counted(what.name)


def _present() -> tuple[dict[str, RateLimitRule], set[str]]:
    """The rules of the admin by name, and the names of all rules and call sites."""
    rules = {
        row.name: row for row in RateLimitRule.objects.using(primary()).prefetch_related("tiers")
    }
    look_for_call_sites()
    in_settings = {rule.name for rule in settings_rules() if rule.template is not None}
    return rules, {*rules, *in_settings, *known_call_sites.names()}


def _what(rules: Mapping[str, RateLimitRule], name: str) -> Named:
    return _of_row(rules[name]) if name in rules else _in_code(name)


def _lately(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The fields of `Numbers` that are about the last minutes, of each name."""
    seconds, counts = stats.lately(names)
    histograms = stats.details_of(names, Span.last(2 * HOUR, HOUR))
    return {
        name: {
            "per_minute": _per_minute(counts[name], seconds),
            "p95_seconds": _p95(histograms[name]),
        }
        for name in names
    }


SORTS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name.casefold(),
    "requests": lambda row: row.requests,
    "refused": lambda row: (row.refused, row.would_be_refused, row.requests),
    "share": lambda row: (row.share_refused or 0.0, row.refused),
}
"""The columns that are counted by the day. The others are read for the names of a page alone."""


def overview(sort: str = "-refused", query: str = "", page: int = 1, size: int = 50) -> Overview:
    """The last day of every rule and call site, in pages. Raises `StoreError`.

    `sort`: one of `SORTS`, with a minus: the largest first.
    """
    sort = sort if sort.removeprefix("-") in SORTS else "-refused"
    by, is_down = sort.removeprefix("-"), sort.startswith("-")
    now, span = _now(), Span.last(DAY, HOUR)
    rules, names = _present()
    counted = {name for name, hour in stats.known_names().items() if hour > now - DAY - HOUR}
    wanted = query.strip().casefold()
    shown = sorted(name for name in names | counted if wanted in name.casefold())
    totals = stats.totals_of([name for name in shown if name in counted], span)
    rows = [Row(name=name, **_of_total(totals.get(name, Total()))) for name in shown]
    rows.sort(key=SORTS[by], reverse=is_down)
    pages = max(1, -(-len(rows) // size))
    page = min(max(page, 1), pages)
    rows = rows[(page - 1) * size : page * size]
    names_read = [row.name for row in rows if row.name in counted]
    lately = _lately([SITE, *names_read])
    people = stats.refused_people(names_read, span)
    return Overview(
        at=moment_of(now),
        site=Site(**_of_total(stats.total(SITE, span)), **lately[SITE]),
        rows=[
            replace(
                row,
                **_what(rules, row.name).shown,
                **lately.get(row.name, {}),
                people_refused=people.get(row.name, 0),
            )
            for row in rows
        ],
        names=len(shown),
        page=page,
        pages=pages,
        sort=sort,
        query=query,
        dropped=stats.dropped(),
    )


def last_days(names: Sequence[str]) -> dict[str, Day]:
    """What each of these names did in the last day. Raises `StoreError`."""
    totals = stats.totals_of(names, Span.last(DAY, HOUR))
    return {name: Day(**_counts(of.counts), hours=_points(of.hours)) for name, of in totals.items()}


def why_uncounted() -> str | None:
    """Why statistics cannot be written; None: they can.

    It is tried, as other processes may have counted what this one has not.
    """
    error = recorder.error
    if error is None:
        error = why_unwritable()
    return None if error is None else str(error)


def one(name: str, period: str, now: float | None = None) -> Report:
    """One rule or call site in a period; `identities` reads the top clients.

    Raises `StoreError`.
    """
    what, span = named(name), span_of(period, now)
    # Hours may be in the database if Redis has lost them.
    if span.step == DAY:
        points = _by_day(kept_series(name, span._replace(step=HOUR)))
    else:
        points = kept_series(name, span) if span.step >= HOUR else stats.series(name, span)
    histograms = stats.detail(name, span)
    # Whole hours, or days, that begin together: what is not counted by minutes.
    whole = stats.total(name, Span(histograms.since, span.end, HOUR))
    counts = _counts(sum((point.counts for point in points), Counter[str]()))
    return Report(
        **{**what.shown, **counts},
        at=moment_of(_now() if now is None else now),
        period=period,
        from_=moment_of(span.start),
        to=moment_of(span.end),
        step_seconds=span.step,
        share_refused=_share(counts),
        people_refused=stats.people_refused(name, span),
        per_minute=_lately([name])[name]["per_minute"],
        p95_seconds=_p95(histograms),
        sources=dict(whole.sources),
        units=whole.units,
        near_limit=whole.near,
        points=_points(points),
        changes=changes_of(what, span),
        limits=what.limits,
        curves=curves(what, span, histograms, whole),
        since=moment_of(histograms.since),
        counts_since=Counts(**_counts(whole.counts)),
    )


def curves(what: Named, span: Span, histograms: Detail, whole: Total) -> list[Curve]:
    """The refusal curves of a name: one for each counted period, the shortest first.

    Slots have no curve, because with other limits requests would have met other ones. `whole`: the
    counts since the histograms begin.
    """
    by_period: dict[int, Limit] = {}
    for limit in what.limits:
        by_period.setdefault(limit.rate.period_us, limit)
    others = _other_limits(what, Span(histograms.since, span.end, HOUR))
    if len(histograms.used) > 1:
        others = (*others, "periods")
    refused = whole.refused + whole.would_be_refused
    found = []
    for period_us in sorted(histograms.used):
        if not period_us:
            continue
        marks = stats.marks(what.name, period_us, span)
        found.append(
            Curve(
                period_us,
                by_period.get(period_us),
                requests=sum(histograms.used[period_us].values()),
                people=marks.people,
                find_requests=partial(_requests_beyond, histograms, period_us),
                find_people=partial(_people_beyond, marks),
                most=max(marks.marks, default=0),
                refused=refused,
                others=others,
                is_unit=whole.units == whole.allowed,
                is_sampled=not marks.is_exact,
            )
        )
    return found


def _requests_beyond(histograms: Detail, period_us: int, units: int) -> Between:
    return Between(*histograms.beyond(period_us, units))


def _people_beyond(marks: Marks, units: int) -> Between:
    count, error = marks.beyond(units)
    return Between(max(0, count - error), count + error)


def _other_limits(what: Named, span: Span) -> tuple[str, ...]:
    """Why some clients had another limit, or all for some of the time."""
    overrides = RateLimitOverride.objects.between(*_moments(span)).filter(effect="limit")
    overrides = overrides.filter(Q(rule=None) | Q(rule=what.rule))
    changes = changes_of(what, span)
    has_changed = any(change.action != RateLimitChange.Action.CREATED for change in changes)
    reasons = {
        "changes": has_changed or (bool(changes) and bool(_in_code(what.name).limits)),
        "overrides": overrides.exists(),
        "tiers": what.row is not None and bool(what.row.tiers.all()),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def curve_members(curve: Curve) -> dict[str, Any]:
    """The JSON of a refusal curve: `points` as (limit, requests, people), the last two as [least,
    most].
    """
    return {
        "period_seconds": curve.period_us / 1_000_000,
        "per": period_words(Rate(1, curve.period_us)),
        "of": "burst" if curve.is_burst else "limit",
        "today": curve.today,
        "is_exact": curve.is_exact,
        "others": list(curve.others),
        "requests": curve.requests,
        "people": curve.people,
        "people_are_estimated": curve.is_sampled,
        "points": [
            {"limit": point.limit, "requests": list(point.requests), "people": list(point.people)}
            for point in curve.points()
        ],
    }


def identities(
    name: str, period: str, most: int = 10, now: float | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The clients that were refused most, and those that used most units, in the period, from the
    beginning of an hour, or in its last 24 hours.

    Raises `StoreError`.
    """
    span = span_of(period, now) if PERIODS[period][0] <= DAY else Span.last(DAY, HOUR, now)
    return {
        what: [
            {
                "digest": one.digest,
                "parts": [{"kind": kind, "value": value} for kind, value in one.name],
                "least": one.times - one.error,
                "most": one.times,
            }
            for one in stats.top(name, span, what, most)
        ]
        for what in ("refused", "used")
    }


def span_of(period: str, now: float | None = None) -> Span:
    """A period of `PERIODS` up to now, in steps that begin as the clocks of the site do.

    Days have 23 to 25 hours.
    """
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


def _by_day(points: Iterable[stats.Point]) -> list[stats.Point]:
    """Add up the hours of each day by the clocks of the site."""
    days: dict[datetime.date, stats.Point] = {}
    for point in points:
        day = days.setdefault(moment_of(point.moment).date(), stats.Point(point.moment, Counter()))
        day.counts.update(point.counts)
    return list(days.values())


def changes_of(what: Named, span: Span) -> list[RateLimitChange]:
    """Changes of a rule in a time, the first first."""
    if UNWRITABLE.search(what.name):
        return []
    start, end = _moments(span)
    changes = RateLimitChange.objects.using(primary()).filter(
        kind=RateLimitChange.Kind.RULE, name=what.name
    )
    return list(changes.filter(at__gte=start, at__lt=end).order_by("at", "pk")[:100])


def _moments(span: Span) -> tuple[datetime.datetime, datetime.datetime]:
    """Its beginning and end as the database has moments: without a zone where `USE_TZ` is off."""
    zone = datetime.UTC if settings.USE_TZ else None
    return datetime.datetime.fromtimestamp(span.start, zone), datetime.datetime.fromtimestamp(
        span.end, zone
    )


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def moment_of(at: float) -> datetime.datetime:
    """A moment, of seconds since 1970, in the time zone of the site."""
    return timezone.localtime(datetime.datetime.fromtimestamp(int(at), datetime.UTC))


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    numbers = {
        word: sum(counts.get(letter, 0) for letter in letters) for word, letters in RESULTS.items()
    }
    return {"requests": sum(numbers.values()), **numbers, "banned": counts.get(BANNED, 0)}


def _of_total(of: Total) -> dict[str, Any]:
    """The fields of `Site` that a total knows."""
    counts = _counts(of.counts)
    return {
        **counts,
        "share_refused": _share(counts),
        "sources": dict(of.sources),
        "hours": _points(of.hours),
    }


def _points(points: Iterable[stats.Point]) -> list[Point]:
    return [Point(at=moment_of(point.moment), **_counts(point.counts)) for point in points]


def _share(counts: Mapping[str, int]) -> float | None:
    return round(counts["refused"] / counts["requests"], 6) if counts["requests"] else None


def _per_minute(counts: Mapping[str, int], seconds: float) -> PerMinute:
    numbers = _counts(counts)
    return PerMinute(*(round(numbers[one.name] * 60 / seconds, 1) for one in fields(PerMinute)))


def _p95(histograms: Detail) -> float | None:
    """JSON has no infinity: more than the last bound is shown as that bound."""
    seconds = histograms.time_within(0.95)
    return None if seconds is None else min(seconds, 0.25)


def pattern(refused: int, people: int) -> str:
    """The pattern of refusals: "few" clients with many refusals each, probably bots.

    "many" clients with a few each, probably customers; empty if neither.
    """
    if not people or refused < 20:
        return ""
    each = refused / people
    if each >= 20:
        return _("few, very often: rather programs")
    if people >= 10 and each <= 3:
        return _("many, a few times each: rather customers")
    return ""
