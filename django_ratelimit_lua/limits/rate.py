"""Rates (units per period, or slots), durations, and the days, weeks and months of a calendar."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from .values import gettext_noop as _

SECOND = 1_000_000
"""Microseconds in a second: every time inside this package is an integer number of microseconds."""

_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), SECOND),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * SECOND),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600 * SECOND),
    **dict.fromkeys(("d", "day", "days"), 86_400 * SECOND),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * SECOND),
}
_TIME_UNITS = {"ms": SECOND // 1000, **_UNITS}
_FORM = re.compile(r"([0-9]+)(?:/([0-9]*)| per (?:([0-9]+) )?)([a-z]+)")
_SLOTS = re.compile(r"([0-9]{1,15})(?: at once)?")
_TIME = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([a-z]+)")
_BAD_RATE = _(
    "Rate %(rate)r: write N/unit without spaces, such as 100/m, 10/15m or 5/second (units: s, sec, "
    "second(s), m, min, minute(s), h, hr, hour(s), d, day(s), w, week(s)), or 10 per 15 minutes; "
    "or a number alone, such as 5, for the algorithm concurrency"
)
_NO_PERIOD = _("Rate %(rate)r: the period must be greater than zero")
_TOO_LARGE = _("Rate %(rate)r is too large: at most %(most)d units in at most ten years")
_BAD_DURATION = _(
    "%(duration)r: write a number and a unit without a space, such as 10m, 1h or 7d, from 1s to "
    "ten years"
)


class LimitError(ValueError):
    """A rate or limit that is invalid, or cannot be counted exactly.

    The message is `text % params`, and states the valid values. `field` is the invalid option. The
    admin translates `text`, and replaces the names in `params` by labels.
    """

    where = ""
    """The start of the message: the limit that is wrong."""

    def __init__(self, text: str, field: str = "", **params: object) -> None:
        message = text
        if params:
            message = text % params
        super().__init__(message)
        self.text = text
        self.field = field
        self.params = params

    def __str__(self) -> str:
        return f"{self.where}{self.args[0]}"

    def for_option(self, option: str) -> LimitError:
        """Add the name of the option that the error is about, and return the error."""
        self.field = option
        self.args = (f"{option}: {self.args[0]}",)
        return self


@dataclass(frozen=True, slots=True)
class Rate:
    """`limit` units per `period_us` microseconds, or, with a period of 0, `limit` slots.

    >>> Rate.parse("10/15m")
    Rate(limit=10, period_us=900000000)
    >>> Rate.parse((5, 0.5)).period
    0.5
    >>> print(Rate.parse("100/minute"), Rate.parse("10 per 15 minutes"))
    100/m 10/15m
    >>> Rate.parse("5").is_slots
    True
    >>> Rate.parse("5/month")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Rate '5/month': write N/unit ...

    A limit of 0 always refuses. Limits go up to 10**12 units, and periods from one microsecond to
    ten years; `LimitError` is raised for others. Only the algorithm concurrency takes slots.
    """

    limit: int
    period_us: int

    MAX_UNITS: ClassVar[int] = 10**12
    MAX_US: ClassVar[int] = 3653 * 86_400 * SECOND

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= self.MAX_UNITS:
            raise LimitError(f"Rate of {self.limit} units: must be from 0 to {self.MAX_UNITS}")
        if not 0 <= self.period_us <= self.MAX_US:
            raise LimitError(
                f"Rate with a period of {self.period_us / SECOND:g} seconds: "
                f"must be from 0.000001 to {self.MAX_US // SECOND} (ten years)"
            )

    @property
    def period(self) -> float:
        """Return the period in seconds."""
        return self.period_us / SECOND

    @property
    def is_slots(self) -> bool:
        """Return whether the units are slots, not units per period."""
        return self.period_us == 0

    @property
    def per(self) -> str:
        """Return the period as written in a rate: "h", "15m"; empty for slots."""
        return str(self).partition("/")[2]

    @classmethod
    def parse(cls, value: str | tuple[int, float | timedelta] | Rate) -> Rate:
        """Read `"N/[k]unit"`, `"N per [k] unit"`, `(count, seconds)`, or `"N"` slots.

        The whole string must match. Raises `LimitError`.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, (tuple, list)) and len(value) == 2:
            return cls._parse_pair(*value)
        if not isinstance(value, str):
            raise LimitError(
                f"Rate {value!r} is neither text nor (count, seconds); write '100/m' or (100, 60)"
            )
        if slots := _SLOTS.fullmatch(value):
            return cls._build(value, int(slots[1]), 0)
        match = _FORM.fullmatch(value)
        if not match or match[4] not in _UNITS:
            raise LimitError(_BAD_RATE, rate=value)
        count, times_after_slash, times_after_per, unit = match.groups()
        times = times_after_slash or times_after_per or "1"
        if len(count) > 15 or len(times) > 15:
            raise LimitError(_TOO_LARGE, rate=value, most=cls.MAX_UNITS)
        period = int(times) * _UNITS[unit]
        if period == 0:
            raise LimitError(_NO_PERIOD, rate=value)
        return cls._build(value, int(count), period)

    @classmethod
    def _build(cls, value: object, count: int, period: int) -> Rate:
        """Return the rate. If a number is too large, the `LimitError` names the parsed `value`."""
        try:
            return cls(count, period)
        except LimitError as error:
            if isinstance(value, str):
                raise LimitError(_TOO_LARGE, rate=value, most=cls.MAX_UNITS) from None
            raise LimitError(f"Rate {value!r}: {error}") from None

    @classmethod
    def _parse_pair(cls, count: object, seconds: object) -> Rate:
        """Read a count and a number of seconds, or a timedelta. Raises `LimitError`."""
        pair = (count, seconds)
        if isinstance(count, str):
            raise LimitError(
                f"Rate {pair!r}: the count must be a whole number, as in (100, 60); several rates "
                "are a list"
            )
        if isinstance(count, bool) or not isinstance(count, int):
            raise LimitError(f"Rate {pair!r}: the count must be a whole number, as in (100, 60)")
        period = _to_microseconds(seconds)
        if period is None:
            raise LimitError(
                f"Rate {pair!r}: the period must be a number of seconds or a timedelta"
            )
        if not round(period):
            raise LimitError(_NO_PERIOD, rate=pair)
        return cls._build(pair, count, round(period))

    def __str__(self) -> str:
        if self.is_slots:
            return str(self.limit)
        times, unit = _to_largest_unit(self.period_us)
        if times == 1:
            return f"{self.limit}/{unit}"
        return f"{self.limit}/{times}{unit}"


