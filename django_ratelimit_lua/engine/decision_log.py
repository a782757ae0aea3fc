"""The log of decisions: one record of the level DEBUG for each, which explains the decision."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..limits.decision import Decision
from .decided_charge import DecidedCharge

logger = logging.getLogger("django_ratelimit_lua.decisions")


def log_decision(operation: str, charges: Sequence[DecidedCharge], decision: Decision) -> None:
    """Write a record, unless there was nothing to decide.

    The record contains the first 8 digits of each identity's digest.
    """
    limits = [
        {
            "limit": decided.state.name,
            "rule": None if decided.rule is None else decided.rule.name,
            "identity": decided.charge.digest[:8].decode(),
            "mode": decided.state.mode,
            "allowed": decided.state.allowed,
            "remaining": decided.state.remaining,
            "retry_after": decided.state.retry_after,
        }
        for decided in charges
    ]
    if not limits:
        return
    numbers = {
        "operation": operation,
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "source": decision.source,
        "denied_by": decision.denied_by,
        "limits": limits,
    }
    logger.debug(
        "%(operation)s: allowed %(allowed)s, remaining %(remaining)s, "
        "retry_after %(retry_after)s, source %(source)s, limits %(limits)s",
        numbers,
        extra=numbers,
    )
