"""Bans: a client that offends too often is refused for a time. `ban.lua` stores them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .rate import LimitError, duration, time_us
from .values import gettext_noop as _

if TYPE_CHECKING:
    from .limit import Limit

BanOn = Literal["refused", "counted", "reported"]
MAX_OFFENCES = 1000
"""Before a ban: each of them is remembered by its moment."""
MAX_LENGTHS = 8
"""Entries of `ban_for`."""
_STATE_SIZES = (7, 7, 7, 7, 7, 4, 4, 1)
"""The lengths of the numbers that `ban.lua` keeps at the start of a state."""
_ON: dict[BanOn, int] = {"refused": 0, "counted": 1, "reported": 2}
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
    entries = value
    if isinstance(value, str):
        entries = [entry.strip() for entry in value.split(",")]
    elif not isinstance(value, (list, tuple)):
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
    - `after`: the number of offences within `window_us` that triggers a ban;
    - `lengths_us`: the lengths of the first ban, the second, and so on. Each further ban has the
      last of these lengths. The number of bans is stored for the last of these lengths after a ban
      has ended;
    - `on`: what counts as an offence.
    """

    key_part: bytes
    after: int
    window_us: int
    lengths_us: tuple[int, ...]
    on: BanOn

    @classmethod
    def of(cls, limit: Limit, key_name: bytes) -> BanTerms | None:
        """Return the ban terms of a limit, or None if the limit does not ban."""
        if limit.ban_after is None or limit.ban_for is None:
            return None
        lengths = tuple(time_us(entry) for entry in limit.ban_for.split(","))
        window = lengths[0]
        if limit.ban_window is not None:
            window = time_us(limit.ban_window)
        return cls(key_name + b":ban", limit.ban_after, window, lengths, limit.ban_on)

    def record(self, place: int, units: int, *, is_shadow: bool, reports: bool = False) -> bytes:
        """Return the arguments of `ban.lua`.

        With `reports`, only reported offences count, not those that the limit itself would count.
        """
        on = _ON[self.on]
        if reports:
            on = 2
        numbers = (place, units, is_shadow, on, self.after, self.window_us, *self.lengths_us)
        return Struct(f"<{len(numbers)}d").pack(*numbers)

    def duration_us(self, times: int) -> int:
        """Return the length of a ban, given the number of bans before it."""
        return self.lengths_us[min(times, len(self.lengths_us) - 1)]


class Ban(NamedTuple):
    """A ban in a decision, or the offences that may lead to one.

    Moments are microseconds since 1970; 0 if not set.

    >>> ban = Ban(until=1_750_000_600_000_000, since=1_750_000_000_000_000, offences=10)
    >>> print(ban.ends_at)
    2025-06-15 15:16:40+00:00

    - `until`: the end of the ban; 0 if there is no ban, and `offences` are those that count towards
      one;
    - `since`: when the ban was triggered, or made by hand;
    - `first`, `last`: the moments of its first and its last offence;
    - `offences`: the number of offences;
    - `times`: the number of bans so far, including this one, as far as they are remembered;
    - `by_hand`: whether an operator has made it;
    - `is_new`: whether this very call has triggered it;
    - `is_offence`: whether this very call was an offence that counts.
    """

    until: int = 0
    since: int = 0
    first: int = 0
    last: int = 0
    offences: int = 0
    times: int = 0
    by_hand: bool = False
    is_new: bool = False
    is_offence: bool = False

    @classmethod
    def of_state(cls, state: bytes, now: int) -> tuple[Ban, str] | None:
        """Return the ban in a state as Redis stores it, and its reason if it was made by hand.

        None if no ban is in force at that time.
        """
        if len(state) < sum(_STATE_SIZES):
            return None
        stream = BytesIO(state)
        clock, until, since, first, last, offences, times, by_hand = (
            int.from_bytes(stream.read(size), "little") for size in _STATE_SIZES
        )
        rest = stream.read()
        is_ours = max(clock, until, since, first, last) < 2**53 and by_hand < 2
        if until <= now or not is_ours or (not by_hand and len(rest) % 7):
            return None
        why = ""
        if by_hand:
            why = rest.decode(errors="replace")
        return cls(until, since, first, last, offences, times, by_hand == 1), why

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Ban:
        """Return the ban in the numbers of a reply."""
        until, since, first, last, offences, times, by, did = map(int, numbers)
        return cls(until, since, first, last, offences, times, by == 1, did % 2 == 1, did >= 2)

    def later(self) -> Ban:
        """Return the ban as a later decision reports it: not new, and without an offence."""
        return self._replace(is_new=False, is_offence=False)

    @property
    def ends_at(self) -> datetime | None:
        """Return the end of the ban, or None if there is no ban."""
        if not self.until:
            return None
        return _EPOCH + timedelta(microseconds=self.until)
