"""The log of decisions: a record of the level DEBUG for each, to find out why a request was allowed or refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..limits.decision import Decision, LimitState

if TYPE_CHECKING:
    from .decide import PlannedCharge

logger = logging.getLogger("django_ratelimit_lua.decisions")


def log_decision(operation: str, planned: Sequence[PlannedCharge], decision: Decision) -> None:
    """Write a record, if a limit or a block had a say. Identities appear as the first 8 digits of their digests."""
    charges = zip(planned, decision.limits, strict=False)
    limits = [_numbers(state, each.name, each.subject or each.charge.digest) for each, state in charges]
    if not planned:  # A block alone is of no charge.
        limits = [_numbers(state, state.name, decision.identity) for state in decision.limits if state.is_block]
    if not limits:
        return
    numbers = {
        "operation": operation,
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "source": decision.source,
        "limits": limits,
    }
    logger.debug(
        "%(operation)s: allowed %(allowed)s, remaining %(remaining)s, retry_after %(retry_after)s, source %(source)s, "
        "limits %(limits)s",
        numbers,
        extra=numbers,
    )


def _numbers(state: LimitState, name: str, identity: bytes) -> dict[str, object]:
    return {
        "limit": state.name,
        "rule": name,
        "identity": identity[:8].decode(),
        "mode": state.mode,
        "allowed": state.allowed,
        "remaining": state.remaining,
        "retry_after": state.retry_after,
    }
