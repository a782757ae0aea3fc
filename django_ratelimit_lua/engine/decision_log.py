"""The log of decisions: one record of the level DEBUG for each, which explains the decision."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..limits.decision import Decision

if TYPE_CHECKING:
    from .decide import PlannedCharge

logger = logging.getLogger("django_ratelimit_lua.decisions")


def log_decision(operation: str, planned: Sequence[PlannedCharge], decision: Decision) -> None:
    """Write a record, unless there was nothing to decide.

    The record contains the first 8 digits of each identity's digest.
    """
    limits = [
        {
            "limit": state.name,
            "rule": None if each.rule is None else each.rule.name,
            "identity": each.charge.digest[:8].decode(),
            "mode": state.mode,
            "allowed": state.allowed,
            "remaining": state.remaining,
            "retry_after": state.retry_after,
        }
        for each, state in zip(planned, decision.limits, strict=False)
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
