"""The summary finds the most frequent clients in any stream, with a known error."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.statistics.clients import Summary

DIGESTS = st.integers(0, 30).map(lambda number: b"%d" % number)
PARTS = st.lists(st.dictionaries(DIGESTS, st.integers(1, 9), max_size=8), max_size=30)


@given(PARTS, st.integers(1, 12))
def test_every_estimate_is_within_its_error(parts: list[dict[bytes, int]], capacity: int) -> None:
    """The true count is at most the estimate and at least the estimate without its error."""
    summary = Summary(capacity)
    real: Counter[bytes] = Counter()
    for part in parts:
        summary.add(part, lambda digest: [("", digest.decode())])
        real.update(part)
    found = {one.digest.encode(): one for one in summary.top(capacity)}
    assert all(one.name == [("", one.digest)] for one in found.values())
    assert len(found) <= capacity
    for item, times in real.items():
        if item in found:
            assert found[item].times - found[item].error <= times <= found[item].times
        else:
            assert times <= summary.least <= sum(real.values()) / capacity
