"""Bans: a client that is refused too often is refused for a time. `ban.lua` stores them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from struct import pack
from typing import Any, NamedTuple

from .algorithms.algorithm import Terms
from .rate import LimitError, duration, time_us
from .values import gettext_noop as _

MAX_OFFENCES = 1000
"""Before a ban."""
MAX_LENGTHS = 8
"""Entries of `ban_for`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ban_lengths(value: Any) -> str:
    """Return the lengths of the first, second and each further ban, as text: "10m,1h,1d".

    Raises `LimitError`, which names the invalid entry.

    >>> ban_lengths("10min, 1h"), ban_lengths(["10m", timedelta(days=1)])
    ('10m,1h', '10m,1d')
    >>> ban_lengths("10m,soon")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: 'soon': write a number and a unit ...
    """
    if isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
    elif isinstance(value, (list, tuple)):
        entries = list(value)
    else:
        entries = [value]
    if not 1 <= len(entries) <= MAX_LENGTHS:
        raise LimitError(
            _("%(lengths)r: write 1 to %(most)d durations, such as 10m,1h,1d"),
            lengths=value,
            most=MAX_LENGTHS,
        )
    return ",".join(map(duration, entries))


class BanTerms(NamedTuple):
    """When and for how long a limit bans. Times are microseconds.

    - `key_part`: the end of the keys of its bans;
    - `after`: the number of offences that triggers a ban, within `window_us` from the first one. An
      offence is a refusal by the limit;
    - `lengths_us`: the lengths of the first ban, the second, and so on. Each further ban has the
      last of these lengths. The number of bans is stored for the last of these lengths after a ban
      has ended.
    """

    key_part: bytes
    after: int
    window_us: int
    lengths_us: tuple[int, ...]

    @classmethod
    def of(cls, terms: Terms, key_name: bytes) -> BanTerms | None:
        """Return the ban terms of a limit, or None if the limit does not ban."""
        if terms.ban_after is None or terms.ban_for is None:
            return None
        lengths = tuple(time_us(entry) for entry in terms.ban_for.split(","))
        window = lengths[0]
        if terms.ban_window is not None:
            window = time_us(terms.ban_window)
        return cls(key_name + b":ban", terms.ban_after, window, lengths)

    @property
    def packed(self) -> bytes:
        """Return the numbers of its record, encoded as little-endian doubles.

        A ban has no capacity.
        """
        numbers = (inf, self.after, self.window_us, *self.lengths_us)
        return pack(f"<{len(numbers)}d", *numbers)


class Ban(NamedTuple):
    """A ban in a decision, or the offences that may lead to one.

    >>> ban = Ban(until=1_750_000_600_000_000, offences=10, times=1)
    >>> print(ban.ends_at)
    2025-06-15 15:16:40+00:00

    - `until`: the end of the ban in microseconds since 1970; 0 if there is no ban, and `offences`
      are those that count towards one;
    - `offences`: the number of offences; 0 for a ban that was made by hand;
    - `times`: the number of bans so far, including this one, as far as they are remembered;
    - `is_new`: whether this very call has triggered it.
    """

    until: int = 0
    offences: int = 0
    times: int = 0
    is_new: bool = False

    @property
    def ends_at(self) -> datetime | None:
        """Return the end of the ban, or None if there is no ban."""
        if not self.until:
            return None
        return _EPOCH + timedelta(microseconds=self.until)
