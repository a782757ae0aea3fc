"""Reports of the statistics: an overview of all limits, and one rule or call site in detail.

The pages of the admin render these dataclasses. In JSON, each field is a member (see `Encoder`).
Moments are in the site's time zone; shares are from 0 to 1; durations are in seconds.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...limits.limit import Limit
from ...limits.rate import Rate
from ...models import RateLimitChange, RateLimitOverride, RateLimitRule
from ...operations.call_sites import call_sites_of, names_in_code
from ...operations.curve import Between, Curve
from ...operations.formatting import number_words, share_words
from ...operations.plot import sparkline
from ...publishing.publish import primary
from ...rules import RuleError
from ...rules.callsite import known_call_sites
from ...rules.describe import period_words, reading
from ...rules.rule import Rule
from ...rules.ruleset import settings_rules
from . import reading as stats
from .attempts import higher_limits
from .buckets import percentile_95
from .hours import kept_series
from .keys import DAY, HOUR, MINUTE, OTHER, SITE
from .marks import Marks
from .reading import Detail, Span
from .recorder import recorder
from .results import BANNED
from .results import SOURCES as LETTERS
from .space_saving import Estimate
from .writing import why_unwritable

BLOCK = "block"
"""Under which blocks are counted that no rule is needed for."""
KINDS = {
    "admin": gettext_lazy("rule"),
    "settings": gettext_lazy("rule of the settings"),
    "code": gettext_lazy("limit in the code"),
    "block": gettext_lazy("blocks without a rule"),
    "other": gettext_lazy("further names, counted as one"),
    "gone": gettext_lazy("limit in the code, or a removed limit"),
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
PERIOD_NAMES = {
    "hour": gettext_lazy("last hour"),
    "day": gettext_lazy("last day"),
    "week": gettext_lazy("last week"),
    "90d": gettext_lazy("90 days"),
}
OVERVIEW_PERIODS = ("hour", "day", "week")
"""Those of the overview."""
MAX_CLIENTS = 10
"""Clients of a list on a page."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests by result.

    - `banned`: the number of refused requests that a ban has refused.
    """

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
        """Return the refused requests or, without any, those that would have been refused."""
        return self.refused or self.would_be_refused

    @property
    def share_of_refusals(self) -> float:
        return self.refusals / self.requests

    def words(self, results: Iterable[str] = RESULT_NAMES) -> str:
        """Return the numbers of these results in words; empty if all are 0."""
        numbers = vars(self)
        return ", ".join(
            f"{number_words(numbers[word])} {RESULT_NAMES[word]}"
            for word in results
            if numbers[word]
        )


@dataclass(frozen=True, kw_only=True)
class Point(Counts):
    """The counts of one step, which begins at a moment."""

    at: datetime.datetime


@dataclass(frozen=True)
class PerMinute:
    """Requests per minute, at present."""

    requests: float = 0.0
    refused: float = 0.0
    would_be_refused: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Course(Counts):
    """The counts of a period, also step by step, of the whole site or of one name.

    - `p95_seconds`: the 95th percentile of the decision time;
    - `sources`: decisions by source.
    """

    share_refused: float | None = None
    per_minute: PerMinute = PerMinute()
    p95_seconds: float | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    period: str = "day"
    points: Sequence[Point] = ()

    @property
    def source_words(self) -> str:
        """Return the sources of decisions, the most frequent first, with their shares."""
        whole = sum(self.sources.values())
        ordered = sorted(self.sources.items(), key=lambda pair: -pair[1])
        return ", ".join(
            f"{SOURCES.get(source, source)} {share_words(of / whole)}"
            for source, of in ordered
            if of
        )

    @property
    def spark(self) -> SafeString | str:
        """A small drawing of the period; empty if there were no requests."""
        if not self.requests:
            return ""
        words = f"{capfirst(PERIOD_NAMES[self.period])}: {self.words()}"
        return sparkline([vars(point) for point in self.points], words)


@dataclass(frozen=True, kw_only=True)
class NamedLimit:
    """The limits under a name: of a rule of the admin or the settings, or in the code.

    - `rule`: the primary key of the rule's row.
    """

    name: str
    kind: str = ""
    reading: str = ""
    mode: str = ""
    rule: int | None = None
    limits: Sequence[Limit] = ()

    @property
    def kind_words(self) -> str:
        return str(KINDS[self.kind])


@dataclass(frozen=True, kw_only=True)
class Row(NamedLimit, Course):
    """The counts of one rule or call site in a period."""

    people_refused: int = 0

    @property
    def pattern(self) -> str:
        """Describe how the refusals of this row are distributed among clients; see `pattern`."""
        return pattern(self.refusals, self.people_refused)


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The counts of every rule and call site in a period, as one page of a list.

    - `names`: the total number of names;
    - `identities`: the ten clients that were refused most by all limits, each request counted once.
      A client is listed once for all limits with the same key, and separately for limits with
      another key. Like all lists of clients, it covers the last 24 hours at most.
    """

    at: datetime.datetime
    period: str
    from_: datetime.datetime
    to: datetime.datetime
    site: Course
    rows: Sequence[Row]
    names: int
    page: int
    pages: int
    sort: str
    query: str
    dropped: int
    identities: Sequence[Estimate]


