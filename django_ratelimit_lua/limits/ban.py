"""Bans: who offends too often is refused for a time, which grows with every ban. `ban.lua` keeps them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from .rate import LimitError, time_us

if TYPE_CHECKING:
    from .limit import Limit

BanOn = Literal["refused", "counted", "reported"]
MOST_OFFENCES = 1000
"""Before a ban: each of them is remembered by its moment."""
LONGEST, FORGET = "7d", "1d"
_RECORD = Struct("<11d")
_STATE_PARTS = ((0, 7), (7, 7), (14, 7), (21, 7), (28, 7), (35, 4), (39, 4), (43, 1))
_STATE_SIZE = 44
"""Where the numbers of a state stand that `ban.lua` keeps, and how long each is."""
_ON: dict[BanOn, int] = {"refused": 0, "counted": 1, "reported": 2}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BanTerms:
    """By what a limit bans; times are microseconds.

    `key_part`: what the keys of its bans end with; `after`: so many offences within `window_us` earn one, of
    `duration_us(0)`; `forget_us`: after so long without offence, the next one is the first again; `spare`: where more
    signed-in users than that share the address that a ban would be of, it is of the identity alone (None: it is not).
    """

    key_part: bytes
    after: int
    window_us: int
    shortest_us: int
    factor: float
    longest_us: int
    forget_us: int
    on: BanOn
    renew: bool
    spare: int | None = None

    @classmethod
    def of(cls, limit: Limit, key_name: bytes) -> BanTerms | None:
        """Those of a limit; None: it does not ban. Raises `LimitError` for what contradicts itself."""
        if limit.ban_after is None or limit.ban_for is None:
            return None
        shortest = time_us(limit.ban_for)
        longest = time_us(limit.ban_max or LONGEST)
        if limit.ban_max is not None and longest < shortest:
            problem = f"ban_max ({limit.ban_max}) is shorter than the first ban (ban_for={limit.ban_for})"
            raise LimitError(f"Limit {limit.name!r}: {problem}", "ban_max")
        if limit.ban_spare is not None and limit.ban_key != "ip":
            problem = "ban_spare needs ban_key='ip': it spares those who share an address"
            raise LimitError(f"Limit {limit.name!r}: {problem}", "ban_spare")
        return cls(
            key_name + b":ban", limit.ban_after, time_us(limit.ban_window or limit.ban_for), shortest,
            limit.ban_factor, max(longest, shortest), time_us(limit.ban_forget or FORGET), limit.ban_on,
            limit.ban_renew, limit.ban_spare,
        )  # fmt: skip

    def record(self, place: int, units: int, *, is_shadow: bool, is_told: bool = False) -> bytes:
        """What the Lua is given; see `ban.lua`. `is_told`: offences are reported, whatever the limit does."""
        on = 2 if is_told else _ON[self.on]
        return _RECORD.pack(
            place, units, is_shadow, on, self.after, self.window_us, self.shortest_us, self.factor, self.longest_us,
            self.forget_us, self.renew,
        )  # fmt: skip

    def duration_us(self, times: int) -> int:
        """How long a ban is that follows so many."""
        us = self.shortest_us
        while times > 0 and us < self.longest_us and self.factor > 1:
            us, times = int(us * self.factor), times - 1
        return min(us, self.longest_us)


class Ban(NamedTuple):
    """A ban as a decision tells it, or what may become one. Moments are microseconds since 1970, 0: none.

    >>> ban = Ban(until=1_750_000_600_000_000, since=1_750_000_000_000_000, offences=10)
    >>> print(ban.ends_at)
    2025-06-15 15:16:40+00:00

    - `until`: its end; 0: there is no ban, and `offences` are those that count towards one;
    - `since`: when it was earned, or made by hand; `first`, `last`: its first and its last offence;
    - `offences`: how many; `times`: how often there was one, this one included, before it is forgotten;
    - `by_hand`: somebody has made it; `is_new`: this very call has earned it; `is_narrow`: it is of the identity alone,
      and not of its address, which others share;
    - `is_offence`: this very call was an offence that counts, or has begun the ban anew.
    """

    until: int = 0
    since: int = 0
    first: int = 0
    last: int = 0
    offences: int = 0
    times: int = 0
    by_hand: bool = False
    is_new: bool = False
    is_narrow: bool = False
    is_offence: bool = False

    @classmethod
    def of_state(cls, state: bytes, now: int) -> tuple[Ban, str] | None:
        """The ban that a state keeps as it is in Redis, and of one by hand why; None: there is none at that time."""
        if len(state) < _STATE_SIZE:
            return None
        clock, until, since, first, last, offences, times, by_hand = (
            int.from_bytes(state[at : at + size], "little") for at, size in _STATE_PARTS
        )
        is_ours = max(clock, until, since, first, last) < 2**53 and by_hand < 2
        if until <= now or not is_ours or (not by_hand and (len(state) - _STATE_SIZE) % 7):
            return None
        why = state[_STATE_SIZE:].decode(errors="replace") if by_hand else ""
        return cls(until, since, first, last, offences, times, by_hand == 1), why

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Ban:
        """The ban that a reply's numbers say."""
        until, since, first, last, offences, times, by, did = map(int, numbers)
        return cls(until, since, first, last, offences, times, by % 2 == 1, did % 2 == 1, by >= 2, did >= 2)

    def later(self) -> Ban:
        """The same as another call finds it, which has done nothing to it."""
        return self._replace(is_new=False, is_offence=False)

    @property
    def ends_at(self) -> datetime | None:
        """When it ends; None: there is none."""
        return _EPOCH + timedelta(microseconds=self.until) if self.until else None


HOUR, HOURS = 3600, 8
"""For so many hours a user counts who was seen at an address, the present one among them: a working day."""


def users_keys(prefix: bytes, network: bytes) -> list[bytes]:
    """The keys that together tell who was seen lately at an address, by the digest of its identity: of each hour."""
    hour = int(time.time()) // HOUR
    return [b"%b{%b}:users:%d" % (prefix, network, hour - ago) for ago in range(HOURS)]
