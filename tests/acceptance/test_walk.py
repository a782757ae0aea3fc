"""How far a reader has to walk who follows one request: counted, so that it does not grow unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.walk import walks


@pytest.mark.django_db(transaction=True)
def test_the_way_of_a_decision_is_short(settings: Any) -> None:
    """From `@ratelimit` to Redis and back: functions that are entered, and files that they are in."""
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    warm, stale = walks()
    assert warm.frames <= 72, str(warm)
    assert warm.files <= 26, str(warm)
    assert stale.frames <= 304, str(stale)