def _to_largest_unit(microseconds: int) -> tuple[int, str]:
    """Return a time as a multiple of the largest unit that divides it, and the unit."""
    for letter in "wdhms":
        times, rest = divmod(microseconds, _UNITS[letter])
        if times and not rest:
            return times, letter
    return microseconds, "us"


def _to_microseconds(seconds: object) -> Fraction | None:
    """Return a number of seconds or a timedelta in microseconds; None for any other value."""
    if isinstance(seconds, timedelta):
        return Fraction(seconds // timedelta(microseconds=1))
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return None
    if not abs(seconds) < float("inf"):  # Infinite, or not a number.
        return None
    return Fraction(seconds) * SECOND


def _parse_time(text: str) -> Fraction | None:
    """Return a number with a unit in microseconds; None if the text is not one."""
    match = _TIME.fullmatch(text)
    if match is None or match[2] not in _TIME_UNITS:
        return None
    return Fraction(match[1]) * _TIME_UNITS[match[2]]


def duration(value: str | timedelta) -> str:
    """Return the canonical form of a duration: a number and a letter.

    The whole text must match, and the maximum is ten years. Raises `LimitError`.

    >>> duration("90min"), duration("36hr"), duration(timedelta(hours=1))
    ('90m', '36h', '1h')
    >>> duration("10 m")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: '10 m': write a number and a unit ...
    """
    microseconds = 0
    if isinstance(value, (str, timedelta)):
        with suppress(LimitError):  # The error below names the units of a duration.
            microseconds = time_us(value)
    if microseconds == 0 or microseconds % SECOND:
        raise LimitError(_BAD_DURATION, duration=value)
    return time_text(microseconds)


def time_us(value: str | float | timedelta) -> int:
    """Return a duration in microseconds.

    The value is text such as "30s", "10m" or "500ms", a number of seconds, or a timedelta. Raises
    `LimitError` if it is invalid, or not from one microsecond to ten years.

    >>> time_us("2s"), time_us("1.5m"), time_us(0.25), time_us("500ms")
    (2000000, 90000000, 250000, 500000)
    >>> time_us("soon")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: 'soon' is not a time: write ...
    """
    microseconds = _parse_time(value) if isinstance(value, str) else _to_microseconds(value)
    if microseconds is None:
        raise LimitError(
            f"{value!r} is not a time: write '30s', '10m', '500ms', or seconds as a number"
        )
    if not 1 <= round(microseconds) <= Rate.MAX_US:
        raise LimitError(f"{value!r}: a time must be above 0, and at most ten years")
    return round(microseconds)


def time_text(microseconds: int) -> str:
    """Return a duration as text that `time_us` can parse.

    >>> time_text(90_000_000), time_text(3_600_000_000), time_text(1_500_000), time_text(250_000)
    ('90s', '1h', '1.5s', '250ms')
    """
    times, unit = _to_largest_unit(microseconds)
    if unit != "us":
        return f"{times}{unit}"
    if microseconds < SECOND and microseconds % 1000 == 0:
        return f"{microseconds // 1000}ms"
    return f"{microseconds / SECOND:f}".rstrip("0") + "s"


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


def _first_day(unit: str, day: date) -> date:
    """Return the first day of the day, week or month that contains a day."""
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "month":
        return day.replace(day=1)
    return day


@lru_cache(maxsize=256)
def _boundaries_around(unit: str, time_zone: str, day: date) -> tuple[int, ...]:
    """Return the start of the unit that contains a day, and the next two starts."""
    # From the first day of a unit, this many days later is in the next one.
    step = timedelta(days={"day": 1, "week": 7, "month": 32}[unit])
    first = _first_day(unit, day)
    second = _first_day(unit, first + step)
    third = _first_day(unit, second + step)
    midnights = [datetime.combine(day, time.min, zone(time_zone)) for day in (first, second, third)]
    return tuple(round(midnight.timestamp()) * SECOND for midnight in midnights)


def boundaries(unit: str, time_zone: str, now: int) -> tuple[int, ...]:
    """Return the start of the unit that contains `now`, and the next two starts.

    Times are microseconds since 1970. `unit` is 'day', 'week' (from Monday, as in ISO 8601) or
    'month'.

    >>> from datetime import UTC
    >>> starts = boundaries("month", "UTC", 0)
    >>> [str(datetime.fromtimestamp(start // SECOND, UTC).date()) for start in starts]
    ['1970-01-01', '1970-02-01', '1970-03-01']
    """
    day = datetime.fromtimestamp(now // SECOND, zone(time_zone)).date()
    return _boundaries_around(unit, time_zone, day)
