"""What only tests of breakers need."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.contrib.breakers.circuits import circuits


@pytest.fixture
def no_others(no_others: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also no breaker."""
    monkeypatch.setattr(circuits, "by_name", {})
