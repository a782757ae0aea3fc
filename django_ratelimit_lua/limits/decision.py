"""The decision about one request. It is frozen, and returned to the caller only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from .algorithms.algorithm import Mode, Terms
from .ban import Ban
from .rate import SECOND

Source = Literal["redis", "deny-cache", "lease", "split", "fallback"]


class Block(NamedTuple):
    """The response to a blocked client: whether the block forbids, and its message.

    If it `forbids`, the response is a 403 without a retry time. Otherwise it is the same as for any
    other refusal.
    """

    forbids: bool = False
    message: str = ""


PLAIN_BLOCK = Block()


class LimitState(NamedTuple):
    """One limit's part of a decision. Times are seconds from the moment of the decision.

    - `allowed`: this limit's own verdict;
    - `mode`: in "enforce" the verdict counts; "advise" only sets `request.limited`: that is the
      mode of limits with `block=False` on a view that has blocking limits as well; "shadow" changes
      nothing;
    - `limit`: the rate's units, and `period` its seconds (0.0: they are slots);
    - `used`: the units counted; `remaining`: the units that are available now;
    - `retry_after`: when the same hit would be allowed if nothing else happened; None: never. For a
      concurrency limit it is an estimate: the end of the slot that ends first, unless that is
      renewed, as it normally is, or released before;
    - `reset_after`: when the limit is completely unused again if nothing else happens;
    - `wait`: how long this limit alone would hold the hit;
    - `counted_at`: the moment from which the taken units count, in microseconds since 1970. It
      identifies them for a refund. 0: no units were taken, or their moment is not known;
    - `block`: the block that replaces the limit, if any;
    - `ban`: for a limit that bans, the ban in force, or the offences that count towards one.
    """

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    retry_after: float | None
    reset_after: float
    wait: float = 0.0
    mode: Mode = "enforce"
    period: float = 0.0
    counted_at: int = 0
    block: Block | None = None
    ban: Ban | None = None

    @classmethod
    def of(cls, terms: Terms, **numbers: Any) -> LimitState:
        """Return the state of a limit, with its name, rate and mode, and the other members."""
        return cls(
            name=terms.name,
            limit=terms.rate.limit,
            mode=terms.mode,
            period=terms.rate.period,
            **numbers,
        )

    @classmethod
    def blocked(
        cls, name: str, retry_after: float | None, mode: Mode, block: Block = PLAIN_BLOCK
    ) -> LimitState:
        """Return the state of a block that replaces a limit: nothing is available until it ends."""
        return cls(
            name=name,
            allowed=False,
            limit=0,
            used=0,
            remaining=0,
            retry_after=retry_after,
            reset_after=retry_after or 0.0,
            mode=mode,
            block=block,
        )

    def with_ban(self, ban: Ban, seconds: float) -> LimitState:
        """Return the state with a ban that lasts for these seconds; 0.0: no ban is in force."""
        if not seconds:
            return self._replace(ban=ban)
        retry_after = self.retry_after
        if retry_after is not None:
            retry_after = max(retry_after, seconds)
        return self._replace(
            allowed=False,
            remaining=0,
            retry_after=retry_after,
            reset_after=max(self.reset_after, seconds),
            wait=max(self.wait, seconds),
            ban=ban,
        )

    def aged(self, seconds: float) -> LimitState:
        """Return the state of the same refusal, as it is this number of seconds later."""
        retry_after = self.retry_after
        if retry_after is not None:
            retry_after = max(retry_after - seconds, 0.0)
        ban = self.ban
        if ban is not None:
            ban = ban._replace(is_new=False)
        # In the order of the fields: by keywords, a repeated refusal would take longer.
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

    def with_leased(self, units: int, seconds: float, counted_at: int) -> LimitState:
        """Return the state after this number of seconds, with units that a process has leased.

        Those units are taken since `counted_at`, but not spent.
        """
        # In the order of the fields: by keywords, a hit from a lease would take longer.
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
            counted_at,
        )

    @property
    def is_block(self) -> bool:
        """Return whether a block replaces the limit, so that nothing is available.

        >>> LimitState.blocked("login", None, "enforce").is_block
        True
        """
        return self.block is not None

    @property
    def banned_until(self) -> datetime | None:
        """Return the end of the ban in force, or None."""
        if self.ban is None:
            return None
        return self.ban.ends_at

    @property
    def is_slots(self) -> bool:
        """Return whether the units are slots, not units per period."""
        return self.period == 0.0 and self.block is None

    @property
    def enforced(self) -> bool:
        """Return whether the limit's verdict counts for the request."""
        return self.mode == "enforce"

    @property
    def refuses(self) -> bool:
        """Return whether the limit refuses the request."""
        return self.enforced and not self.allowed


