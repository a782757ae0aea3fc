"""Decides a call by the deny cache, leases, Redis or the fallback.

It also keeps slots, bans and other background work. It decides the charges of a plan, and loads
newer rules if those of the plan were stale. It imports rules, identity and store. It does not know
the purpose of a request: the caller passes it a planner.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import Identity
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..rules.rule import Rule

__all__ = ["DecidedCharge", "bans", "decide", "holding", "listener", "run", "slots"]


@dataclass(slots=True, eq=False)
class DecidedCharge:
    """A charge of a plan, the reason for it, and its result, which the decision adds.

    - `name`: the displayed name of its limit;
    - `rule`: the rule or call site that makes the charge (None: a throttle or a `RateLimiter`);
    - `owner`: the decorator, middleware, throttle or limiter that receives the decision;
    - `identity`: the charged identity, for statistics;
    - `blocked_by`: the digest of the override's subject, if an override blocks the charge, or the
      charged one, if this process decides it alone. Then Redis counts nothing, and the plan sets
      the `state`;
    - `state`: the state of its limit; None before the decision;
    - `token`: the token that refunds the units: the moment from which they count, in microseconds
      since 1970. None: the charge took no units;
    - `slot`: the id of the held slot, which releases it. Empty if no slot is held.
    """

    charge: Charge
    name: str
    rule: Rule | None = None
    owner: object = None
    identity: Identity = None
    blocked_by: bytes = b""
    # Not declared as optional, because only the plan sees it before the decision.
    state: LimitState = None  # type: ignore[assignment]
    token: int | None = None
    slot: bytes = b""
