"""One charge of a request, from the plan to the settlement."""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import Identity
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..rules.rule import Rule


@dataclass(slots=True, eq=False)
class DecidedCharge:
    """A charge, the reason for it, and its result, which the decision adds.

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
