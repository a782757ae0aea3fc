"""The share of this process in split limits, as if a heartbeat had returned it."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine.heartbeat import Share, heartbeat

WHOLE = Share((1,), 0, 1, 0)
"""The share of the only process."""


def set_share(monkeypatch: pytest.MonkeyPatch, share: Share) -> None:
    """Give this process that share of every split limit."""
    monkeypatch.setattr(heartbeat, "share", share)
    monkeypatch.setattr(heartbeat, "count", share.processes * len(share.weights))


def one_of(count: int, number: int = 0) -> Share:
    """Return the share of one of several equal processes on one host."""
    return Share((1,), 0, count, number)
