"""Parts of split limits, as if heartbeats had found them."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine.heartbeat import ProcessShare, heartbeat


def set_part(monkeypatch: pytest.MonkeyPatch, equal: ProcessShare, weighted: ProcessShare | None = None) -> None:
    """Give this process such a part of every split limit, and another one of limits that are split by weight."""
    parts = {"equal": equal, "weighted": weighted or equal, None: None}
    monkeypatch.setattr(heartbeat, "part_of", lambda limit: parts[limit.split])