class Decision(NamedTuple):
    """Whether a hit is allowed, and the numbers behind that. It is true if the hit is allowed.

    >>> refused = LimitState("mail", False, 5, 5, 0, 12.0, 60.0, 0.0)
    >>> unused = LimitState("sms", True, 100, 1, 99, 0.0, 60.0, 0.0)
    >>> decision = Decision(False, (refused, unused))
    >>> bool(decision), decision.denied_by, decision.retry_after, decision.remaining
    (False, ('mail',), 12.0, 0)

    - `allowed`: whether every enforced limit allows the hit;
    - `granted`: the units that were taken (0 for a peek);
    - `wait`: the seconds to hold the request (0.0 unless a limit reserves ahead); for a refusal,
      what the wait would have been;
    - `source`: "redis"; "deny-cache" if a refusal was repeated without calling Redis; "lease" if
      units were spent that this process had taken before; "split" if this process's part of a split
      limit decided; or "fallback" if Redis was unavailable and a policy decided;
    - `moment`: microseconds since 1970 by the clock that decided (0: no clock did);
    - `revision`: the revision of the rules that decided (0: there were no rules);
    - `identity`: for a refusal, the digest of the identity that the first limit of `denied_by`
      counts or blocks. Empty if it is not known.
    """

    allowed: bool
    limits: tuple[LimitState, ...] = ()
    granted: int = 0
    wait: float = 0.0
    source: Source = "redis"
    moment: int = 0
    revision: int = 0
    identity: bytes = b""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def enforced(self) -> tuple[LimitState, ...]:
        """Return the limits that can refuse the request."""
        return tuple([state for state in self.limits if state.enforced])

    @property
    def refusing(self) -> tuple[LimitState, ...]:
        """Return the limits that refused."""
        return tuple([state for state in self.limits if state.refuses])

    @property
    def denied_by(self) -> tuple[str, ...]:
        """Return the names of the limits that refused."""
        return tuple([state.name for state in self.refusing])

    @property
    def remaining(self) -> int | None:
        """Return the units that are available under every limit; None if no limit was decided."""
        return min([state.remaining for state in self.enforced], default=None)

    @property
    def retry_after(self) -> float | None:
        """Return the seconds until the same hit would be allowed if nothing else happened.

        0.0 if it was allowed; None if it never would be.
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
        """Return the latest end of the bans that refuse the request; None if no ban does."""
        ends = [state.banned_until for state in self.refusing]
        return max([end for end in ends if end is not None], default=None)

    @property
    def reset_after(self) -> float:
        """Return the seconds until every limit is completely unused if nothing else happens."""
        return max([state.reset_after for state in self.enforced], default=0.0)

    def repeated(self, seconds: float, source: Source) -> Decision:
        """Return the same refusal, as it is this number of seconds later."""
        states = tuple([state.aged(seconds) for state in self.limits])
        wait = max(self.wait - seconds, 0.0)
        moment = self.moment + round(seconds * SECOND)
        return Decision(False, states, 0, wait, source, moment, self.revision)

    def merged(self, later: Decision) -> Decision:
        """Return one decision that combines this one with a later one about the same request."""
        return Decision(
            allowed=self.allowed and later.allowed,
            limits=self.limits + later.limits,
            granted=max(self.granted, later.granted),
            wait=max(self.wait, later.wait),
            source="fallback" if self.source == "fallback" else later.source,
            moment=later.moment,
            revision=later.revision,
            identity=self.identity or later.identity,
        )
