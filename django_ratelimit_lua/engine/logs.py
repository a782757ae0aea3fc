"""The log of decisions, and samples of other logs, so that a flood writes few records.

The log of decisions has one record of the level DEBUG for each decision, which explains it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from threading import Lock

from ..limits.decision import Decision
from ..process import Clock
from ..process.forks import renew_after_fork
from . import DecidedCharge

logger = logging.getLogger("django_ratelimit_lua.decisions")
MAX_OF_LIMIT = 10
MAX_OF_LOG = 60
"""Records about one limit, and about all, that a process writes to one log in a minute."""
MAX_LIMITS = 1_000
"""Maximum number of limits with counts of skipped records."""
MINUTE = 60.0


def log_decision(operation: str, charges: Sequence[DecidedCharge], decision: Decision) -> None:
    """Write a record about a decision, unless it is about no limit.

    The record contains the first 8 digits of each identity's digest.
    """
    if not charges:
        return
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
    details = {
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
        details,
        extra=details,
    )


class LogSampler:
    """Decides which records of a log are written. It needs no call to Redis.

    >>> sampler = LogSampler()
    >>> [sampler.admit("login", b"ada") for _ in range(3)], sampler.take_skipped("login")
    ([True, False, False], 2)
    """

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)

    def clear(self) -> None:
        """Forget all records, as at the start of the process."""
        self._lock = Lock()
        self._skipped = Counter[str]()
        self._written = Counter[str]()
        self._clients: set[tuple[str, bytes]] = set()
        self._ends_at = float("-inf")

    def admit(self, limit: str, identity: bytes, now: float | None = None) -> bool:
        """Count a record about a limit. Return whether to write it.

        Args:
            limit: The name of the limit.
            identity: A digest; empty if it is not known.
            now: Seconds by the monotonic clock; None: the present time.
        """
        moment = Clock.monotonic() if now is None else now
        client = (limit, identity)
        with self._lock:
            if moment >= self._ends_at:
                self._ends_at = moment + MINUTE
                self._written.clear()
                self._clients.clear()
            is_full = self._written[limit] >= MAX_OF_LIMIT or self._written.total() >= MAX_OF_LOG
            if is_full or client in self._clients:
                if limit in self._skipped or len(self._skipped) < MAX_LIMITS:
                    self._skipped[limit] += 1
                return False
            self._written[limit] += 1
            if identity:
                self._clients.add(client)
            return True

    def take_skipped(self, limit: str) -> int:
        """Reset the number of records about a limit that were not written, and return it."""
        with self._lock:
            return self._skipped.pop(limit, 0)
