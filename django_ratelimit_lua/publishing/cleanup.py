"""What has ended is swept away, so that nothing grows without bound however many blocks come and go.

Each publication takes from Redis whoever's overrides have all ended since the one before, and from the database what
ended, was noted or was counted more than `RATELIMIT_HISTORY_DAYS` ago. So nobody has to remember to: who makes an
override publishes it, and where nobody makes any, nothing grows; whoever writes hours of statistics sweeps, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet
from django.utils import timezone

from ..conf import conf
from ..contrib.statistics.keys import DAY, HOURS_KEPT
from ..models import RateLimitChange, RateLimitHour, RateLimitOverride

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
    if conf.HISTORY_DAYS is None:
        return
    before = timezone.now() - timedelta(days=conf.HISTORY_DAYS)
    for _ in range(MOST // BATCH):
        if sum(sweep_some(using, before) for sweep_some in (_sweep_hours, _sweep_overrides, _sweep_changes)) == 0:
            return


class Pruned(NamedTuple):
    """How many rows were older: hours of statistics, overrides that had ended, and changes."""

    hours: int
    overrides: int
    changes: int


def older(using: str, before: datetime) -> Pruned:
    """How much is older. The hours that Redis has stay, as they would be written again."""
    return Pruned(
        _hours_before(using, _before_redis(before)).count(),
        RateLimitOverride._base_manager.using(using).filter(ends__lt=before).count(),
        RateLimitChange._base_manager.using(using).filter(at__lt=before).count(),
    )


def prune(using: str, before: datetime) -> Pruned:
    """Take from the database all that `older` counts, a thousand rows at a time."""
    counts = []
    for sweep_some, moment in (
        (_sweep_hours, _before_redis(before)),
        (_sweep_overrides, before),
        (_sweep_changes, before),
    ):
        counts.append(0)
        while number := sweep_some(using, moment):
            counts[-1] += number
    return Pruned(*counts)


def _before_redis(before: datetime) -> datetime:
    return min(before, timezone.now() - timedelta(seconds=HOURS_KEPT + DAY))


def _hours_before(using: str, before: datetime) -> QuerySet[RateLimitHour]:
    return RateLimitHour._base_manager.using(using).filter(moment__lt=int(before.timestamp()))


def _sweep_hours(using: str, before: datetime) -> int:
    rows = _hours_before(using, before)
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
