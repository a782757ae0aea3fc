"""The answer to one request: frozen, returned, never left on a shared object."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from .ban import Ban
from .rate import SECOND

if TYPE_CHECKING:
    from .limit import Limit

Source = Literal["redis", "deny-cache", "lease", "split", "fallback"]
Mode = Literal["enforce", "advise", "shadow"]


class Block(NamedTuple):
    """The answer to a block: whether it forbids, and its message.

    One that `forbids` is answered with 403, without a time to come back; others like any
    refusal.
    """

    forbids: bool = False
    message: str = ""


PLAIN_BLOCK = Block()


class LimitState(NamedTuple):
    """One limit's part of a decision. Times are seconds from the moment of the decision.

    - `allowed`: this limit's own verdict. In `mode` "enforce" it counts; if one view has both
      blocking limits and others with `block=False`, the latter "advise" and only set
      `request.limited`; in "shadow" it changes nothing;
    - `limit`: the rate's units, and `period` its seconds (0.0: they are slots); `used`: units
      counted; `remaining`: units that are available now;
    - `retry_after`: when the same hit would be allowed if nothing else happened; None: never. For a
      concurrency limit it is a guess: the end of the slot that ends first, unless it is renewed, as
      it normally is, or released before;
    - `reset_after`: when the limit is completely unused again if nothing else happens;
    - `wait`: how long this limit alone would hold the hit;
    - `counted_at`: the moment from which the taken units count, in microseconds since 1970, by
      which they can be given back (0: none were taken, or not by that clock). For a caller that
      waits for a slot, its place in the queue: -1 is the next;
    - `block`: the block that replaces the limit, if any;
    - `ban`: of a limit that bans, the ban in force, or the offences that count towards one.
    """

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    retry_after: float | None
    reset_after: float
    wait: float
    mode: Mode = "enforce"
    period: float = 0.0
    counted_at: int = 0
    block: Block | None = None
    ban: Ban | None = None

    def __eq__(self, other: object) -> bool:
        # Whenever the units were counted.
        return isinstance(other, LimitState) and self[:10] == other[:10] and self[11:] == other[11:]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:10])

    @classmethod
    def of(
        cls,
        limit: Limit,
        *,
        allowed: bool,
        used: int,
        remaining: int,
        retry_after: float | None,
        reset_after: float,
        wait: float = 0.0,
        counted_at: int = 0,
    ) -> LimitState:
        """The state of a limit, with its name, rate and mode."""
        rate = limit.rate
        return cls(
            limit.name,
            allowed,
            rate.limit,
            used,
            remaining,
            retry_after,
            reset_after,
            wait,
            limit.mode,
            rate.period_us / SECOND,
            counted_at,
        )

    @classmethod
    def blocked(
        cls, name: str, retry_after: float | None, mode: Mode, block: Block = PLAIN_BLOCK
    ) -> LimitState:
        """The state of a block that replaces a limit: nothing is available until it ends."""
        return cls(name, False, 0, 0, 0, retry_after, retry_after or 0.0, 0.0, mode, block=block)

    def later(self, seconds: float) -> LimitState:
        """The same refusal after this number of seconds."""
        retry_after = self.retry_after
        if retry_after is not None:
            retry_after = max(retry_after - seconds, 0.0)
        ban = self.ban
        if ban is not None:
            ban = ban.later()
        return LimitState(
            self.name,
            self.allowed,
            self.limit,
            self.used,
            self.remaining,
            retry_after,
            max(self.reset_after - seconds, 0.0),
            max(self.wait - seconds, 0.0),
            self.mode,
            self.period,
            0,
            self.block,
            ban,
        )

    def with_leased(self, units: int, seconds: float) -> LimitState:
        """Return the state after this number of seconds, with units that a process has leased.

        Those units are taken, but not spent.
        """
        return LimitState(
            self.name,
            True,
            self.limit,
            max(self.used - units, 0),
            self.remaining + units,
            0.0,
            max(self.reset_after - seconds, 0.0),
            0.0,
            self.mode,
            self.period,
        )

    @property
    def is_block(self) -> bool:
        """Whether a block replaces the limit, so that nothing is available.

        >>> LimitState.blocked("login", None, "enforce").is_block
        True
        """
        return self.block is not None

    @property
    def banned_until(self) -> datetime | None:
        """When the ban in force ends, or None."""
        if self.ban is None:
            return None
        return self.ban.ends_at

    @property
    def is_slots(self) -> bool:
        """Whether its units are slots, not units per period."""
        return self.period == 0.0 and self.block is None

    @property
    def enforced(self) -> bool:
        """Whether its verdict counts for the request."""
        return self.mode == "enforce"

    @property
    def refuses(self) -> bool:
        """Whether it refuses the request."""
        return self.enforced and not self.allowed


class Decision(NamedTuple):
    """Whether a hit may go, and every number behind that. True in a boolean context if it may.

    >>> refused = LimitState("mail", False, 5, 5, 0, 12.0, 60.0, 0.0)
    >>> unused = LimitState("sms", True, 100, 1, 99, 0.0, 60.0, 0.0)
    >>> decision = Decision(False, (refused, unused))
    >>> bool(decision), decision.denied_by, decision.retry_after, decision.remaining
    (False, ('mail',), 12.0, 0)

    - `allowed`: every limit that is enforced allows it; `granted`: the units that were taken (0 for
      a peek);
    - `wait`: seconds to hold the request before it goes (0.0 unless a limit reserves ahead); of a
      refusal, what the wait would have been;
    - `source`: "redis"; "deny-cache" where a refusal was repeated without asking; "lease" where
      units were spent that this process had taken before; "split" where it went by its own part of
      the limit; or "fallback" where the store could not be asked and a policy answered;
    - `moment`: microseconds since 1970 by the clock that decided (0: none did);
    - `revision`: the revision of the rules that decided (0: there were no rules to go by);
    - `moments`: where identities are counted on several servers, when each one's units count, by
      digest;
    - `identity`: of a refusal, the digest of whom the first limit of `denied_by` refused: the one
      that is counted, or the one that is blocked. Empty: not known.
    """

    allowed: bool
    limits: tuple[LimitState, ...] = ()
    granted: int = 0
    wait: float = 0.0
    source: Source = "redis"
    moment: int = 0
    revision: int = 0
    moments: Mapping[bytes, int] | None = None
    identity: bytes = b""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def enforced(self) -> tuple[LimitState, ...]:
        """The limits that can refuse the request."""
        return tuple([state for state in self.limits if state.enforced])

    @property
    def refusing(self) -> tuple[LimitState, ...]:
        """The limits that refused."""
        return tuple([state for state in self.limits if state.refuses])

    @property
    def denied_by(self) -> tuple[str, ...]:
        """The names of the limits that refused."""
        return tuple([state.name for state in self.refusing])

    @property
    def remaining(self) -> int | None:
        """Units that are available now under every limit; None if no limit was decided."""
        return min([state.remaining for state in self.enforced], default=None)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same hit would be allowed if nothing else happened.

        0.0 if it was; None: never.
        """
        if self.allowed:
            return 0.0
        longest = None
        for state in self.enforced:
            if state.retry_after is None:
                return None
            longest = max(longest or 0.0, state.retry_after)
        return longest

    @property
    def banned_until(self) -> datetime | None:
        """When the last of the bans ends that refuse it; None: none does."""
        return max(
            (until for state in self.refusing if (until := state.banned_until) is not None),
            default=None,
        )

    @property
    def reset_after(self) -> float:
        """Seconds until every limit is wholly unused again if nothing else happens."""
        return max([state.reset_after for state in self.enforced], default=0.0)

    def counted_at(self, digest: bytes) -> int:
        """When the units of an identity count that were taken, in microseconds since 1970."""
        return (self.moments or {}).get(digest) or self.moment + round(self.wait * 1_000_000)

    def later(self, seconds: float, source: Source) -> Decision:
        """The same refusal after this number of seconds."""
        states = tuple([state.later(seconds) for state in self.limits])
        wait = max(self.wait - seconds, 0.0)
        moment = self.moment + round(seconds * 1_000_000)
        return Decision(False, states, 0, wait, source, moment, self.revision)

    def merged(self, later: Decision) -> Decision:
        """What two decisions about one request amount to together."""
        source = later.source
        if self.source == "fallback":
            source = "fallback"
        return Decision(
            allowed=self.allowed and later.allowed,
            limits=self.limits + later.limits,
            granted=max(self.granted, later.granted),
            wait=max(self.wait, later.wait),
            source=source,
            moment=later.moment,
            revision=later.revision,
            moments={**(self.moments or {}), **(later.moments or {})} or None,
            identity=self.identity or later.identity,
        )