@dataclass(frozen=True, kw_only=True)
class Report(NamedLimit, Course):
    """The counts of one rule or call site in a period.

    - `since`: the beginning of counts that are not stored by minute, at the start of an hour or a
      day;
    - `counts_since`: the requests since then;
    - `identities`: the ten clients with most refusals (`refused`) and with most units (`used`).
    """

    at: datetime.datetime
    from_: datetime.datetime
    to: datetime.datetime
    step_seconds: int
    people_refused: int
    units: int
    near_limit: int
    curves: Sequence[Curve]
    since: datetime.datetime
    counts_since: Counts
    identities: Mapping[str, Sequence[Estimate]]

    @property
    def is_rehearsal(self) -> bool:
        """Return whether no request was refused, but some would have been."""
        return not self.counts_since.refused and bool(self.counts_since.would_be_refused)

    @property
    def reaches_back(self) -> bool:
        """Return whether counts by hour or day begin before the chart does."""
        return self.since < self.from_

    @property
    def has_slots(self) -> bool:
        """Return whether one of the limits is a concurrency limit."""
        return any(limit.rate.is_slots for limit in self.limits)

    @property
    def pattern(self) -> str:
        """Describe how the refusals of this report are distributed among clients; see `pattern`."""
        return pattern(self.counts_since.refusals, self.people_refused)


class Encoder(DjangoJSONEncoder):
    """Encodes dataclasses: each field is a member, without an underscore at the end of its name."""

    def default(self, o: object) -> object:
        if isinstance(o, Curve):
            return curve_members(o)
        if isinstance(o, Limit):
            return {
                "limit": o.rate.limit,
                "burst": o.burst,
                "period_seconds": o.rate.period,
                "algorithm": o.algorithm,
                "mode": o.mode,
            }
        if isinstance(o, Estimate):
            parts = [{"kind": kind, "value": value} for kind, value in o.name]
            least, most = o.bounds
            return {"digest": o.digest, "parts": parts, "least": least, "most": most}
        if is_dataclass(o):
            return {one.name.rstrip("_"): getattr(o, one.name) for one in fields(o)}
        return super().default(o)


def named(name: str) -> NamedLimit:
    """Return the limits under a name."""
    row = RateLimitRule.objects.using(primary()).filter(name=name).first()
    return _describe(name, row)


def _describe(name: str, row: RateLimitRule | None) -> NamedLimit:
    if row is None:
        return _in_code(name)
    limits: Sequence[Limit] = ()
    with suppress(RuleError):
        limits = _limits(row.compiled())
    return NamedLimit(
        name=name, kind="admin", reading=row.reading(), mode=row.mode, rule=row.pk, limits=limits
    )


def _limits(rule: Rule) -> Sequence[Limit]:
    if rule.template is None:
        return ()
    return rule.template.limits(rule.name)


