"""What a decision is when Redis cannot be asked; and just after, while other processes have not noticed that it can."""

from __future__ import annotations

from dataclasses import replace

from ...conf import conf
from ...limits.call import Call, Charge
from ...limits.decision import Decision, LimitState
from .limiter import fallback_limiter

RETRY_WHEN_CLOSED = 1.0
"""Seconds a client is told to wait when Redis cannot be asked and the policy is "closed"."""


def is_local(charge: Charge) -> bool:
    """Whether this process keeps its share of that limit."""
    return (charge.limit.on_store_error or conf.ON_STORE_ERROR) == "local"


def share_of(call: Call) -> Call | None:
    """What of a hit goes by this process's share too, until the other processes have noticed that Redis is back."""
    if call.operation != "hit" or call.partial or call.now is not None or not fallback_limiter.is_waiting(call):
        return None
    charges = [charge for charge in call.charges if is_local(charge) and not charge.limit.is_hot]
    return replace(call, charges=charges) if charges else None


def give_back(share: Call | None) -> None:
    """It was not admitted after all."""
    if share is not None:
        fallback_limiter.decide(replace(share, operation="refund"), to_be_told=False)


def wanted(call: Call) -> int:
    """The units that are granted if the call is allowed: a hit's."""
    return max((charge.cost for charge in call.charges), default=0) if call.operation == "hit" else 0


def unlimited(call: Call) -> Decision:
    """The decision where there are no limits."""
    return Decision(True, granted=wanted(call))


def fallback(call: Call) -> Decision:
    """The decision by each limit's policy."""
    policies = [charge.limit.on_store_error or conf.ON_STORE_ERROR for charge in call.charges]
    others = [
        None if policy == "local" else _by_policy(charge, policy == "open")
        for charge, policy in zip(call.charges, policies, strict=True)
    ]
    others_allow = all(state is None or state.allowed or not state.enforced for state in others)
    shared = [charge for charge, state in zip(call.charges, others, strict=True) if state is None]
    own = fallback_limiter.decide(replace(call, charges=shared), others_allow)
    shares = iter(own.limits)
    states = tuple(next(shares) if state is None else state for state in others)
    allowed = (others_allow and own.allowed) or call.operation in ("refund", "charge")
    granted = 0
    if allowed and call.operation == "hit":
        granted = own.granted if shared else wanted(call)
    return Decision(allowed, states, granted, own.wait if allowed else 0.0, source="fallback")


def _by_policy(charge: Charge, is_open: bool) -> LimitState:
    limit = charge.limit
    return LimitState.of(
        limit,
        allowed=is_open or limit.mode == "shadow",
        used=0,
        remaining=limit.rate.limit if is_open else 0,
        retry_after=0.0 if is_open else RETRY_WHEN_CLOSED,
        reset_after=0.0,
    )
