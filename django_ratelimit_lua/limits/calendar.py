"""Where days, weeks and months begin in a time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from .rate import SECOND, LimitError

DAY = 86_400 * SECOND
PERIODS = {"day": (DAY, DAY), "week": (7 * DAY, 7 * DAY), "month": (28 * DAY, 31 * DAY)}
"""The shortest and the longest period, in microseconds, that a rate counted by that calendar unit may name."""


def zone(name: str) -> ZoneInfo:
    """The IANA time zone of that name. Raises `LimitError`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise LimitError(
            f"Unknown time zone {name!r}; use an IANA name such as 'Europe/Berlin' or 'UTC'", "time_zone"
        ) from None


def _start(unit: str, day: date) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day


def boundaries(unit: str, time_zone: str, now: int) -> tuple[int, int, int, int]:
    """Four starts of `unit` ('day', 'week' from Monday as ISO 8601 has it, 'month') in a row, in microseconds since
    1970; `now` lies between the second and the third.

    >>> [str(datetime.fromtimestamp(start // SECOND, UTC).date()) for start in boundaries("month", "UTC", 0)]
    ['1969-12-01', '1970-01-01', '1970-02-01', '1970-03-01']
    """
    tz = zone(time_zone)
    today = datetime.fromtimestamp(now // SECOND, UTC).astimezone(tz).date()
    current = _start(unit, today)
    step = {"day": 1, "week": 7, "month": 32}[unit]
    following = _start(unit, current + timedelta(days=step))
    after = _start(unit, following + timedelta(days=step))
    previous = _start(unit, current - timedelta(days=1))

    def stamp(day: date) -> int:
        return round(datetime.combine(day, time.min, tz).timestamp()) * SECOND

    return stamp(previous), stamp(current), stamp(following), stamp(after)
