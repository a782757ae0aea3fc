"""Declarations of breakers: in the code, and as rows of the admin, which override the code.

A breaker is judged by its `Thresholds`. A forced state is a `Force`. A row may set only some of the
thresholds: the others are those of the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from django.utils.translation import gettext_noop as _

from ...limits.rate import SECOND, LimitError, time_text, time_us

Forced = Literal["open", "closed"]
FORCED: tuple[Forced, ...] = get_args(Forced)
MAX_NAME_LENGTH = 200
BUCKETS = 10
"""Parts of a window: the oldest, partly expired one counts whole."""
PPM = 1_000_000
"""Ratios are compared as whole parts of a million."""
MIN_WINDOW_US, MAX_WINDOW_US = 10 * SECOND, 86_400 * SECOND
MIN_OPEN_US, MAX_OPEN_US = SECOND // 10, 86_400 * SECOND
MAX_PROBE_US = 3600 * SECOND
MIN_PROBE_US = 10 * SECOND
MAX_PROBES = 1000
MAX_ENTRIES = 10**9
"""Of other numbers."""
RATIOS, COUNTS, TIMES = (
    ("failure_ratio", "slow_ratio"),
    ("failures", "minimum", "probes"),
    (
        "slow",
        "window",
        "open_for",
        "open_max",
    ),
)
TUNED = (
    "failure_ratio",
    "failures",
    "slow",
    "slow_ratio",
    "minimum",
    "window",
    "open_for",
    "open_max",
    "probes",
)
"""The fields of a breaker, in the order in which they are written."""
BOUNDS = {
    "window": (MIN_WINDOW_US, MAX_WINDOW_US),
    "open_for": (MIN_OPEN_US, MAX_OPEN_US),
    "open_max": (MIN_OPEN_US, MAX_OPEN_US),
    "slow": (1, MAX_PROBE_US),
}
"""Between which each time has to be, in microseconds."""
BREAKER_FIELDS = ("name", "description", *TUNED, "forced", "until", "why")


class BreakerError(LimitError):
    """A breaker that cannot be understood or kept: `field` is wrong, and has that `value` if there
    is one.
    """

    def __init__(self, name: str, field: str, text: str, **params: Any) -> None:
        super().__init__(text, field, **params)
        self.where = f"Breaker {name!r}: "
        given = f"{field} is {params['value']!r}:" if "value" in params else field
        self.args = (f"{given} {self.args[0]}".lstrip(),)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a breaker opens, and how it comes back.

    Times are in microseconds, ratios in parts of a million; None: it does not open by that.
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
        """How long one part of the window is."""
        return self.window_us // BUCKETS

    @property
    def probe_us(self) -> int:
        """For how long a probe holds its slot without news of its process: one that was killed
        renews none.
        """
        return min(max(2 * (self.slow_us or 0), self.open_us, MIN_PROBE_US), MAX_PROBE_US)

    @property
    def longest_probe_us(self) -> int:
        """For how long a process renews the slot of a probe that does not end."""
        return max(self.open_max_us, self.probe_us)

    @property
    def step_us(self) -> int:
        """How long a step of the ramp lasts: all together as long as it was open first."""
        return self.open_us // 3

    def reason(self, total: int, failures: int, slow: int, share: int = 100) -> str:
        """Why this number of outcomes opens it; empty: it does not.

        `share`: percentage of admitted calls.

        >>> (
        ...     Thresholds().reason(20, 10, 0),
        ...     Thresholds().reason(19, 19, 0),
        ...     Thresholds(failures=5).reason(6, 5, 0),
        ... )
        ('failure_ratio', '', 'failures')
        """
        minimum, most = self.minimum, self.failures
        if share < 100:
            minimum = min(minimum, max(self.probes, -(-minimum * share // 100)))
            most = None if most is None else max(1, -(-most * share // 100))
        if most is not None and failures >= most:
            return "failures"
        if total < minimum:
            return ""
        if self.failure_ppm is not None and failures * PPM >= self.failure_ppm * total:
            return "failure_ratio"
        if (
            self.slow_us is not None
            and self.slow_ppm is not None
            and slow * PPM >= self.slow_ppm * total
        ):
            return "slow_ratio"
        return ""

    def declared(self) -> dict[str, Any]:
        """In the words that rules are written in, as JSON and YAML have them.

        >>> Thresholds(slow_us=2_000_000, failure_ppm=None).declared()["slow"]
        '2s'
        """
        return {
            "failure_ratio": None if self.failure_ppm is None else self.failure_ppm / PPM,
            "failures": self.failures,
            "slow": None if self.slow_us is None else time_text(self.slow_us),
            "slow_ratio": None if self.slow_ppm is None else self.slow_ppm / PPM,
            "minimum": self.minimum,
            "window": time_text(self.window_us),
            "open_for": time_text(self.open_us),
            "open_max": time_text(self.open_max_us),
            "probes": self.probes,
        }


_OWN = dict(zip(TUNED, (field.name for field in fields(Thresholds)), strict=True))


def thresholds(name: str, given: Mapping[str, Any], base: Thresholds | None = None) -> Thresholds:
    """The given thresholds over those of a base. Raises `BreakerError`.

    >>> thresholds("x", {"slow": "2s", "failures": 5}).slow_us
    2000000
    """
    if unknown := sorted(set(given) - set(TUNED)):
        raise BreakerError(name, "", f"unknown {', '.join(unknown)}; there are {', '.join(TUNED)}")
    found = replace(
        base or Thresholds(), **{_OWN[word]: _read(name, word, given[word]) for word in given}
    )
    if "open_max" not in given and found.open_max_us < found.open_us:
        found = replace(found, open_max_us=found.open_us)
    if found.open_max_us < found.open_us:
        raise BreakerError(
            name, "open_max", _("The longest pause must not be shorter than what it is “open for”.")
        )
    if (
        found.failure_ppm is None
        and found.failures is None
        and (found.slow_us is None or found.slow_ppm is None)
    ):
        raise BreakerError(
            name, "", "would never open: say failure_ratio, failures, or slow and slow_ratio"
        )
    return found


def _read(name: str, word: str, value: Any) -> Any:
    if value is None and word in ("failure_ratio", "failures", "slow", "slow_ratio"):
        return None
    if word in RATIOS:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= 1:
            raise BreakerError(
                name, word, _("Enter a number above 0 and at most 1, for example 0.5."), value=value
            )
        return max(1, round(value * PPM))
    if word in COUNTS:
        most = MAX_PROBES if word == "probes" else MAX_ENTRIES
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise BreakerError(
                name,
                word,
                _("Enter a whole number from 1 to %(most)s."),
                value=value,
                most=str(most),
            )
        return value
    least, longest = BOUNDS[word]
    try:
        microseconds = time_us(value)
    except LimitError:
        microseconds = 0
    if not least <= microseconds <= longest:
        text = _("Enter a time from %(least)s to %(longest)s, for example 30s or 5m.")
        if word == "slow":
            text = _("Enter a time of at most %(longest)s, for example 2s.")
        raise BreakerError(
            name, word, text, value=value, least=time_text(least), longest=time_text(longest)
        )
    return microseconds


def breaker_name(name: Any) -> str:
    """The name of a breaker. Raises `BreakerError`."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > MAX_NAME_LENGTH
        or not name.isprintable()
    ):
        text = _("Enter text of 1 to %(most)s characters.")
        raise BreakerError(str(name)[:MAX_NAME_LENGTH], "name", text, most=MAX_NAME_LENGTH)
    return name


