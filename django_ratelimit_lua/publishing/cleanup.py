"""Removes rows that have ended, so that their number stays bounded.

Each publication removes rows that ended or were recorded more than `RATELIMIT_HISTORY_DAYS` ago. So
no operator has to do it: each new override is published, and without new overrides nothing grows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Model, QuerySet
from django.utils import timezone

from ..conf import conf
from ..models import RateLimitChange, RateLimitOverride

BATCH = 1000
MAX_ENTRIES = 100_000
"""Maximum number of rows that one publication deletes."""


def outdated(using: str, before: datetime) -> dict[str, QuerySet[Model]]:
    """Return the rows from before a moment: ended overrides and changes."""
    return {
        "ended overrides": RateLimitOverride._base_manager.using(using)
        .filter(ends__lt=before)
        .order_by("ends"),
        "changes": RateLimitChange._base_manager.using(using).filter(at__lt=before).order_by("at"),
    }


def sweep(using: str) -> None:
    """Delete the rows that are older than `RATELIMIT_HISTORY_DAYS`.

    Nothing that is in force changes, so no change is recorded.
    """
    if conf.HISTORY_DAYS is not None:
        prune(using, timezone.now() - timedelta(days=conf.HISTORY_DAYS), MAX_ENTRIES)


def prune(using: str, before: datetime, most: int | None = None) -> dict[str, int]:
    """Delete the rows of `outdated`, a thousand at a time, with a maximum for each kind.

    Return the number of deleted rows of each kind.
    """
    counts = {}
    for name, rows in outdated(using, before).items():
        counts[name] = 0
        while most is None or counts[name] < most:
            keys = list(rows.values_list("pk", flat=True)[:BATCH])
            if not keys:
                break
            # Past the signals, which would note a change.
            rows.filter(pk__in=keys)._raw_delete(using)
            counts[name] += len(keys)
    return counts
