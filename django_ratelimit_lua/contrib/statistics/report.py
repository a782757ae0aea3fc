"""The counts of a period, of the whole site or of one rule or call site, and tables of them."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import RateLimitRule
from ...models.rule import rules_database
from ...operations.formatting import number_words
from ...operations.known_limits import limits_named, names_in_code
from ...rules.rule import Spec, is_storable
from ...rules.ruleset import settings_rules
from ...views.call_sites import describe_rule
from . import reading
from .counters import (
    DAY,
    HOUR,
    HOURS_KEPT,
    MINUTE,
    OTHER,
    SITE,
    SOURCES,
    by_word,
)
from .hours import read_stored_hours
from .reading import Counts, Point, Span

RESULT_NAMES = {
    "requests": gettext_lazy("requests"),
    "refused": gettext_lazy("refused"),
    "banned": gettext_lazy("of these by bans"),
    "blocked": gettext_lazy("blocked"),
    "would_be_refused": gettext_lazy("would be refused"),
    "allowed": gettext_lazy("allowed"),
    "exempt": gettext_lazy("exempt"),
    "policy": gettext_lazy("decided by the policy for outages"),
    "failed": gettext_lazy("not applied"),
}
SOURCE_NAMES = {
    "redis": gettext_lazy("Redis"),
    "deny-cache": gettext_lazy("deny cache"),
    "lease": gettext_lazy("leases"),
    "split": gettext_lazy("split shares"),
    "fallback": gettext_lazy("fallback"),
}
PERIODS = {
    "hour": (HOUR, MINUTE),
    "day": (DAY, HOUR),
    "week": (7 * DAY, 3 * HOUR),
    "90d": (90 * DAY, DAY),
    "year": (364 * DAY, 7 * DAY),
}
"""The length of each period and of its steps, in seconds. Redis has no more than 90 days."""
PERIOD_NAMES = {
    "hour": gettext_lazy("last hour"),
    "day": gettext_lazy("last day"),
    "week": gettext_lazy("last week"),
    "90d": gettext_lazy("90 days"),
    "year": gettext_lazy("one year"),
}
BLOCK = "block"
"""The name under which blocks are counted that need no rule."""
GROUPS = {
    BLOCK: gettext_lazy("blocks without a rule"),
    OTHER: gettext_lazy("further names, counted as one"),
}

BARS = ("requests", "would_be_refused", "refused")
"""The bars of a step, each in front of the one before: refusals stand on the ground."""
MIN_HEIGHT = 2.0
"""The height of a bar of refusals, in percent, however few they are."""


class Column(NamedTuple):
    """A column of a report; `kind` is the CSS class of its cells."""

    heading: Any
    kind: str = ""


@dataclass(frozen=True)
class Report:
    """A table of a page.

    - `rows`: the cells of each row, as text or safe HTML; the first is the heading of the row;
    - `note`: an explanation below the table;
    - `is_closed`: whether only its title is shown at first.
    """

    title: Any
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    period: Any
    note: Any = ""
    is_closed: bool = False

    def cells(self) -> Iterator[list[tuple[Column, Any]]]:
        """Yield the cells of each row, with their columns."""
        for row in self.rows:
            yield list(zip(self.columns, row, strict=True))


@dataclass(frozen=True)
class Timeline:
    """The counts of a name in a period: of each step, and their sums.

    - `points`: the counts of each step, by letter.
    """

    name: str
    period: str
    points: Sequence[Point]

    @cached_property
    def numbers(self) -> Counts:
        """Return the counts of all steps, by word: see `counters.by_word`."""
        return by_word(reading.add_up(self.points))

    @cached_property
    def steps(self) -> list[Point]:
        """Return the counts of each step, by word. Only the few limits that are shown need them."""
        return [Point(point.moment, by_word(point.counts)) for point in self.points]

    @property
    def refusals(self) -> str:
        """Return "refused" or, if there are only refusals in shadow mode, their word."""
        if self.numbers["would_be_refused"] and not self.numbers["refused"]:
            return "would_be_refused"
        return "refused"

    @property
    def share_words(self) -> str:
        """Return the share of `refusals` in words."""
        requests = self.numbers["requests"]
        if not requests:
            return "—"
        return share_words(self.numbers[self.refusals] / requests)

    @property
    def source_words(self) -> str:
        """Return the sources of decisions, the most frequent first, with their shares."""
        counts = reading.add_up(self.points)
        sources = Counter({source: counts[f"S{letter}"] for source, letter in SOURCES.items()})
        whole = sources.total()
        return ", ".join(
            f"{SOURCE_NAMES[source]} {share_words(number / whole)}"
            for source, number in sources.most_common()
            if number
        )

    @property
    def label(self) -> str:
        """Return the period and its results in words."""
        return f"{PERIOD_NAMES[self.period]}, {result_words(self.numbers)}"

    @property
    def spark(self) -> SafeString | str:
        """Return a small chart of the period; empty if there were no requests."""
        if not self.numbers["requests"]:
            return ""
        return draw_bars([step.counts for step in self.steps], self.label)


def result_words(counts: Counts, results: Iterable[str] = RESULT_NAMES) -> str:
    """Return counts in words; empty if all are 0."""
    return ", ".join(
        f"{RESULT_NAMES[word]}: {number_words(counts[word])}" for word in results if counts[word]
    )


def span_of(period: str) -> Span:
    """Return a period of `PERIODS` up to now.

    Steps of three hours or more are aligned to the site's time zone, others to UTC.
    """
    length, step = PERIODS[period]
    now = local_moment(time.time())
    seconds = int(now.timestamp())
    if step <= HOUR:
        end = (seconds // step + 1) * step
    else:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since_midnight = seconds - int(midnight.timestamp())
        aligned_step = min(step, DAY)
        end = seconds - since_midnight % aligned_step + aligned_step
    return Span(end - length, end, step)


def local_moment(at: float) -> datetime.datetime:
    """Return a moment, given in seconds since 1970, in the time zone of the site."""
    return timezone.localtime(datetime.datetime.fromtimestamp(int(at), datetime.UTC))


def read_timelines(names: Sequence[str], period: str) -> dict[str, Timeline]:
    """Return the counts of each name in a period.

    Raises:
        StoreError: Redis is unavailable.
    """
    series = reading.read_series(names, span_of(period))
    return {name: Timeline(name, period, points) for name, points in series.items()}


def read_stored_timeline(name: str, period: str) -> Timeline:
    """Return the counts of one name in a period, of which the database may have more than Redis.

    For each hour, the counts with more requests are used, because Redis has more of the last
    minutes.

    Raises:
        StoreError: Redis is unavailable. The database may raise its own errors.
    """
    span = span_of(period)
    if span.step < HOUR or not is_storable(name):
        return read_timelines([name], period)[name]
    hours = span._replace(start=span.start // HOUR * HOUR, step=HOUR)
    in_redis = hours._replace(start=max(hours.start, hours.end - HOURS_KEPT))
    by_hour = dict(reading.read_series([name], in_redis)[name])
    for moment, counts in read_stored_hours(name, hours.start, hours.end).items():
        redis_counts = by_hour.get(moment, Counter())
        if by_word(counts)["requests"] > by_word(redis_counts)["requests"]:
            by_hour[moment] = counts
    return Timeline(name, period, reading.group_by_step(span, HOUR, by_hour))


def read_limits(period: str) -> list[Timeline]:
    """Return the counts of all rules and call sites; those that refused most come first.

    Raises:
        StoreError: Redis is unavailable.
    """
    rules = RateLimitRule.objects.using(rules_database()).values_list("name", flat=True)
    names = {*rules, *reading.read_names(), *names_in_code()}
    timelines = read_timelines(sorted(names), period).values()
    results = ("refused", "would_be_refused", "requests")
    return sorted(timelines, key=lambda timeline: [-timeline.numbers[result] for result in results])


def find_spec(name: str, row: RateLimitRule | None) -> Spec:
    """Return the rule of a name from its row or the settings; empty if they have no such rule."""
    if row is not None:
        return row.spec
    return next((rule.spec for rule in settings_rules() if rule.name == name), {})


def describe_limit(name: str, row: RateLimitRule | None) -> str:
    """Return the limits under a name in a sentence; empty if it is not known any more."""
    spec = find_spec(name, row)
    if spec:
        return describe_rule(spec)
    return "; ".join(limit.words for limit in limits_named(name))


def read_outages() -> list[reading.Outage]:
    """Return the times of the last two days in which decisions were made without Redis.

    Raises:
        StoreError: Redis is unavailable.
    """
    hour = span_of("hour")
    span = hour._replace(start=hour.end - 2 * DAY)
    return reading.find_outages(reading.read_series([SITE], span)[SITE])


def draw_bars(
    steps: Sequence[Mapping[str, int]], label: str, hovers: Sequence[str] = ()
) -> SafeString:
    """Return a bar for each step as SVG, with a text for each that a pointer shows.

    Shapes are paths with a class, coloured by the style sheet: a strict Content-Security-Policy
    allows no inline style. The SVG takes the width of its place.

    >>> draw_bars([{"requests": 4, "refused": 1}], "Requests")
    '<svg class="ratelimit-bars" viewBox="0 0 10 100" preserveAspectRatio="none" role="img" aria-label="Requests"><path class="requests" d="M1 100v-100.0h8v100.0z"/><path class="would_be_refused" d=""/><path class="refused" d="M1 100v-25.0h8v25.0z"/></svg>'
    """  # noqa: E501
    maximum = max((step["requests"] for step in steps), default=0)
    paths = ((result, _draw_path(steps, result, maximum)) for result in BARS)
    hover = '<rect class="hover" x="{}" width="10" height="100"><title>{}</title></rect>'
    return format_html(
        '<svg class="ratelimit-bars" viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}{}</svg>',
        10 * len(steps),
        label,
        format_html_join("", '<path class="{}" d="{}"/>', paths),
        format_html_join("", hover, ((10 * place, text) for place, text in enumerate(hovers))),
    )


def _draw_path(steps: Sequence[Mapping[str, int]], result: str, maximum: int) -> str:
    """Return the path of the bars of one result; `maximum` requests are as high as the chart."""
    path = ""
    for place, step in enumerate(steps):
        if step.get(result):
            height = max(MIN_HEIGHT, 100 * step[result] / maximum)
            path += f"M{10 * place + 1} 100v{-height:.1f}h8v{height:.1f}z"
    return path


def share_words(share: float) -> str:
    """Return a share in percent, in which a small share is not shown as 0.

    >>> share_words(0.5), share_words(0.00001), share_words(0)
    ('50%', '< 0.1%', '0%')
    """
    percent = share * 100
    if 0 < percent < 0.1:
        return _("< %(share)s%%") % {"share": formats.number_format(0.1)}
    digits = int(0 < percent < 9.95)
    # Rounded first, as Django cuts digits off.
    return _("%(share)s%%") % {"share": formats.number_format(round(percent, digits), digits)}
