"""Hourly counts in the database, which keeps them longer than Redis.

The counts of names with durable statistics are copied from Redis. One process at a time copies
them, every few minutes, until there is nothing new for a while. The copied numbers are totals, and
a stored number is never lowered. So they may be written repeatedly, by several processes, and after
a process was killed.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime

from django.db import connections
from django.db.models import Max, QuerySet

from ...conf import conf
from ...models import RateLimitRule
from ...process.tasks import Task
from ...publishing.cleanup import sweep
from ...publishing.publish import primary
from ...rules.rule import is_unwritable
from ...rules.ruleset import settings_rules
from ...store import get_store, rules_key, take_turn
from . import results
from .keys import DAY, HOUR, HOURS_KEPT, MINUTES_KEPT
from .models import Numbers, RateLimitHour
from .reading import Counts, Point, Span, by_step, durable_names, people_refused, series

KEEP_SECONDS = 300.0
LAST_LOOKS = 3
"""Number of looks in a row without news after which the task ends. The next request starts it
again.
"""
MAX_NAME_LENGTH = 200
COLUMNS = {
    results.ALLOWED: "allowed",
    results.REFUSED: "refused",
    results.BANNED: "banned",
    results.ALLOWED_ADVISING: "advised_allowed",
    results.ADVISED: "advised_refused",
    results.ALLOWED_IN_SHADOW: "shadow_allowed",
    results.SHADOW: "shadow_refused",
    results.EXEMPT: "exempt",
    results.BLOCKED: "blocked",
    results.POLICY: "policy",
    results.FAILED: "failed",
}
"""The column of each result."""


def names_to_keep(using: str) -> dict[str, int]:
    """Return the rules and limiters with durable statistics.

    Returns:
        For each name, the end of the hourly counts to copy, in seconds since 1970.
    """
    names = durable_names()
    rules = RateLimitRule._base_manager.using(using).filter(options__durable=True)
    rule_names = set(rules.values_list("name", flat=True))
    rule_names |= {rule.name for rule in settings_rules() if (rule.given or {}).get("durable")}
    names |= dict.fromkeys(rule_names, int(time.time()) + HOUR)
    return {
        name: until
        for name, until in names.items()
        if len(name) <= MAX_NAME_LENGTH and not is_unwritable(name)
    }


def keep_hours() -> int:
    """Write hourly counts that the database does not have yet.

    For each name, the hours from a day before its last row on are written. Without a row, all hours
    in Redis are written. Hours older than `RATELIMIT_HISTORY_DAYS` are left out.

    Returns:
        The number of rows that were created or raised.

    Raises:
        StoreError: Redis is unavailable. The database may raise its own errors.
    """
    using = primary()
    oldest = _oldest(HOURS_KEPT)
    written = 0
    for name, until in sorted(names_to_keep(using).items()):
        rows = RateLimitHour.objects.using(using).filter(name=name)
        last = rows.aggregate(last=Max("moment", default=0))["last"]
        since = max(oldest, last - DAY)
        span = Span(since + -since % HOUR, until, HOUR)
        found = {
            point.moment: _numbers(name, point)
            for point in series([name], span)[name]
            if point.counts
        }
        if found:
            written += RateLimitHour.keep(using, name, found)
    return written


def _oldest(seconds: float) -> int:
    """Return the moment this many seconds ago, but not before `RATELIMIT_HISTORY_DAYS`."""
    if conf.HISTORY_DAYS is not None:
        seconds = min(seconds, conf.HISTORY_DAYS * DAY)
    return int(time.time() - seconds)


def _numbers(name: str, hour: Point) -> Numbers:
    numbers: dict[str, int | None] = {
        column: hour.counts[result] for result, column in COLUMNS.items()
    }
    numbers |= {"units": hour.counts["u"], "near": hour.counts["n"], "people_refused": None}
    if hour.moment > time.time() - MINUTES_KEPT + HOUR:
        span = Span(hour.moment, hour.moment + HOUR, HOUR)
        numbers["people_refused"] = people_refused([name], span)[name]
    return numbers


def kept_series(name: str, span: Span) -> list[Point]:
    """Return the requests of one name, step by step, in steps of an hour or more.

    For each hour, the larger count of the database and Redis is returned, because Redis has more of
    the last minutes.

    Raises:
        StoreError: Redis is unavailable. The database may raise its own errors.
    """
    # The hours of UTC, in which a span need not begin if a clock is half an hour off.
    begin = span.start - span.start % HOUR
    by_hour: dict[int, Counts] = {}
    if not is_unwritable(name):
        rows = RateLimitHour.objects.using(primary()).filter(name=name)
        for row in rows.filter(moment__gte=begin, moment__lt=span.end):
            by_hour[row.moment] = Counter(
                {result: getattr(row, column) for result, column in COLUMNS.items()}
            )
    oldest = int(time.time()) // DAY * DAY - HOURS_KEPT
    for point in series([name], Span(max(begin, oldest), span.end, HOUR))[name]:
        by_hour[point.moment] = by_hour.get(point.moment, Counter()) | point.counts
    return by_step(span, HOUR, by_hour)


_looks_left = 0


def look() -> None:
    """Start copying hourly counts in a background task, unless another process copies them."""
    global _looks_left
    if take_turn(_turn_key(), 2 * KEEP_SECONDS):
        _looks_left = LAST_LOOKS
        keeping.start()


def _step() -> float | None:
    """Copy hourly counts, and repeat that until there is nothing new.

    So the last requests before a quiet time are copied without waiting for another request.
    """
    global _looks_left
    store = get_store(background=True)
    # Until the next look, so that no other process begins.
    store.execute(b"SET", _turn_key(), b"1", b"PX", b"%d" % (2000 * KEEP_SECONDS))
    _looks_left = LAST_LOOKS if _keep() else _looks_left - 1
    if _looks_left > 0:
        return KEEP_SECONDS
    store.execute(b"DEL", _turn_key())
    return None


def _turn_key() -> bytes:
    return rules_key() + b":hours:turn"


def _keep() -> int:
    """Copy hourly counts, and return the number of rows that were created or raised."""
    try:
        sweep(primary())
        return keep_hours()
    finally:
        connections[primary()].close()


def outdated_hours(using: str, before: datetime) -> QuerySet[RateLimitHour]:
    """Return the hourly counts from before a moment, except those that would be copied again."""
    moment = min(int(before.timestamp()), _oldest(HOURS_KEPT + DAY))
    rows = RateLimitHour._base_manager.using(using)
    return rows.filter(moment__lt=moment).order_by("moment")


keeping = Task("hours", _step, meanwhile="Redis keeps the statistics, for ninety days")
