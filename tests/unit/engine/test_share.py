"""The share of a limit that a process has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.heartbeat import Share, divide

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=20).map(tuple)


@given(whole=st.integers(0, 10**9), weights=WEIGHTS)
def test_parts_add_up_to_the_whole(whole: int, weights: tuple[int, ...]) -> None:
    """Each part differs from the exact quotient by less than one."""
    parts = divide(whole, weights)
    assert sum(parts) == whole
    total = sum(weights)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - whole * weight / total) < 1
    by_weight = [part for _, part in sorted(zip(weights, parts, strict=True))]
    assert by_weight == sorted(by_weight)


@given(
    whole=st.integers(0, 10**6), weights=WEIGHTS, counts=st.lists(st.integers(1, 9), min_size=20)
)
def test_the_shares_of_all_processes_add_up(
    whole: int, weights: tuple[int, ...], counts: list[int]
) -> None:
    """This holds for any weights and any number of processes on each host."""
    total = 0
    for host, count in zip(range(len(weights)), counts, strict=False):
        for process in range(count):
            total += Share(weights, host, count, process).units(whole)
    assert total == whole