def _in_code(name: str) -> NamedLimit:
    for rule in settings_rules():
        if rule.name == name:
            words = reading(rule.given or {})
            return NamedLimit(
                name=name, kind="settings", reading=words, mode=rule.mode, limits=_limits(rule)
            )
    sites = call_sites_of(name)
    kind = {BLOCK: "block", OTHER: "other"}.get(name, "gone")
    if sites or known_call_sites.knows(name):
        kind = "code"
    return NamedLimit(
        name=name,
        kind=kind,  # Long names are not known, even if a call site has them.
        reading="; ".join(site.words() for site in sites),
        limits=[limit for site in sites for limit in site.limits],
    )


def _lately(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the fields of `Course` about the last minutes, for each name."""
    now = time.time()
    span = Span.last(2 * MINUTE, MINUTE, now)
    points = stats.series(names, span)
    histograms = stats.details_of(names, Span.last(2 * HOUR, HOUR))
    return {
        name: {
            "per_minute": _per_minute(stats.add_up(points[name]), now - span.start),
            "p95_seconds": percentile_95(histograms[name].times),
        }
        for name in names
    }


SORTS: dict[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name.casefold(),
    "requests": attrgetter("requests"),
    "refused": attrgetter("refused", "would_be_refused", "requests"),
    "share": lambda row: (row.share_refused or 0.0, row.refused),
}
"""The columns that can be sorted by; the others are only read for the names of one page."""


def overview(
    sort: str = "-refused",
    query: str = "",
    page: int | str = 1,
    size: int = 50,
    period: str = "day",
) -> Overview:
    """Return the counts of every rule and call site in a period, in pages.

    Args:
        sort: One of `SORTS`; with a minus, the largest come first.
        query: A part of the names.
        page: The number of the page; an invalid one stands for the first or the last.
        size: The number of names on a page.
        period: One of `OVERVIEW_PERIODS`; any other stands for a day.

    Raises:
        StoreError: Redis is unavailable.
    """
    by = sort.removeprefix("-")
    if by not in SORTS:
        by = "refused"
        sort = "-refused"
    if period not in OVERVIEW_PERIODS:
        period = "day"
    span = span_of(period)
    if period == "day":  # Half hours would have to be added up from minutes.
        span = span._replace(step=HOUR)
    stored = RateLimitRule.objects.using(primary())
    rule_names = set(stored.values_list("name", flat=True))
    counted = {name for name, hour in stats.known_names().items() if hour >= span.start - HOUR}
    names = {*rule_names, *counted, *names_in_code()}
    wanted = query.strip().casefold()
    found = sorted(name for name in names if wanted in name.casefold())
    series = stats.series([SITE, *(name for name in found if name in counted)], span)
    courses = {name: _course(points) for name, points in series.items()}
    site = courses.pop(SITE)
    listed = [Row(name=name, period=period, **courses.get(name, {})) for name in found]
    listed.sort(key=SORTS[by], reverse=sort.startswith("-"))
    shown = Paginator(listed, size).get_page(page)
    # Other names may have characters that the database refuses.
    names_stored = [row.name for row in shown if row.name in rule_names]
    rules = stored.in_bulk(names_stored, field_name="name")
    names_read = [row.name for row in shown if row.name in courses]
    lately = _lately([SITE, *names_read])
    people = stats.people_refused(names_read, span)
    return Overview(
        **_times(period, span),
        site=Course(period=period, **site, **lately[SITE]),
        rows=[
            replace(
                row,
                **vars(_describe(row.name, rules.get(row.name))),
                **lately.get(row.name, {}),
                people_refused=people.get(row.name, 0),
            )
            for row in shown
        ],
        names=len(found),
        page=shown.number,
        pages=shown.paginator.num_pages,
        sort=sort,
        query=query,
        dropped=stats.dropped(),
        identities=_top(SITE, period, "refused"),
    )


def last_days(names: Sequence[str]) -> dict[str, Course]:
    """Return the counts of the last day under each of these names.

    Raises:
        StoreError: Redis is unavailable.
    """
    series = stats.series(names, Span.last(DAY, HOUR))
    return {name: Course(**_course(points)) for name, points in series.items()}


def why_uncounted() -> str | None:
    """Return why statistics cannot be written, or None if they can.

    A trial write is made, because other processes may have unwritten counts.
    """
    error = recorder.error or why_unwritable()
    if error is None:
        return None
    return str(error)


def one(name: str, period: str) -> Report:
    """Return the counts of one rule or call site in a period.

    Raises:
        StoreError: Redis is unavailable.
    """
    what = named(name)
    span = span_of(period)
    # Hours may be in the database if Redis has lost them.
    if span.step == DAY:
        points = _by_day(kept_series(name, span._replace(step=HOUR)))
    elif span.step >= HOUR:
        points = kept_series(name, span)
    else:
        points = stats.series([name], span)[name]
    histograms = stats.details_of([name], span)[name]
    # The time of the histograms, which are kept in minutes, hours or days.
    since = Span(histograms.since, span.end, MINUTE if span.is_by_minute else HOUR)
    whole = stats.add_up(stats.series([name], since)[name])
    counts_since = Counts(**_counts(whole))
    course = {**_course(points), **_lately([name])[name]}
    course |= {"sources": _sources(whole), "p95_seconds": percentile_95(histograms.times)}
    return Report(
        **vars(what),
        **course,
        **_times(period, span),
        step_seconds=span.step,
        people_refused=stats.people_refused([name], span)[name],
        units=whole["u"],
        near_limit=whole["n"],
        curves=curves(what, span, histograms, counts_since, whole["u"]),
        since=moment_of(histograms.since),
        counts_since=counts_since,
        identities={what: _top(name, period, what) for what in ("refused", "used")},
    )


def curves(
    what: NamedLimit, span: Span, histograms: Detail, counts: Counts, units: int
) -> list[Curve]:
    """Return the refusal curve of each period that was counted, the shortest first.

    Slots have no curve: with another number of slots, other requests would have run at once.

    Args:
        what: The limits.
        span: The time of the curves.
        histograms: The use of the limits in that time.
        counts: The requests since the beginning of the histograms.
        units: The units that these requests took.
    """
    by_period: dict[int, Limit] = {}
    for limit in what.limits:
        by_period.setdefault(limit.rate.period_us, limit)
    others = _other_limits(what, Span(histograms.since, span.end, HOUR))
    refused = counts.refused + counts.would_be_refused
    is_unit = units == counts.allowed
    if len(histograms.used) > 1:
        others.append("periods")
    found = []
    for period_us, used in sorted(histograms.used.items()):
        if not period_us:
            continue
        marks = stats.marks(what.name, period_us, span)
        now = by_period.get(period_us)
        higher = None
        if now is not None and is_unit and refused and not (others or counts.banned):
            higher = higher_limits(what.name, now, span, refused)
        found.append(
            Curve(
                period_us,
                now,
                requests=used.total(),
                people=marks.people,
                find_requests=partial(histograms.beyond, period_us),
                find_people=partial(_people_beyond, marks),
                most=max(marks.marks, default=0),
                refused=refused,
                others=tuple(others),
                is_exact=is_unit and now is not None and now.kind.ends_together,
                higher=higher,
                is_sampled=not marks.is_exact,
            )
        )
    return found


def _people_beyond(marks: Marks, units: int) -> Between:
    return Between(*marks.beyond(units))


def _other_limits(what: NamedLimit, span: Span) -> list[str]:
    """Return why another limit applied to some clients or during a part of the period."""
    start, end = _moments(span)
    overrides = RateLimitOverride.objects.between(start, end).filter(effect="limit")
    changes = RateLimitChange.objects.using(primary()).filter(
        kind=RateLimitChange.Kind.RULE, name=what.name, at__gte=start, at__lt=end
    )
    if not _in_code(what.name).limits:  # Before the rule was created, there was no limit.
        changes = changes.exclude(action=RateLimitChange.Action.CREATED)
    reasons = {
        "changes": changes.exists(),
        "overrides": overrides.filter(rule=what.name).exists(),
        "tiers": RateLimitRule.objects.filter(pk=what.rule or 0, options__has_key="tiers").exists(),
    }
    return [reason for reason, holds in reasons.items() if holds]


def curve_members(curve: Curve) -> dict[str, object]:
    """Return the JSON of a refusal curve; the numbers of a point are written as [least, most]."""
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
        "points": [point._asdict() for point in curve.points()],
    }


def _top(name: str, period: str, what: str) -> list[Estimate]:
    clients = stats.top(name, span_of(period), what)[:MAX_CLIENTS]
    # A client that may not have come at all is noise of the estimates.
    return [client for client in clients if client.times > client.error]


def span_of(period: str) -> Span:
    """Return a period of `PERIODS` up to now, with steps aligned to the site's time zone.

    The period of one day consists of whole hours in UTC. The days of a longer period have 23 to 25
    hours.
    """
    length, step = PERIODS[period]
    now = moment_of(time.time())
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if step == DAY:
        tomorrow = midnight + datetime.timedelta(days=1)
        start = tomorrow - datetime.timedelta(seconds=length)
        return Span(int(start.timestamp()), int(tomorrow.timestamp()), step)
    seconds = int(now.timestamp() - midnight.timestamp())
    if length == DAY:  # Whole hours of UTC, by which most is kept.
        end = (int(now.timestamp()) // HOUR + 1) * HOUR
    else:
        end = int(now.timestamp()) - seconds % step + step
    return Span(end - length, end, step)


def _times(period: str, span: Span) -> dict[str, Any]:
    """Return the fields of a report about its period."""
    return {
        "at": moment_of(time.time()),
        "period": period,
        "from_": moment_of(span.start),
        "to": moment_of(span.end),
    }


def _by_day(points: Iterable[stats.Point]) -> list[stats.Point]:
    """Add up the hours of each day in the site's time zone."""
    days: dict[datetime.date, stats.Point] = {}
    for point in points:
        day = days.setdefault(moment_of(point.moment).date(), stats.Point(point.moment, Counter()))
        day.counts.update(point.counts)
    return list(days.values())


def _moments(span: Span) -> list[datetime.datetime]:
    """Return the beginning and the end as the database stores moments: naive without `USE_TZ`."""
    zone = datetime.UTC if settings.USE_TZ else None
    return [datetime.datetime.fromtimestamp(at, zone) for at in (span.start, span.end)]


def moment_of(at: float) -> datetime.datetime:
    """Return a moment, given in seconds since 1970, in the time zone of the site."""
    return timezone.localtime(datetime.datetime.fromtimestamp(int(at), datetime.UTC))


def _counts(counts: stats.Counts) -> dict[str, int]:
    numbers = {word: sum(counts[letter] for letter in letters) for word, letters in RESULTS.items()}
    return {"requests": sum(numbers.values()), **numbers, "banned": counts[BANNED]}


def _sources(counts: stats.Counts) -> dict[str, int]:
    numbers = {source: counts[f"S{letter}"] for source, letter in LETTERS.items()}
    return {source: number for source, number in numbers.items() if number}


def _course(points: Sequence[stats.Point]) -> dict[str, Any]:
    """Return the fields of `Course` that are read from its steps."""
    whole = stats.add_up(points)
    counts = _counts(whole)
    share = round(counts["refused"] / counts["requests"], 6) if counts["requests"] else None
    steps = [Point(at=moment_of(point.moment), **_counts(point.counts)) for point in points]
    return {**counts, "share_refused": share, "sources": _sources(whole), "points": steps}


def _per_minute(counts: stats.Counts, seconds: float) -> PerMinute:
    numbers = _counts(counts)
    return PerMinute(*(round(numbers[one.name] * 60 / seconds, 1) for one in fields(PerMinute)))


def pattern(refused: int, people: int) -> str:
    """Describe how refusals are distributed among clients; empty if there is no clear pattern.

    A few clients with many refusals each are probably bots. Many clients with a few refusals each
    are probably customers.
    """
    if not people or refused < 20:
        return ""
    each = refused / people
    if each >= 20:
        return _("few clients, many refusals: probably bots")
    if people >= 10 and each <= 3:
        return _("many clients, few refusals each: probably customers")
    return ""
