"""Which part of a limit is a process's, from what Redis tells of all of them. Without a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.engine.heartbeat import ProcessShare, Register

WEIGHTS = st.lists(
    st.tuples(st.floats(0.001, 1000), st.integers(1, 5)), min_size=1, max_size=6, unique_by=lambda w: w[0]
)


@given(weights=WEIGHTS, whole=st.integers(0, 10**9))
def test_the_parts_of_all_processes_are_the_whole(weights: list[tuple[float, int]], whole: int) -> None:
    """Whatever the weights and however many have one: not one unit more or less."""
    weights.sort()
    told = [text for weight, count in weights for text in (b"%.17g" % weight, count)]
    parts: list[ProcessShare] = []
    for weight, count in weights:
        for _ in range(count):
            register = Register(b"x")
            register.read([b"0 0", 1, len(parts), *told], weight)
            assert register.count == sum(count for _, count in weights)
            assert register.share is not None
            parts.append(register.share)
    assert sum(part.units(whole) for part in parts) == whole
    assert [part.before + part.own for part in parts[:-1]] == [part.before for part in parts[1:]]
    assert parts[-1].own == max(weight for weight, _ in weights)


@given(whole=st.integers(0, 10**9), weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=20))
def test_parts_are_the_whole(whole: int, weights: list[float]) -> None:
    """Whatever the weights, nothing is lost or given twice; each has its part, give or take one."""
    edges = [0.0]
    for weight in weights:
        edges.append(edges[-1] + weight)
    parts = [ProcessShare(before, weight, edges[-1]) for before, weight in zip(edges, weights, strict=False)]
    units = [part.units(whole) for part in parts]
    assert sum(units) == whole
    assert all(abs(got - whole * part.fraction) < 1 + whole * 1e-9 for got, part in zip(units, parts, strict=True))
