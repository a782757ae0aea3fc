"""Hourly counts in the database, which keeps them longer than Redis.

Once an hour, one of the processes that know a name with durable statistics copies its counts from
Redis. If none did, for example because none ran, the next one catches up: Redis keeps the hours for
91 days.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter

from django.db import connections
from django.db.models import Max

from ...conf import conf
from ...models import RateLimitRule
from ...models.rule import rules_database
from ...process.tasks import JobRunner
from ...publishing.publisher import is_in_memory
from ...rules.rule import is_storable
from ...rules.ruleset import settings_rules
from ...store import Deadline, acquire_lock, flusher
from ...views.call_sites import known_call_sites
from .counters import DAY, HOUR, HOURS_KEPT, MINUTE, by_word, key_of
from .models import RateLimitHour
from .reading import Counts, Span, read_series

MAX_NAME_LENGTH = 200

logger = logging.getLogger("django_ratelimit_lua")


def read_durable_names(using: str) -> set[str]:
    """Return the rules, and the limiters of this process, with durable statistics."""
    rules = RateLimitRule._base_manager.using(using).filter(options__durable=True)
    names = known_call_sites.durable | set(rules.values_list("name", flat=True))
    names |= {rule.name for rule in settings_rules() if rule.spec.get("durable")}
    return {name for name in names if len(name) <= MAX_NAME_LENGTH and is_storable(name)}


def copy_hours() -> None:
    """Write the hourly counts in Redis to the database, and delete rows that are too old.

    For each name, the hours from a day before its last row on are written, because a process may
    have written late. A row is only replaced by one with more requests: Redis may have lost some.

    Raises:
        StoreError: Redis is unavailable. The database may raise its own errors.
    """
    using = rules_database()
    now = int(time.time())
    rows = RateLimitHour.objects.using(using)
    oldest = now - HOURS_KEPT
    if conf.HISTORY_DAYS is not None:
        begin = int(now - conf.HISTORY_DAYS * DAY)
        rows.filter(moment__lt=begin).delete()
        oldest = max(oldest, begin)
    for name in sorted(read_durable_names(using)):
        if acquire_lock(key_of(name, b"turn:%d" % _due_hour()), HOUR):
            last = rows.filter(name=name).aggregate(last=Max("moment", default=0))["last"]
            _copy_name(name, max(oldest, last - DAY), now)


def _copy_name(name: str, start: int, end: int) -> None:
    """Write the hours of one name that have more requests in Redis than in the database."""
    first_hour = math.ceil(start / HOUR) * HOUR
    stored = read_stored_hours(name, first_hour, end)
    for moment, counts in read_series([name], Span(first_hour, end, HOUR))[name]:
        results = by_word(counts)
        if results["requests"] > by_word(stored.get(moment, {}))["requests"]:
            columns = {column: results[column] for column in RateLimitHour.LETTERS}
            rows = RateLimitHour.objects.using(rules_database())
            rows.update_or_create(name=name, moment=moment, defaults=columns)


def read_stored_hours(name: str, start: int, end: int) -> dict[int, Counts]:
    """Return the hourly counts in the database, by the moment at which each hour begins.

    Each is counted by one of the letters of its column.
    """
    hours = {}
    rows = RateLimitHour.objects.using(rules_database()).filter(name=name)
    for row in rows.filter(moment__gte=start, moment__lt=end):
        counts = Counter(
            {letter: getattr(row, column) for column, letter in RateLimitHour.LETTERS.items()}
        )
        counts["r"] -= counts["g"]  # The column of refusals includes those by bans.
        hours[row.moment] = counts
    return hours


def _due_hour() -> int:
    """Return the current hour, a minute late: by then, all processes have written their counts."""
    return int(time.time() - MINUTE) // HOUR


_jobs = JobRunner()
_copied_hour = 0


def _copy_when_due(last: Deadline | None) -> bool:
    """Start copying, once an hour in each process; a `Flush` of the flusher."""
    global _copied_hour
    if last is None and _due_hour() != _copied_hour and not is_in_memory(rules_database()):
        _copied_hour = _due_hour()
        _jobs.submit(_copy_in_background)
    return False


def _copy_in_background() -> None:
    """Copy the hours, and log an error; a job of the process."""
    connection = connections[rules_database()]
    try:
        # Before the app is migrated, Redis keeps the hours, and the system checks report it.
        if RateLimitHour._meta.db_table in connection.introspection.table_names():
            copy_hours()
    except Exception as error:
        logger.warning("Durable statistics were not written, and are tried hourly: %r", error)
    finally:
        connection.close()


flusher.add(_copy_when_due)
