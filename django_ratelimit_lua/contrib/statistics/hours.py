"""From Redis to the database: the hours of rules and limiters with durable statistics.

One of all processes does it, every few minutes, until there is nothing new for a while. Numbers are
absolute and only raise existing ones, so it makes no difference how often they are written, by how
many processes, or when one was killed.
"""

from __future__ import annotations

import time
from datetime import datetime

from django.db import connections
from django.db.models import Max, QuerySet

from ...conf import conf
from ...models import RateLimitRule
from ...process.tasks import Task
from ...publishing.cleanup import sweep
from ...publishing.publish import primary
from ...rules.rule import UNWRITABLE
from ...rules.ruleset import settings_rules
from ...store import get_store, rules_key, take_turn
from . import results
from .keys import DAY, HOURS_KEPT
from .models import Numbers, RateLimitHour
from .reading import Hour, durable_names, hours

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


def names_to_keep(using: str) -> dict[str, int | None]:
    """The rules and limiters with durable statistics, and until when (seconds since 1970.

    None: no end).
    """
    names: dict[str, int | None] = dict(durable_names())
    if conf.RULES:
        names |= dict.fromkeys(
            rule.name for rule in settings_rules() if (rule.given or {}).get("durable")
        )
    rules = RateLimitRule._base_manager.using(using).filter(extra__statistics__durable=True)
    names |= dict.fromkeys(rules.values_list("name", flat=True))
    return {
        name: until
        for name, until in names.items()
        if len(name) <= MAX_NAME_LENGTH and not UNWRITABLE.search(name)
    }


def keep_hours() -> int:
    """Write to the database what it does not have yet of each name: from a day before its last row
    on, or all that Redis has; but nothing that is older than `RATELIMIT_HISTORY_DAYS`.

    Returns how many rows were made or raised. Raises `StoreError`, and whatever the database
    raises.
    """
    using, now = primary(), int(time.time())
    oldest = now - HOURS_KEPT
    if conf.HISTORY_DAYS is not None:
        oldest = max(oldest, int(now - conf.HISTORY_DAYS * DAY))
    written = 0
    for name, until in sorted(names_to_keep(using).items()):
        last = (
            RateLimitHour.objects.using(using)
            .filter(name=name)
            .aggregate(moment=Max("moment"))["moment"]
        )
        since = oldest if last is None else max(oldest, last - DAY)
        found = {
            hour.moment: _numbers(hour)
            for hour in hours(name, range(since // DAY, now // DAY + 1))
            if hour.moment >= oldest and (until is None or hour.moment < until)
        }
        written += RateLimitHour.keep(using, name, found)
    return written


def _numbers(hour: Hour) -> Numbers:
    counts = {COLUMNS[result]: number for result, number in hour.counts.items()}
    return {**counts, "units": hour.units, "near": hour.near, "people_refused": hour.people_refused}


_looks_left = 0


def look() -> None:
    """Start to write hours in a thread of its own, unless another process is at it."""
    global _looks_left
    if take_turn(_turn_key(), 2 * KEEP_SECONDS):
        _looks_left = LAST_LOOKS
        keeping.start()


def _step() -> float | None:
    """Write hours, and come again: the last requests of a quiet site are written without a further
    one.
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
    """Returns how many rows were made or raised."""
    try:
        sweep(primary())
        return keep_hours()
    finally:
        connections[primary()].close()


def outdated_hours(using: str, before: datetime) -> QuerySet[RateLimitHour]:
    """The hours from before this moment, but for those that Redis has and that would be written
    again.
    """
    moment = int(before.timestamp())
    rewritten = int(time.time()) - HOURS_KEPT - DAY
    if conf.HISTORY_DAYS is not None:
        rewritten = max(rewritten, int(time.time() - conf.HISTORY_DAYS * DAY))
    return (
        RateLimitHour._base_manager.using(using)
        .filter(moment__lt=min(moment, rewritten))
        .order_by("moment")
    )


keeping = Task("hours", _step, meanwhile="Redis keeps the statistics, for ninety days")
