"""The starts of days, weeks and months in a time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from .rate import SECOND, LimitError
from .values import gettext_noop as _

DAY = 86_400 * SECOND
PERIODS = {"day": (DAY, DAY), "week": (7 * DAY, 7 * DAY), "month": (28 * DAY, 31 * DAY)}
"""The shortest and the longest period, in microseconds, that a rate counted by that calendar unit
may name.
"""


def zone(name: str) -> tzinfo:
    """Return the IANA time zone of that name. Raises `LimitError` if it is unknown.

    UTC needs no database of time zones, which a small container may lack.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise LimitError(
            _("Unknown time zone %(name)r; use an IANA name such as Europe/Berlin or UTC"),
            "time_zone",
            name=name,
        ) from None


def _start(unit: str, day: date) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "month":
        return day.replace(day=1)
    return day


@lru_cache(maxsize=256)
def _starts(unit: str, time_zone: str, day: date) -> tuple[int, ...]:
    step = timedelta(days={"day": 1, "week": 7, "month": 32}[unit])
    first = _start(unit, day)
    second = _start(unit, first + step)
    days = (first, second, _start(unit, second + step))
    starts = [datetime.combine(each, time.min, zone(time_zone)).timestamp() for each in days]
    return tuple(round(start) * SECOND for start in starts)


def boundaries(unit: str, time_zone: str, now: int) -> tuple[int, ...]:
    """Return the start of the unit that holds `now`, and the next two starts.

    Times are microseconds since 1970. `unit` is 'day', 'week' (from Monday, as in ISO 8601) or
    'month'.

    >>> from datetime import UTC
    >>> starts = boundaries("month", "UTC", 0)
    >>> [str(datetime.fromtimestamp(start // SECOND, UTC).date()) for start in starts]
    ['1970-01-01', '1970-02-01', '1970-03-01']
    """
    day = datetime.fromtimestamp(now // SECOND, zone(time_zone)).date()
    return _starts(unit, time_zone, day)
