"""What strangers can make a process remember, with all annexes."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics import writing
from tests.acceptance.processes import test_memory
from tests.acceptance.processes.test_memory import (  # noqa: F401
    BOUND,
    test_memory_is_bounded_whatever_clients_send,
)

clean = test_memory.clean


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What annexes keep has a small bound, too."""
    test_memory.set_small_bounds(monkeypatch)
    monkeypatch.setattr(recording, "MAX_CLIENTS", BOUND - BOUND // 20 - 1)
    monkeypatch.setattr(recording, "MAX_REQUESTS", BOUND // 2)
    # Kinds of the shared name come on top: one for each bucket of times and of units that occurs.
    monkeypatch.setattr(recording, "MAX_KINDS", BOUND - BOUND // 10)
    monkeypatch.setattr(writing, "MAX_NAMES", BOUND // 20)
    # The queue of statistics has a few decisions of the last second.
    monkeypatch.setattr(test_memory, "before_weighing", [recording.recorder._count_queue])
    # More may wait to be written: `test_statistics_load` holds that to its bounds.
    monkeypatch.setitem(test_memory.more_room, "._writer.", 4096)
