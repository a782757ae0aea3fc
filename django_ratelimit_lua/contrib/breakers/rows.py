"""Declarations of breakers: in the code, and as rows of the admin, which override the code.

A row may set only some of the `Thresholds`. The code sets the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext_noop as _

from ...limits.rate import SECOND, LimitError, time_text, time_us

FORCED = ("open", "closed")
"""The states that an operator may force."""
MAX_NAME_LENGTH = 200
BUCKETS = 10
"""Parts of a window: the oldest, partly expired one counts whole."""
PPM = 1_000_000
"""Ratios are compared as whole parts of a million."""
MIN_OPEN_US = SECOND // 10
MAX_TIME_US = 86_400 * SECOND
MAX_PROBE_US = 3600 * SECOND
MIN_PROBE_US = 10 * SECOND
MAX_NUMBER = 10**9
RATIOS = ("failure_ratio", "slow_ratio")
COUNTS = {"failures": MAX_NUMBER, "minimum": MAX_NUMBER, "probes": 1000}
"""The maximum of each whole number."""
TIMES = {
    "slow": (1, MAX_PROBE_US),
    "window": (10 * SECOND, MAX_TIME_US),
    "open_for": (MIN_OPEN_US, MAX_TIME_US),
    "open_max": (MIN_OPEN_US, MAX_TIME_US),
}
"""The minimum and the maximum of each time, in microseconds."""
NULLABLE = ("failure_ratio", "failures", "slow", "slow_ratio")
"""Thresholds that may be None: the breaker does not open by them."""
_ATTRIBUTES = {
    "failure_ratio": "failure_ppm",
    "failures": "failures",
    "slow": "slow_us",
    "slow_ratio": "slow_ppm",
    "minimum": "minimum",
    "window": "window_us",
    "open_for": "open_us",
    "open_max": "open_max_us",
    "probes": "probes",
}
"""The attribute of `Thresholds` of each field."""
TUNED = tuple(_ATTRIBUTES)
"""The thresholds of a breaker, in the order in which they are written."""


class BreakerError(LimitError):
    """An invalid breaker. `field` is the invalid field, and `params` may contain its `value`."""

    def __init__(self, name: str, field: str, text: str, **params: object) -> None:
        super().__init__(text, field, **params)
        self.where = f"Breaker {name!r}: "
        if "value" in params:
            field += f" is {params['value']!r}:"
        self.args = (f"{field} {self.args[0]}".lstrip(),)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The conditions under which a breaker opens and closes.

    Times are in microseconds, ratios in parts per million. None: the condition does not open it.
    """

    failure_ppm: int | None = 500_000
    failures: int | None = None
    slow_us: int | None = None
    slow_ppm: int | None = 800_000
    minimum: int = 20
    window_us: int = 30 * SECOND
    open_us: int = 10 * SECOND
    open_max_us: int = 300 * SECOND
    probes: int = 3

    @property
    def width_us(self) -> int:
        """Return the duration of one part of the window."""
        return self.window_us // BUCKETS

    @property
    def probe_us(self) -> int:
        """Return how long a probe keeps its slot without a renewal."""
        return min(max(2 * (self.slow_us or 0), self.open_us, MIN_PROBE_US), MAX_PROBE_US)

    @property
    def longest_probe_us(self) -> int:
        """Return how long a process renews the slot of a probe that does not end."""
        return max(self.open_max_us, self.probe_us)

    def reason(self, total: int, failures: int, slow: int) -> str:
        """Return why these numbers of outcomes open the breaker; empty if they do not.

        Args:
            total: The number of calls.
            failures: The number of failed calls.
            slow: The number of slow calls.

        >>> (
        ...     Thresholds().reason(20, 10, 0),
        ...     Thresholds().reason(19, 19, 0),
        ...     Thresholds(failures=5).reason(6, 5, 0),
        ... )
        ('failure_ratio', '', 'failures')
        """
        if self.failures is not None and failures >= self.failures:
            return "failures"
        if total < self.minimum:
            return ""
        if self.failure_ppm is not None and failures * PPM >= self.failure_ppm * total:
            return "failure_ratio"
        if self.slow_us and self.slow_ppm is not None and slow * PPM >= self.slow_ppm * total:
            return "slow_ratio"
        return ""

    def declared(self) -> dict[str, Any]:
        """Return the values as they are written in code, JSON and YAML.

        >>> Thresholds(slow_us=2_000_000, failure_ppm=None).declared()["slow"]
        '2s'
        """
        values = {field: getattr(self, name) for field, name in _ATTRIBUTES.items()}
        for field, value in values.items():
            if value is None:
                continue
            if field in RATIOS:
                values[field] = value / PPM
            elif field in TIMES:
                values[field] = time_text(value)
        return values


