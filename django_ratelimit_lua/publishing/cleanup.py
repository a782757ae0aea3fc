"""What has ended is swept away, so that nothing grows without bound however many blocks come and go.

Each publication takes from Redis whoever's overrides have all ended since the one before, and from the database what
ended, or was noted, more than `RATELIMIT_HISTORY_DAYS` ago, and what was counted more than `RATELIMIT_STATISTICS_DAYS`
ago. So nobody has to remember to: who makes an override publishes it, and where nobody makes any, nothing grows; hours
of statistics are swept by who writes them, too.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from ..conf import conf
from ..models import RateLimitChange, RateLimitHour, RateLimitOverride
from ..stats.keys import DAY, HOURS_KEPT

BATCH = 1000
MOST = 100_000
"""Rows that one publication takes from the database, and subjects that it takes from Redis one by one."""


def ended(using: str, since: datetime, until: datetime) -> list[RateLimitOverride] | None:
    """The overrides that ended in between; None where they are too many to be told one by one."""
    rows = RateLimitOverride._base_manager.using(using).filter(ends__gt=since, ends__lte=until)
    overrides = list(rows[: BATCH + 1])
    return overrides if len(overrides) <= BATCH else None


def sweep(using: str) -> None:
    """Take from the database what nobody needs any more. Nothing that is in force changes, so nothing is noted."""
    sweep_hours(using)
    if conf.HISTORY_DAYS is None:
        return
    before = timezone.now() - timedelta(days=conf.HISTORY_DAYS)
    for _ in range(MOST // BATCH):
        if _sweep_overrides(using, before) + _sweep_changes(using, before) == 0:
            return


def kept_since(using: str) -> int:
    """Before which moment no hours of statistics are kept (seconds since 1970; 0: all are): by
    `RATELIMIT_STATISTICS_DAYS`, or by what was pruned."""
    since = 0 if conf.STATISTICS_DAYS is None else int(time.time() - conf.STATISTICS_DAYS * DAY)
    return max(since, RateLimitHour.pruned_before(using))


def sweep_hours(using: str) -> None:
    """Take from the database the hours of statistics that nobody needs any more."""
    since = kept_since(using)
    for _ in range(MOST // BATCH if since else 0):
        if _sweep_hours(using, since) == 0:
            return


class Pruned(NamedTuple):
    """How many rows were older: hours of statistics, overrides that had ended, and changes."""

    hours: int
    overrides: int
    changes: int


def older(using: str, before: datetime) -> Pruned:
    """How much is older."""
    return Pruned(
        RateLimitHour.hours(using).filter(moment__lt=int(before.timestamp())).count(),
        RateLimitOverride._base_manager.using(using).filter(ends__lt=before).count(),
        RateLimitChange._base_manager.using(using).filter(at__lt=before).count(),
    )


def prune(using: str, before: datetime) -> Pruned:
    """Take from the database all that is older, a thousand rows at a time. Hours that Redis still has do not come back
    from there."""
    counts, moment = [0, 0, 0], int(before.timestamp())
    # First, so that who is about to write such an hour finds it afterwards: see `keep_hours`.
    if moment > time.time() - HOURS_KEPT - DAY:
        RateLimitHour.prune_before(using, moment)
    while number := _sweep_hours(using, moment):
        counts[0] += number
    for place, sweep_some in enumerate((_sweep_overrides, _sweep_changes), start=1):
        while number := sweep_some(using, before):
            counts[place] += number
    return Pruned(*counts)


def _sweep_hours(using: str, before: int) -> int:
    rows = RateLimitHour.hours(using).filter(moment__lt=before)
    keys = list(rows.order_by("moment").values_list("pk", flat=True)[:BATCH])
    if keys:
        rows.filter(pk__in=keys)._raw_delete(using)
    return len(keys)


def _sweep_overrides(using: str, before: datetime) -> int:
    rows = RateLimitOverride._base_manager.using(using).filter(ends__lt=before)
    keys = list(rows.order_by("ends").values_list("pk", flat=True)[:BATCH])
    if keys:
        rows.filter(pk__in=keys)._raw_delete(using)  # Past the signals, which would note a change.
    return len(keys)


def _sweep_changes(using: str, before: datetime) -> int:
    rows = RateLimitChange._base_manager.using(using)
    # The first rows are the oldest: so it takes no index of times to find that there is nothing to be done.
    oldest = rows.order_by("pk").values_list("pk", "at")[:BATCH]
    keys = [pk for pk, at in oldest if at < before]
    if keys:
        rows.filter(pk__in=keys)._raw_delete(using)
    return len(keys)
