"""One call of the Lua script: described once, and performed by a sync or an async runner.

The header of `program.lua` defines the layout of keys, arguments and reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, isfinite
from struct import Struct
from typing import Literal, NamedTuple

from ..process import Clock
from .ban import Ban
from .decision import Decision, LimitState
from .limit import Limit
from .rate import SECOND, LimitError

Operation = Literal["hit", "peek", "charge", "refund", "ban", "unban"]

_RECORD_START = Struct("<5d")
BAN = "ban"
"""The name of the Lua file that decides bans."""
_STALE = b"stale "
_REVISION = re.compile(rb"(0|[1-9][0-9]{0,18})(-[0-9a-f]{8}-[0-9a-f]{8})?")
_VERDICTS = (0.0, 1.0)
# The numbers of a reply: of the call, and then those of each limit, and of its ban if it has one.
_OF_CALL = 4
_OF_LIMIT = 5
_OF_BAN = 6
MAX_COST = 10**9
"""Units of one hit."""
MAX_HOLD_US = 5 * SECOND
"""How long a request may be held by a limit that names no `max_wait` and makes callers wait, as a
leaky bucket does.
"""


def whole_cost(cost: object, what: str = "cost is") -> int:
    """Return the cost. Raises `LimitError` with the valid range if it is invalid.

    >>> whole_cost(10**10)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: cost is 10000000000: must be ...
    """
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_COST:
        raise LimitError(
            f"{what} {cost!r:.200}: must be a whole number from 0 to {MAX_COST}", "cost"
        )
    return cost


class Charge(NamedTuple):
    """A number of units, from 0 to `MAX_COST`, for one identity (by its digest) under one limit.

    - `cost`: the units. For `ban`, its length in microseconds, or 0 for the length of an automatic
      ban; for `unban`, 1 to forget earlier bans as well, or 0.
    """

    limit: Limit
    digest: bytes
    cost: int = 1


class Tags(NamedTuple):
    """The tags of a revision: that of the rules, and that of the overrides."""

    rules: bytes = b""
    overrides: bytes = b""


class Revision(NamedTuple):
    """A state of the rules and overrides: the number of changes so far, and the text to compare.

    The text ends with two random tags. Each identifies the state of one part, because two histories
    of a database can have the same number.

    >>> Revision.of(7, "01234567", "89abcdef")
    Revision(number=7, text=b'7-01234567-89abcdef')
    """

    number: int
    text: bytes

    @classmethod
    def of(cls, number: int, rules: str, overrides: str) -> Revision:
        """Return the revision of that number, with the tags of both parts."""
        return cls(number, f"{number}-{rules}-{overrides}".encode())

    @classmethod
    def read(cls, text: bytes) -> Revision:
        """Parse the text of a revision. Raises `ValueError` if it is invalid."""
        match = _REVISION.fullmatch(text)
        if match is None:
            raise ValueError(f"invalid revision: {text[:80]!r}")
        return cls(int(match[1]), text)

    def tags(self) -> Tags:
        """Return the tags, which are empty before the first change."""
        return Tags(*self.text.split(b"-")[1:])


NO_RULES = Revision(0, b"0")
"""The revision of rules that were never published."""
UNKNOWN = Revision(-1, b"")
"""A revision that no rules have."""


class StaleRules(Exception):  # noqa: N818 - not an error: the caller loads the rules and retries
    """The caller's rules or overrides were not the current ones, so nothing was counted.

    - `current`: the revision in force.
    """

    def __init__(self, current: Revision) -> None:
        super().__init__(f"the current rules revision is {current.text.decode()}")
        self.current = current


class Call(NamedTuple):
    """Charges decided together, all or nothing.

    - `prefix`: the start of every key;
    - `now`: microseconds since 1970, or None for the server's clock;
    - `max_wait_us`: replaces the `max_wait` of each bucket for this call, and other limits reserve
      no turn; negative: without a maximum;
    - `longest_hold_us`: how long a hit may be held by a limit that makes callers wait even without
      `max_wait`, such as a leaky bucket; None: without a maximum;
    - `partial`: grant as many units as are available;
    - `debt`: a token bucket that owes no more than it holds grants any cost, and later callers wait
      until the debt is paid;
    - `hit_at`: for a refund, the moment of the refunded hit; None: the latest hit;
    - `revision`, `fence`: the revision of the rules and overrides that the caller uses, and the key
      of the hash with the current one;
    - `has_overrides`: whether the caller found overrides. The revision is then compared even if
      there are no charges;
    - `slot`: the slot that concurrency limits take or release (see `new_slot`); without one, they
      take none;
    - `is_repeatable`: whether the deny cache may repeat a refusal;
    - `tries_again`: whether the caller tries again after a refusal, which is then neither counted
      nor an offence, except by a bucket: its refusals are final.
    """

    charges: Sequence[Charge]
    operation: Operation = "hit"
    prefix: bytes = b"rl:"
    now: int | None = None
    partial: bool = False
    revision: Revision | None = None
    fence: bytes = b""
    has_overrides: bool = False
    slot: bytes = b""
    max_wait_us: int | None = None
    hit_at: int | None = None
    longest_hold_us: int | None = None
    tries_again: bool = False
    is_repeatable: bool = True
    debt: bool = False

    def max_wait_us_of(self, limit: Limit) -> int:
        """Return how long a hit may wait under one of the limits; negative: without a maximum."""
        if self.max_wait_us is not None:  # Only buckets reserve a turn.
            return self.max_wait_us if limit.kind.is_bucket else 0
        if limit.max_wait_us < 0 and self.longest_hold_us is not None:
            return self.longest_hold_us
        return limit.max_wait_us

    def is_tried_again(self, limit: Limit) -> bool:
        """Return whether the caller tries again after a refusal by one of the limits."""
        return self.tries_again and not limit.kind.is_bucket

    @property
    def units(self) -> int:
        """Return the units that a hit is granted if it is allowed; 0 for other operations."""
        if self.operation != "hit":
            return 0
        return max([charge.cost for charge in self.charges], default=0)

    @property
    def revision_number(self) -> int:
        """Return the number of the rules revision that the caller uses; 0 if it uses none."""
        if self.revision is None:
            return 0
        return self.revision.number

    @property
    def decides_bans(self) -> bool:
        """Return whether the bans of its limits take part: not if there is no verdict."""
        return self.operation not in ("charge", "refund")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Return the names of the Lua files that decide its states, sorted."""
        names = {limit.algorithm for limit, _, _ in self.charges}
        if self.decides_bans and any(charge.limit.ban is not None for charge in self.charges):
            names.add(BAN)
        return tuple(sorted(names))

    def key_parts(self, limit: Limit) -> list[bytes]:
        """Return the ends of the keys of a limit's count and, if the call decides bans, its ban."""
        if limit.ban is None or not self.decides_bans:
            return [limit.key_part]
        return [limit.key_part, limit.ban.key_part]

    def ban_keys(self) -> list[bytes]:
        """Return the keys of the bans of its limits."""
        return self.state_keys(first=1)

    def state_keys(self, first: int = 0) -> list[bytes]:
        """Return the keys of the counts, each followed by that of the limit's ban.

        With `first` 1, return only those of bans.
        """
        return [
            b"%b{%b}:%b" % (self.prefix, digest, part)
            for limit, digest, _ in self.charges
            for part in self.key_parts(limit)[first:]
        ]

    def keys(self) -> list[bytes]:
        """Return the keys of the states, and last the fence's key, if there is one.

        Raises `LimitError` if a key occurs twice.
        """
        keys = self.state_keys()
        if len(set(keys)) < len(keys):
            names = ", ".join(charge.limit.name for charge in self.charges)
            raise LimitError(
                f"Two limits of one call share a count; give them different names: {names}"
            )
        if self.revision is not None:
            keys.append(self.fence)
        return keys

    def args(self, token: bytes = b"") -> list[bytes]:
        """Return the arguments as bytes. The reply ends with the token, which identifies it."""
        revision = b"" if self.revision is None else self.revision.text
        now = b"" if self.now is None else b"%d" % self.now
        return [self.operation.encode(), revision, now, self._mode(), *self._records(), token]

    def _mode(self) -> bytes:
        """Return the argument about how to hit, or which hit to refund; empty: as usual."""
        if self.operation == "refund":
            return b"%d" % self.hit_at if self.hit_at else b""
        if self.debt:
            return b"debt"
        if self.partial:
            return b"partial"
        return b""

    def _records(self) -> list[bytes]:
        """Return the record of each limit, followed by that of its ban if it has one."""
        records = []
        now = Clock.time_ns() // 1000 if self.now is None else self.now
        places = {name: place for place, name in enumerate(self.algorithms, 1)}
        for limit, _digest, cost in self.charges:
            is_shadow = limit.mode != "enforce"
            is_tried_again = self.is_tried_again(limit)
            counts_denied = limit.count_denied and not is_tried_again
            units = 0 if self.operation in ("ban", "unban") else cost
            max_wait_us = self.max_wait_us_of(limit)
            start = (places[limit.algorithm], units, is_shadow, counts_denied, max_wait_us)
            record = _RECORD_START.pack(*start) + (limit.packed or limit.packed_at(now))
            if limit.holds:
                record += self.slot
            records.append(record)
            if limit.ban is not None and self.decides_bans:
                start = (places[BAN], cost, is_shadow, not is_tried_again, 0)
                records.append(_RECORD_START.pack(*start) + limit.ban.packed)
        return records

    def read(self, reply: object, token: bytes = b"") -> Decision:
        """Return the decision of a reply.

        Raises `StaleRules`, and `ValueError` if it is not the reply to this very call: if its form
        or length differs, a number is out of range, or the token that was sent is missing.
        """
        numbers = self._read_numbers(reply, token)
        allowed, moment, granted, wait = numbers[:_OF_CALL]
        place = _OF_CALL
        states: tuple[LimitState, ...] = ()
        for limit, _, _ in self.charges:
            used, retry_us, reset_us, wait_us, counted_at = numbers[place : place + _OF_LIMIT]
            place += _OF_LIMIT
            units = ceil(used)
            remaining = limit.counts_to - units
            # In the order of the fields: by keywords, every hit would take longer.
            state = LimitState(
                limit.name,
                retry_us == 0,
                limit.rate.limit,
                units,
                remaining if remaining > 0 else 0,
                retry_us / SECOND if retry_us >= 0 else None,  # Negative: never.
                reset_us / SECOND,
                wait_us / SECOND,
                limit.mode,
                limit.rate.period_us / SECOND,
                int(counted_at),
            )
            if limit.ban is not None and self.decides_bans:
                state = _add_ban(state, moment, numbers[place : place + _OF_BAN])
                place += _OF_BAN
            states += (state,)
        if place != len(numbers):
            raise ValueError(f"unexpected reply to a call: {len(numbers)} numbers, not {place}")
        units = int(granted) if self.operation in ("hit", "charge") else 0
        revision = 0 if self.revision is None else self.revision.number
        return Decision(allowed == 1, states, units, wait / SECOND, "redis", int(moment), revision)

    def _read_numbers(self, reply: object, token: bytes) -> Sequence[float]:
        """Return the numbers of a reply. Raises `StaleRules` and `ValueError`, see `read`."""
        if not isinstance(reply, bytes) or not reply.endswith(token):
            raise ValueError(f"unexpected reply to a call: {reply!r:.80}")
        size = len(reply) - len(token)
        # No decision begins so: its first number is 0 or 1.
        if self.revision is not None and reply.startswith(_STALE):
            self._raise_stale(reply[len(_STALE) : size])
        count, remainder = divmod(size, 8)
        if remainder or count < _OF_CALL:
            raise ValueError(f"unexpected reply to a call: {size} bytes")
        numbers = _doubles(count).unpack_from(reply)
        if not isfinite(sum(numbers)) or numbers[0] not in _VERDICTS:
            raise ValueError("unexpected reply to a call: numbers out of range")
        return numbers

    def _raise_stale(self, text: bytes) -> None:
        """Raise `StaleRules` with the revision in force, as the reply names it.

        Raises `ValueError` if that is the revision of the call.
        """
        try:
            current = Revision.read(text)
        except ValueError:  # It was edited by hand. The rules are published again.
            current = UNKNOWN
        if current == self.revision:
            raise ValueError(
                "unexpected reply to a call: it reports the revision of the call as changed"
            )
        raise StaleRules(current)


def _add_ban(state: LimitState, moment: float, numbers: Sequence[float]) -> LimitState:
    """Return the state of a limit with its ban, given the six numbers of the ban in the reply."""
    offences, left_us, _reset_us, _wait_us, begins_at, times = numbers
    until = int(moment + left_us) if left_us else 0
    ban = Ban(until, int(offences), int(times), is_new=begins_at > 0)
    return state.with_ban(ban, left_us / SECOND)


@lru_cache(maxsize=64)
def _doubles(count: int) -> Struct:
    """Return the layout of this number of little-endian doubles."""
    return Struct(f"<{count}d")