def thresholds(
    name: str, given: Mapping[str, object], base: Thresholds | None = None
) -> Thresholds:
    """Return the thresholds of a base, overridden by the given thresholds.

    Unknown ones are ignored, because a process of another version may have recorded them.

    Raises:
        BreakerError: A threshold is invalid, or they contradict each other.

    >>> thresholds("x", {"slow": "2s", "failures": 5}).slow_us
    2000000
    """
    values = {
        _ATTRIBUTES[field]: _read(name, field, value)
        for field, value in given.items()
        if field in TUNED and (value is not None or field in NULLABLE)
    }
    found = replace(base or Thresholds(), **values)
    if found.open_max_us < found.open_us:
        if "open_max_us" in values:
            text = _("Enter a time that is not shorter than “open for”.")
            raise BreakerError(name, "open_max", text, value=given["open_max"])
        found = replace(found, open_max_us=found.open_us)
    opens_if_slow = found.slow_us and found.slow_ppm
    if not (found.failure_ppm or found.failures or opens_if_slow):
        raise BreakerError(
            name, "", "would never open: set failure_ratio, failures, or slow and slow_ratio"
        )
    return found


def _read(name: str, field: str, value: Any) -> Any:
    if value is None:
        return None
    if field in RATIOS:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and 0 < value <= 1:
            return max(1, round(value * PPM))
        text = _("Enter a number above 0 and at most 1, for example 0.5.")
        raise BreakerError(name, field, text, value=value)
    if field in COUNTS:
        most = COUNTS[field]
        if type(value) is int and 1 <= value <= most:
            return value
        text = _("Enter a whole number from 1 to %(most)s.")
        raise BreakerError(name, field, text, value=value, most=str(most))
    least, longest = TIMES[field]
    with suppress(LimitError):
        microseconds = time_us(value)
        if least <= microseconds <= longest:
            return microseconds
    text = _("Enter a time from %(least)s to %(longest)s, for example 30s or 5m.")
    if field == "slow":
        text = _("Enter a time of at most %(longest)s, for example 2s.")
    raise BreakerError(
        name, field, text, value=value, least=time_text(least), longest=time_text(longest)
    )


def breaker_name(name: Any) -> str:
    """Return the name of a breaker as text. Raises `BreakerError` if it is invalid."""
    is_text = isinstance(name, str) and name.strip() and name.isprintable()
    if is_text and len(name) <= MAX_NAME_LENGTH:
        return str(name)
    text = _("Enter text of 1 to %(most)s characters.")
    raise BreakerError(str(name)[:MAX_NAME_LENGTH], "name", text, most=MAX_NAME_LENGTH)


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A row of the admin: some thresholds of a breaker, and its forced state.

    - `forced`: the state that an operator has forced, or an empty string;
    - `until_us`: its end in microseconds since 1970, or None.
    """

    name: str
    tuned: Mapping[str, object]
    forced: str = ""
    until_us: int | None = None

    def is_forced(self, now_us: int) -> bool:
        """Return whether a forced state is in force at a moment, in microseconds since 1970."""
        return self.forced != "" and (self.until_us is None or now_us < self.until_us)

    def over(self, base: Thresholds) -> Thresholds:
        """Return the thresholds of the row, completed by `base`. Raises `BreakerError`."""
        return thresholds(self.name, self.tuned, base)


def row_problems(given: Mapping[str, object]) -> Iterator[BreakerError]:
    """Yield all errors in the name and the thresholds of a row.

    >>> row = {"name": "x", "failures": 1.5, "probes": True, "window": "1m"}
    >>> [problem.field for problem in row_problems(row)]
    ['failures', 'probes']
    """
    name = given.get("name")
    try:
        breaker_name(name)
    except BreakerError as error:
        yield error
    for field in TUNED:
        try:
            _read(str(name)[:MAX_NAME_LENGTH], field, given.get(field))
        except BreakerError as error:
            yield error


def read_row(given: Mapping[str, Any]) -> BreakerRow:
    """Return a published row. Raises `BreakerError` if it is invalid.

    >>> read_row({"name": "payments", "forced": "open", "until": 1_900_000_000_000_000}).forced
    'open'
    """
    for problem in row_problems(given):
        raise problem
    tuned = {field: given[field] for field in TUNED if given.get(field) is not None}
    return BreakerRow(given["name"], tuned, given.get("forced", ""), given.get("until"))


def read_rows(part: Iterable[Mapping[str, Any]], problems: list[str]) -> dict[str, BreakerRow]:
    """Return the valid rows by name, and add the errors of the others to `problems`."""
    rows = {}
    for given in part:
        try:
            rows[given["name"]] = read_row(given)
        except BreakerError as error:
            problems.append(str(error))
    return rows
