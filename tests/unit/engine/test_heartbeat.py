"""Which part of a limit is a process's. Without a server."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.heartbeat import ProcessShare


@given(whole=st.integers(0, 10**9), weights=st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_the_parts_of_all_processes_add_up_to_the_whole(whole: int, weights: list[int]) -> None:
    """Whatever the weights, nothing is lost or given twice; each has its part, give or take one."""
    *before, of = accumulate(weights, initial=0)
    parts = [ProcessShare(*part, of) for part in zip(before, weights, strict=True)]
    assert sum(part.units(whole) for part in parts) == whole
    assert all(abs(part.units(whole) - part.speed(whole)) < 1 for part in parts)