@dataclass(frozen=True, slots=True)
class Force:
    """What an operator has forced: how, and until when (microseconds since 1970.

    None: until it is taken back).
    """

    how: Forced
    until_us: int | None = None

    def lasts(self, now_us: int) -> bool:
        """Whether it holds at a moment, in microseconds since 1970."""
        return self.until_us is None or now_us < self.until_us


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A row of the admin for the breaker of its name: some thresholds, and the forced state."""

    name: str
    tuned: Mapping[str, Any]
    force: Force | None = None

    def over(self, base: Thresholds) -> Thresholds:
        """The thresholds with those of the row. Raises `BreakerError` if they contradict."""
        return thresholds(self.name, self.tuned, base)


def row_problems(given: Mapping[str, Any]) -> Iterator[BreakerError]:
    """All that is wrong with the name and the thresholds of a row.

    >>> row = {"name": "x", "failures": 1.5, "probes": True, "window": "1m"}
    >>> [problem.field for problem in row_problems(row)]
    ['failures', 'probes']
    """
    name = str(given.get("name"))[:MAX_NAME_LENGTH]
    try:
        breaker_name(given.get("name"))
    except BreakerError as error:
        yield error
    for word in (word for word in TUNED if given.get(word) is not None):
        try:
            _read(name, word, given[word])
        except BreakerError as error:
            yield error


def read_row(given: Mapping[str, Any]) -> BreakerRow:
    """A row as it is published. Raises `BreakerError`.

    >>> read_row({"name": "payments", "forced": "open", "until": 1_900_000_000_000_000}).force.how
    'open'
    """
    for problem in row_problems(given):
        raise problem
    tuned = {word: given[word] for word in TUNED if given.get(word) is not None}
    force = Force(given["forced"], given.get("until")) if given.get("forced") else None
    return BreakerRow(given["name"], tuned, force)


def read_rows(part: Iterable[Mapping[str, Any]], problems: list[str]) -> dict[str, BreakerRow]:
    """The rows as they are published, by name. Those that are invalid are left out."""
    rows = {}
    for given in part:
        try:
            rows[given["name"]] = read_row(given)
        except BreakerError as error:
            problems.append(str(error))
    return rows
