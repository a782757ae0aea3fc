"""Parts of split limits, as if heartbeats had found them."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine.heartbeat import ProcessShare, heartbeat
from django_ratelimit_lua.limits.limit import Limit


def set_part(
    monkeypatch: pytest.MonkeyPatch, equal: ProcessShare, weighted: ProcessShare | None = None
) -> None:
    """Give this process such a part of every split limit, and another one of limits whose split has
    weights.
    """

    def part_of(limit: Limit) -> ProcessShare | None:
        if limit.split is None:
            return None
        return equal if limit.split == "equal" else weighted or equal

    monkeypatch.setattr(heartbeat, "part_of", part_of)
    monkeypatch.setattr(heartbeat, "use", lambda limit: None)
