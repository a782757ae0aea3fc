"""The starts of days, weeks and months in a time zone."""

from __future__ import annotations

from bisect import bisect_right
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from .rate import SECOND, LimitError
from .values import gettext_noop as _

DAY = 86_400 * SECOND
PERIODS = {"day": (DAY, DAY), "week": (7 * DAY, 7 * DAY), "month": (28 * DAY, 31 * DAY)}
"""The shortest and the longest period, in microseconds, that a rate counted by that calendar unit
may name.
"""


MAX_AHEAD = 100
"""Windows for which a hit can be reserved ahead: of days, three months."""


def zone(name: str) -> ZoneInfo:
    """Return the IANA time zone of that name. Raises `LimitError` if it is unknown."""
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


def boundaries(unit: str, time_zone: str, now: int) -> tuple[int, int, int, int]:
    """Return four successive starts of a unit, in microseconds since 1970.

    `unit` is 'day', 'week' (from Monday, as in ISO 8601) or 'month'. `now` lies between the second
    and the third.

    >>> from datetime import UTC
    >>> starts = boundaries("month", "UTC", 0)
    >>> [str(datetime.fromtimestamp(start // SECOND, UTC).date()) for start in starts]
    ['1969-12-01', '1970-01-01', '1970-02-01', '1970-03-01']
    """
    current = _current(unit, time_zone, now)
    previous = _start(unit, current - timedelta(days=1))
    start, following, after = _starts(unit, time_zone, current, 3)
    return _stamp(previous, time_zone), start, following, after


def boundaries_ahead(
    unit: str, time_zone: str, now: int, until: int | None
) -> tuple[tuple[int, ...], bool]:
    """Return the starts of `unit` that follow `boundaries`, and whether these are all.

    The last one is the first after `until` (None: no end), but at most `MAX_AHEAD` starts after
    `now` are returned.

    >>> from datetime import UTC
    >>> ahead, is_all = boundaries_ahead("month", "UTC", 0, 80 * DAY)
    >>> [str(datetime.fromtimestamp(start // SECOND, UTC).date()) for start in ahead], is_all
    (['1970-04-01'], True)
    """
    current = _current(unit, time_zone, now)
    starts = _starts(unit, time_zone, current, MAX_AHEAD + 1)
    if until is None or starts[-1] <= until:
        return starts[3:], False
    return starts[3 : bisect_right(starts, until) + 1], True


def _current(unit: str, time_zone: str, now: int) -> date:
    return _start(unit, datetime.fromtimestamp(now // SECOND, zone(time_zone)).date())


@lru_cache(maxsize=256)
def _starts(unit: str, time_zone: str, first: date, count: int) -> tuple[int, ...]:
    step = timedelta(days={"day": 1, "week": 7, "month": 32}[unit])
    days = [first]
    while len(days) < count:
        days.append(_start(unit, days[-1] + step))
    return tuple(_stamp(day, time_zone) for day in days)


def _stamp(day: date, time_zone: str) -> int:
    return round(datetime.combine(day, time.min, zone(time_zone)).timestamp()) * SECOND
