"""The task that writes once a second what a process has collected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store import FLUSH_SECONDS, Deadline
from django_ratelimit_lua.store.flusher import Flusher

Calls = list[tuple[str, Deadline | None]]


def flush_of(
    calls: Calls, name: str, *, is_left: bool = False, fails: bool = False
) -> Callable[[Deadline | None], bool]:
    def flush(last: Deadline | None) -> bool:
        calls.append((name, last))
        if fails:
            raise StoreError(name)
        return is_left

    return flush


def test_urgent_functions_come_first_and_unfinished_ones_are_repeated() -> None:
    """The functions are repeated after a second if one has data left. Otherwise the task ends."""
    calls: Calls = []
    flusher = Flusher()
    flusher.add(flush_of(calls, "counts"))
    flusher.add(flush_of(calls, "states"), is_urgent=True)
    assert flusher._flush_all() is None
    assert calls == [("states", None), ("counts", None)]
    flusher.add(flush_of(calls, "more", is_left=True), is_urgent=True)
    assert flusher._flush_all() == FLUSH_SECONDS


def test_a_failure_delays_no_other_function() -> None:
    """The error is raised after all functions were called."""
    calls: Calls = []
    flusher = Flusher()
    flusher.add(flush_of(calls, "fails", fails=True))
    flusher.add(flush_of(calls, "works"))
    with pytest.raises(StoreError, match="fails"):
        flusher._flush_all()
    flusher._flush_last()
    assert [name for name, _ in calls] == ["fails", "works"] * 2
    assert calls[3][1] is calls[2][1] is not None, "they share the time that is left"
