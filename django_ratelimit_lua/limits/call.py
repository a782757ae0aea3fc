"""One call of the Lua program: described once, performed by any runner, sync or async.

The layout of keys, arguments and reply is written in the header of `program.lua`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Literal, NamedTuple

from .algorithms.concurrency import WAITS
from .ban import Ban
from .decision import Decision, LimitState
from .limit import Limit
from .rate import SECOND, LimitError

logger = logging.getLogger("django_ratelimit_lua")

Operation = Literal["hit", "peek", "charge", "refund", "offend", "ban", "unban"]

_HEAD = Struct("<4d")
_CONFIRM = Struct(">I")
_STALE = b"stale "
_REVISION = re.compile(rb"(0|[1-9][0-9]{0,18})(-[0-9a-f]{16})?")
_VERDICTS = (0.0, 1.0)
_OF_BANS = ("offend", "ban", "unban")
_HEADER = 5
_PER_LIMIT = 7
_PER_BAN = 8
REGISTER = b"{bans}"
"""Behind the prefix, the key of the bans that there are."""
MAX_WHY_LENGTH = 200
"""Maximum length of the reason for a ban by hand."""
MAX_COST = 2**53
"""Units of one hit; beyond that the Lua program's numbers would not be exact."""
MAX_HOLD_US = 5 * SECOND
"""How long a request may be held by a limit that names no `max_wait` and makes callers wait, as a
leaky bucket does.
"""


def whole_cost(cost: object, what: str = "cost is") -> int:
    """The cost. Raises `LimitError`, with what would be right, if it is invalid.

    >>> whole_cost(2**60)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: cost is 1152921504606846976: must be ...
    """
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_COST:
        # Python refuses to write out very large integers.
        if isinstance(cost, int) and cost.bit_length() > 256:
            shown = "a number of more than 256 bits"
        else:
            shown = repr(cost)[:200]
        raise LimitError(f"{what} {shown}: must be a whole number from 0 to {MAX_COST}", "cost")
    return cost


class Charge(NamedTuple):
    """A number of units, from 0 to `MAX_COST`, for one identity (by its digest) under one limit.

    - `cost`: of `offend`, offences; of `ban`, its length in microseconds, 0 for the length of an
      automatic one; of `unban`, 1 to forget earlier bans as well, or 0;
    - `banned`: the digest of the identity to ban, if it differs; empty: the same;
    - `reports`: whether offences are reported later, whatever the limit does.
    """

    limit: Limit
    digest: bytes
    cost: int = 1
    banned: bytes = b""
    reports: bool = False

    @property
    def ban_digest(self) -> bytes:
        """The digest of the identity to ban."""
        return self.banned or self.digest


class Revision(NamedTuple):
    """Identify a state of the rules: how often they had been changed, and the text to compare.

    The text ends with a random tag, because two histories of a database can have the same
    number.

    >>> Revision.of(7, "0123456789abcdef")
    Revision(number=7, text=b'7-0123456789abcdef')
    """

    number: int
    text: bytes

    @classmethod
    def of(cls, number: int, tag: str) -> Revision:
        """The revision of that number and tag."""
        return cls(number, b"%d-%b" % (number, tag.encode()))

    @classmethod
    def read(cls, text: bytes) -> Revision:
        """The revision that is written so. Raises `ValueError`."""
        match = _REVISION.fullmatch(text)
        if match is None:
            raise ValueError(f"invalid revision: {text[:80]!r}")
        return cls(int(match[1]), text)


NO_RULES = Revision(0, b"0")
"""That of rules that were never published."""


class StaleRules(Exception):  # noqa: N818 - not an error: the caller learns and asks again
    """The caller decided by rules or overrides other than the current ones; nothing was counted.

    `current`: the rules revision in force; `records`: what is written about each of the call's
    subjects, if that is what the caller did not know.
    """

    def __init__(self, current: Revision, records: tuple[bytes | None, ...] = ()) -> None:
        super().__init__(f"the current rules revision is {current.text.decode()}")
        self.current = current
        self.records = records


class Subject(NamedTuple):
    """A subject that overrides may match: its digest, and the tag of its overrides.

    The tag is that of the overrides that the caller has read; empty if it has read none.
    """

    digest: bytes
    tag: bytes = b""


TAG_SIZE = 16


