"""A limit: a rate, an algorithm and its options, under a name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from struct import pack
from typing import Any, Literal, Never, TypedDict, get_args

from . import algorithms, calendar
from .decision import Mode
from .rate import SECOND, LimitError, Rate

Align = Literal["clock", "day", "week", "month"]
Policy = Literal["open", "closed", "local"]
Split = Literal["equal", "weighted"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
_LONGEST_ID = 64
_LONGEST_NAME = 500
_PLAIN = re.compile(r"[\w.,:/@+*=-]+", re.ASCII)


class Options(TypedDict, total=False):
    """The options of a `Limit`, by name."""

    algorithm: str
    burst: int | None
    queue: int | None
    segments: int | None
    align: Align | None
    time_zone: str
    max_wait: float | None
    count_denied: bool
    mode: Literal["enforce", "shadow"]
    on_store_error: Policy | None
    lease: int | None
    split: Split | None


OPTIONS = tuple(Options.__annotations__)


def unknown_option(where: str, option: str, accepted: Sequence[str]) -> LimitError:
    """The error for an option that nobody knows: names it, what may have been meant, and what there is."""
    meant = get_close_matches(option, accepted, n=1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "."
    return LimitError(f"{where}: unknown option {option!r}{hint} Accepted are {', '.join(accepted)}", option)


def wait_us(seconds: float | timedelta, what: str) -> int:
    """A wait in microseconds. Raises `LimitError` for what is no time from 0 to ten years."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds * SECOND <= Rate.LONGEST_US:
        raise LimitError(f"{what} is {seconds!r}: must be a number of seconds from 0 to {Rate.LONGEST_US // SECOND}")
    return round(seconds * SECOND)


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """A rate under a name, with the algorithm that keeps it.

    >>> Limit("search", "100/m", algorithm="token_bucket", burst=20).burst
    20
    >>> Limit("search", "100/m", algorithm="sliding_log", burst=20)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Limit 'search': sliding_log has no option 'burst'; it takes ...

    Arguments, beside the name and the rate (see `Rate.parse`):

    - `algorithm`: token_bucket (= gcra), leaky_bucket, fixed_window, sliding_window or sliding_log;
    - `burst`: units a token bucket holds when full (default: the rate's limit);
    - `queue`: units that may wait in a leaky bucket behind the one being served (default: the rate's limit - 1, which
      does not bound `RateLimiter.acquire`);
    - `segments`: parts of a sliding window (default 10): it forgets at most one part late;
    - `align`: a fixed window starts at its first hit (None), at multiples of the period since 1970 UTC ("clock"),
      or with each "day", "week" (Monday) or "month" in `time_zone` (an IANA name, default "UTC");
    - `max_wait`: seconds a hit may be reserved ahead instead of being refused (default: none; of a leaky bucket any, on
      views `RATELIMIT_MAX_WAIT`);
    - `count_denied`: refused hits count too;
    - `mode`: "shadow" counts and decides but never refuses;
    - `lease`: units that a process may take at once, to spend them without asking (token_bucket and fixed_window); how
      many it takes depends on how fast it spends, and on how many are left;
    - `split`: each process has its part of the limit and asks nobody: "equal" parts, or "weighted" ones by
      `RATELIMIT_INSTANCE_WEIGHT`;
    - `on_store_error`: what a hit is told when Redis cannot be asked, "open", "closed" or "local" (default: what
      `RATELIMIT_ON_STORE_ERROR` says).

    Raises `LimitError`.
    """

    name: str
    rate: Rate
    algorithm: str
    burst: int | None
    queue: int | None
    segments: int | None
    align: Align | None
    time_zone: str
    max_wait: float | None
    count_denied: bool
    mode: Mode
    on_store_error: Policy | None
    lease: int | None
    split: Split | None
    key_part: bytes = field(repr=False, compare=False)
    numbers: Callable[[int], algorithms.Numbers] = field(repr=False, compare=False)
    max_wait_us: int = field(repr=False, compare=False)
    wants_more: bool = field(repr=False, compare=False)

    def __init__(
        self,
        name: str,
        rate: Rate | str | tuple[int, float],
        *,
        algorithm: str = "sliding_window",
        burst: int | None = None,
        queue: int | None = None,
        segments: int | None = None,
        align: Align | None = None,
        time_zone: str = "UTC",
        max_wait: float | None = None,
        count_denied: bool = False,
        mode: Literal["enforce", "shadow"] = "enforce",
        on_store_error: Policy | None = None,
        lease: int | None = None,
        split: Split | None = None,
        **unknown: Never,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise LimitError(f"A limit's name must be text, not {name!r}")
        for option in unknown:
            raise unknown_option(f"Limit {name!r}", option, OPTIONS)
        kind = algorithms.find(algorithm)
        name = _shortened(name)
        values = {
            "name": name,
            "rate": Rate.parse(rate),
            "algorithm": kind.name,
            "burst": burst,
            "queue": queue,
            "segments": segments,
            "align": align,
            "time_zone": time_zone,
            "max_wait": max_wait,
            "count_denied": count_denied,
            "mode": mode,
            "on_store_error": on_store_error,
            "lease": lease,
            "split": split,
            "key_part": _bounded(name) + b":" + kind.suffix,
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)
        self._check_options(kind)
        object.__setattr__(self, "max_wait_us", self._max_wait_us())
        object.__setattr__(self, "numbers", self._numbers(kind))
        by_calendar = self.align in calendar.PERIODS
        object.__setattr__(self, "wants_more", by_calendar or (kind.name == "leaky_bucket" and self.queue is None))

    def _check_options(self, kind: algorithms.Algorithm) -> None:
        where = f"Limit {self.name!r}"
        given = {
            "burst": self.burst is not None,
            "queue": self.queue is not None,
            "segments": self.segments is not None,
            "align": self.align is not None,
            "time_zone": self.time_zone != "UTC",
            "max_wait": self.max_wait is not None,
            "count_denied": bool(self.count_denied),
            "lease": self.lease is not None,
            "split": self.split is not None,
        }
        for option in (name for name, is_given in given.items() if is_given and name not in kind.options):
            takes = ", ".join(sorted(kind.options))
            raise LimitError(f"{where}: {kind.name} has no option {option!r}; it takes {takes}", option)
        for option, least in (("burst", 1), ("queue", 0), ("segments", 1), ("lease", 1)):
            value = getattr(self, option)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not whole or not least <= value <= Rate.MOST_UNITS):
                raise LimitError(f"{where}: {option} is {value!r}: must be a whole number from {least}", option)
        if self.segments is not None and self.segments > 1000:
            raise LimitError(f"{where}: {self.segments} segments: at most 1000 (sliding_log is exact)", "segments")
        if self.mode not in ("enforce", "shadow"):
            raise LimitError(f"{where}: mode is {self.mode!r}; choose one of: enforce, shadow", "mode")
        if self.on_store_error is not None and self.on_store_error not in POLICIES:
            policies = ", ".join(POLICIES)
            raise LimitError(
                f"{where}: on_store_error is {self.on_store_error!r}; choose one of: {policies}", "on_store_error"
            )
        if self.split is not None and self.split not in get_args(Split):
            splits = ", ".join(get_args(Split))
            raise LimitError(f"{where}: split is {self.split!r}; choose None or one of: {splits}", "split")
        self._check_hot(where)
        if self.count_denied and self.max_wait is not None:
            raise LimitError(
                f"{where}: count_denied and max_wait contradict each other: a hit is refused or waits", "count_denied"
            )
        self._check_calendar(where)

    def _check_hot(self, where: str) -> None:
        if self.lease is not None and self.split is not None:
            raise LimitError(f"{where}: lease and split contradict each other: one count is shared, or none", "split")
        for option in ("lease", "split"):
            if getattr(self, option) is not None:
                for other in ("max_wait", "count_denied"):
                    if getattr(self, other):
                        what = "decided without asking Redis, which"
                        raise LimitError(f"{where}: {option} and {other}: {what} {other} needs", option)

    def _check_calendar(self, where: str) -> None:
        if self.align is not None and self.align not in get_args(Align):
            aligns = ", ".join(get_args(Align))
            raise LimitError(f"{where}: align is {self.align!r}; choose None or one of: {aligns}", "align")
        calendar.zone(self.time_zone)
        if self.align not in calendar.PERIODS:
            if self.time_zone != "UTC":
                periods = ", ".join(calendar.PERIODS)
                raise LimitError(f"{where}: time_zone needs align to be one of: {periods}", "time_zone")
            return
        shortest, longest = calendar.PERIODS[self.align]
        if not shortest <= self.rate.period_us <= longest:
            example = {"day": "1000/d", "week": "1000/w", "month": "1000/30d"}[self.align]
            raise LimitError(
                f"{where}: a rate counted by the {self.align} names that period, such as {example!r}", "align"
            )

    @property
    def is_hot(self) -> bool:
        """Whether it is decided in this process, as far as may be."""
        return self.lease is not None or self.split is not None

    @property
    def lapse(self) -> float:
        """Seconds after which units that were taken ahead may not be spent any more."""
        return algorithms.lapse_us(self) / SECOND

    def advising(self) -> Limit:
        """The same limit, with the same state, whose verdict only advises (unless it is in shadow anyway)."""
        return self if self.mode == "shadow" else self._but(mode="advise")

    def at(self, rate: Rate, burst: int | None) -> Limit:
        """The same limit, with the same state, at another rate. Raises `LimitError`."""
        options: dict[str, Any] = {option: getattr(self, option) for option in OPTIONS}
        if burst is not None:
            options["burst"] = burst
        if self.mode != "advise":
            return Limit(self.name, rate, **options)
        return Limit(self.name, rate, **{**options, "mode": "enforce"}).advising()

    def renamed(self, name: str) -> Limit:
        """The same limit under another name, with a state of its own."""
        name = _shortened(name)
        return self._but(name=name, key_part=_bounded(name) + b":" + algorithms.find(self.algorithm).suffix)

    def _but(self, **changes: object) -> Limit:
        copy = object.__new__(Limit)
        for attribute in fields(self):
            object.__setattr__(copy, attribute.name, changes.get(attribute.name, getattr(self, attribute.name)))
        return copy

    def more(self, now: int, waits: Sequence[int], *, is_patient: bool) -> bytes:
        """What the algorithm is given beyond its numbers, for one call.

        `waits`: how long the limits of the call may hold a hit, in microseconds, below 0 for any time; `is_patient`:
        the caller says so itself, and waits in any queue whose length nobody has named.
        """
        if self.align not in calendar.PERIODS:
            return pack("<d", 1) if is_patient else b""
        if not any(waits):
            return b""
        until = None if min(waits) < 0 else now + max(waits)
        ahead, is_all = calendar.boundaries_ahead(self.align, self.time_zone, now, until)
        return pack(f"<{len(ahead) + 1}d", not is_all, *ahead)

    def _max_wait_us(self) -> int:
        if self.max_wait is not None:
            return wait_us(self.max_wait, f"Limit {self.name!r}: max_wait")
        return -1 if self.algorithm == "leaky_bucket" else 0

    def _numbers(self, kind: algorithms.Algorithm) -> Callable[[int], algorithms.Numbers]:
        numbers = kind.numbers(self, 0)
        if self.align in calendar.PERIODS:
            return partial(kind.numbers, self)
        return lambda now: numbers


def _shortened(name: str) -> str:
    """The name as decisions tell it, and as whatever remembers decisions keeps it."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 25] + "~" + _digest(name)


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _bounded(name: str) -> bytes:
    """The name as a key carries it: itself if it is short and plain, else its beginning and a digest."""
    if len(name) <= _LONGEST_ID and _PLAIN.fullmatch(name):
        return name.encode()
    readable = re.sub(r"[^\w.,:/@+*=-]+", "_", name[: _LONGEST_ID - 25], flags=re.ASCII)
    return f"{readable}~{_digest(name)}".encode()
