"""Parts of split limits, as if heartbeats had found them."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine.heartbeat import ProcessShare, heartbeat
from django_ratelimit_lua.limits.limit import Limit


def set_part(monkeypatch: pytest.MonkeyPatch, part: ProcessShare) -> None:
    """Give this process such a part of every split limit."""

    def part_of(limit: Limit) -> ProcessShare | None:
        return None if limit.split is None else part

    monkeypatch.setattr(heartbeat, "part_of", part_of)
    monkeypatch.setattr(heartbeat, "use", lambda limit: None)
