"""The share of a limit that a process has, without a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.heartbeat import ProcessShare


@given(whole=st.integers(0, 10**9), count=st.integers(1, 20))
def test_the_parts_of_all_processes_add_up_to_the_whole(whole: int, count: int) -> None:
    """Each part differs from the exact quotient by less than one."""
    parts = [ProcessShare(before, count) for before in range(count)]
    assert sum(part.units(whole) for part in parts) == whole
    assert all(abs(part.units(whole) - whole / count) < 1 for part in parts)