class Call(NamedTuple):
    """Charges decided together, all or nothing.

    - `prefix`: the start of every key; `now`: microseconds since 1970, or None for the server's
      clock;
    - `slack_us`: with `now`, how much longer than necessary keys are kept, because they expire by
      the server's clock; None: a minute. A caller whose time is behind the present needs at least
      the difference;
    - `max_wait_us`: replaces each limit's own for this call; below 0: any wait;
    - `longest_hold_us`: how long a limit without `max_wait` that makes callers wait anyway, such as
      a leaky bucket, may hold a hit; None: without a bound;
    - `partial`: grant as many units as are available; `debt`: a token bucket that owes no more than
      it holds grants any cost, and later callers wait until the debt is paid;
    - `hit_at`: of a refund, the moment of the hit whose units are given back; None: the latest;
    - `revision`, `fence`: the rules revision that the caller uses, and the key of the hash with the
      current one;
    - `subjects`: the subjects whose overrides the caller knows; they are in the same hash. Only
      with a `revision`;
    - `registers`: whether the register of bans is where the call is decided; `why`: the reason of a
      `ban`;
    - `slot`: the slot that concurrency limits take, or release (see `new_slot`); without one they
      take none; `waits`: a refused caller enters their queues, and a limit that counts refused hits
      does not count repeated ones; `confirm_ms`: how many milliseconds a taken slot lasts unless a
      `charge` of the same slot confirms it; 0: it needs no confirmation.
    """

    charges: Sequence[Charge]
    operation: Operation = "hit"
    prefix: bytes = b"rl:"
    now: int | None = None
    max_wait_us: int | None = None
    partial: bool = False
    revision: Revision | None = None
    fence: bytes = b""
    hit_at: int | None = None
    subjects: Sequence[Subject] = ()
    longest_hold_us: int | None = None
    slack_us: int | None = None
    registers: bool = True
    why: str = ""
    slot: bytes = b""
    waits: bool = False
    confirm_ms: int = 0
    debt: bool = False

    def max_wait_us_of(self, limit: Limit) -> int:
        """How long a hit may be reserved ahead under one of the limits; below 0: for any time."""
        if self.max_wait_us is not None:
            return self.max_wait_us
        if limit.max_wait_us < 0 and self.longest_hold_us is not None:
            return self.longest_hold_us
        return limit.max_wait_us

    @property
    def units(self) -> int:
        """The units that are granted if it is allowed: a hit's."""
        if self.operation != "hit":
            return 0
        return max([charge.cost for charge in self.charges], default=0)

    @property
    def revision_number(self) -> int:
        """The number of the rules revision that the caller uses; 0: none."""
        if self.revision is None:
            return 0
        return self.revision.number

    @property
    def banning(self) -> list[tuple[int, Charge]]:
        """The charges of limits that ban, with their places.

        Charges without a verdict and refunds are not included.
        """
        for charge in self.charges:
            if charge.limit.ban is not None and self.operation not in ("charge", "refund"):
                return [
                    (place, each)
                    for place, each in enumerate(self.charges)
                    if each.limit.ban is not None
                ]
        return []

    def ban_keys(self) -> list[bytes]:
        """The keys of the bans of its limits."""
        return [
            b"%b{%b}:%b" % (self.prefix, charge.ban_digest, charge.limit.ban.key_part)
            for _, charge in self.banning
            if charge.limit.ban is not None
        ]

    def state_keys(self) -> list[bytes]:
        """The keys of what is counted, and of bans."""
        keys = [
            b"%b{%b}:%b" % (self.prefix, charge.digest, charge.limit.key_part)
            for charge in self.charges
        ]
        return keys + self.ban_keys()

    def keys(self) -> list[bytes]:
        """The keys of the limits and their bans; the fence's key comes last, if there is one.

        Raises `LimitError` for a double.
        """
        keys = self.state_keys()
        if len(set(keys)) < len(keys):
            names = ", ".join(charge.limit.name for charge in self.charges)
            raise LimitError(
                f"Two limits of one call share a count; give them different names: {names}"
            )
        if self.registers and len(keys) > len(self.charges):
            keys.append(self.prefix + REGISTER)
        if self.revision is not None:
            keys.append(self.fence)
        return keys

    def args(self, token: bytes = b"") -> list[bytes]:
        """The arguments, as bytes. The reply ends with the token, which identifies it."""
        args = [self.operation.encode(), b"", b"", b"%d" % self.partial]
        if self.revision is not None:
            args[1] = self.revision.text
        now = time.time_ns() // 1000
        if self.now is not None:
            now = self.now
            args[2] = b"%016d" % now
        if self.slack_us is not None:
            args[2] += b" %d" % self.slack_us
        if self.operation == "refund":
            args[3] = b"%d" % self.hit_at if self.hit_at else b""
        elif self.operation == "ban":
            args[3] = self.why[:MAX_WHY_LENGTH].encode("utf-8", "replace")
        elif self.debt:
            args[3] = b"2"
        is_usual = self.max_wait_us is None
        waits = [
            limit.max_wait_us if is_usual and limit.max_wait_us >= 0 else self.max_wait_us_of(limit)
            for limit in [charge.limit for charge in self.charges]
        ]
        takes = self.operation not in _OF_BANS
        for charge, max_wait in zip(self.charges, waits, strict=True):
            limit = charge.limit
            args.append(limit.algorithm.encode())
            counts_denied = limit.holds if self.waits else limit.count_denied
            record = _HEAD.pack(
                charge.cost if takes else 0, limit.mode != "enforce", counts_denied, max_wait
            )
            record += limit.packed or limit.packed_at(now)
            if limit.holds:  # Which slot it is about.
                record += self.slot
                if self.waits:
                    record += WAITS
                elif self.confirm_ms:
                    record += _CONFIRM.pack(self.confirm_ms)
            elif limit.wants_more:
                record += limit.more(now, waits, is_patient=not is_usual)
            args.append(record)
        bans = self.banning
        for place, charge in bans:
            limit, _, cost, _, reports = charge
            if limit.ban is None:
                continue
            units = 0 if takes else cost
            is_shadow = limit.mode != "enforce"
            record = limit.ban.record(
                place + 1, units, is_shadow=is_shadow, reports=reports or self.waits
            )
            args += [b"ban", record]
        if bans and self.registers:
            args += [b"bans", b""]
        if self.subjects:
            args += [subject.digest for subject in self.subjects]
            args += [subject.tag for subject in self.subjects]
        args.append(token)
        return args

    def read(self, reply: object, token: bytes = b"") -> Decision:
        """The decision.

        Logs how many keys of a foreign type had to be cleared. Raises `StaleRules`; and
        `ValueError` for whatever is not the reply to this very call: of another form or length,
        with numbers that none is, or without the token that was sent with it.
        """
        if isinstance(reply, list):
            if not self.subjects or len(reply) != len(self.subjects) + 1 or reply.pop() != token:
                raise ValueError(
                    "unexpected reply to a call: a list without the token, or of another length"
                )
            if not all(record is None or isinstance(record, bytes) for record in reply):
                raise ValueError("unexpected reply to a call: a list without records")
            raise StaleRules(self.revision or NO_RULES, tuple(reply))
        if not isinstance(reply, bytes) or not reply.endswith(token):
            raise ValueError(f"unexpected reply to a call: {reply!r:.80}")
        size = len(reply) - len(token)
        count = _HEADER + _PER_LIMIT * len(self.charges)
        bans: Sequence[tuple[int, Charge]] = ()
        if size > 8 * count:
            bans = self.banning
        count += _PER_BAN * len(bans)
        # No decision begins so: its first double is 0 or 1.
        if self.revision is not None and reply.startswith(_STALE):
            current = Revision.read(reply[len(_STALE) : size])
            if current == self.revision:
                raise ValueError(
                    "unexpected reply to a call: it reports the revision of the call as changed"
                )
            raise StaleRules(current)
        if size != 8 * count:
            raise ValueError(f"unexpected reply to a call: {size} bytes")
        numbers = _doubles(count).unpack_from(reply)
        status, moment, granted, cleared, longest = numbers[:_HEADER]
        if not isfinite(sum(numbers)) or status not in _VERDICTS:
            raise ValueError("unexpected reply to a call: numbers out of range")
        states: tuple[LimitState, ...] = ()
        at = _HEADER
        for limit, _, _, _, _ in self.charges:
            verdict, used, remaining, retry, reset, wait, counted_at = numbers[at : at + _PER_LIMIT]
            at += _PER_LIMIT
            if verdict not in _VERDICTS:
                raise ValueError("unexpected reply to a call: an unknown verdict")
            rate = limit.rate
            retry_after = None
            if retry >= 0:
                retry_after = retry / SECOND
            state = LimitState(
                limit.name,
                verdict == 1,
                rate.limit,
                int(used),
                int(remaining),
                retry_after,
                reset / SECOND,
                wait / SECOND,
                limit.mode,
                rate.period_us / SECOND,
                int(counted_at),
                None,
            )
            states += (state,)
        if bans:
            states = _with_bans(states, [place for place, _ in bans], numbers[at:])
        if cleared:
            logger.warning(
                "Deleted %d key(s) of an unexpected type under the prefix %r", cleared, self.prefix
            )
        if self.operation not in ("hit", "charge"):
            granted = 0
        revision = 0
        if self.revision is not None:
            revision = self.revision.number
        return Decision(
            status == 1, states, int(granted), longest / SECOND, "redis", int(moment), revision
        )


@lru_cache(maxsize=64)
def _doubles(count: int) -> Struct:
    return Struct(f"<{count}d")


def _with_bans(
    states: tuple[LimitState, ...], places: Sequence[int], numbers: Sequence[float]
) -> tuple[LimitState, ...]:
    """The states, with the bans that the reply has for these places."""
    found = list(states)
    for number, place in enumerate(places):
        found[place] = found[place]._replace(
            ban=Ban.read(numbers[number * _PER_BAN : (number + 1) * _PER_BAN])
        )
    return tuple(found)
