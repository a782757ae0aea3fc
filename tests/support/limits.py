"""Shortcuts for limits: decide calls, split a limit between processes, add a tier to a rule."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from django_ratelimit_lua.engine.decide import deciding_call
from django_ratelimit_lua.engine.heartbeat import Share, heartbeat
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.limits.call import Call, Charge, Operation
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.store import get_store

if TYPE_CHECKING:
    import pytest  # A worker starts faster without it.

WHO = b"0" * 32
WHOLE = Share((1,), 0, 1, 0)
"""The share of the only process."""


def decide(call: Call) -> Decision:
    """Return the decision of a call, without rules and without a request."""
    return run(deciding_call(call))


class Asker:
    """Asks limits about one client at whatever time, under a prefix of its own."""

    _serial = itertools.count()

    def __init__(self, *limits: Limit) -> None:
        self.limits = limits
        self.prefix = b"asked%d:" % next(self._serial)

    def __call__(
        self, now: int | None, cost: int = 1, operation: Operation = "hit", **options: Any
    ) -> Decision:
        charges = [Charge(limit, WHO, cost) for limit in self.limits]
        return get_store().decide(Call(charges, operation, self.prefix, now, **options))

    def keys(self) -> list[bytes]:
        """Return the Redis keys of the limits."""
        return Call([Charge(limit, WHO) for limit in self.limits], prefix=self.prefix).keys()


def set_share(monkeypatch: pytest.MonkeyPatch, share: Share) -> None:
    """Give this process a share of every split limit, as if a heartbeat had returned it."""
    monkeypatch.setattr(heartbeat, "share", share)
    monkeypatch.setattr(heartbeat, "count", share.processes * len(share.weights))


def equal_share(count: int, number: int = 0) -> Share:
    """Return the share of one of several equal processes on one host."""
    return Share((1,), 0, count, number)


def add_tier(rule: RateLimitRule, group: str, rate: str | list[str], **options: int) -> None:
    """Save a rule with another tier."""
    tiers = [*rule.options.get("tiers", ()), {"group": group, "rate": rate, **options}]
    rule.options = {**rule.options, "tiers": tiers}
    rule.save()
