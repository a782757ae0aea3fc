"""Buckets of used units cover every number without gaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.statistics.buckets import units_bucket, units_range


@given(st.integers(0, 2**53))
def test_every_number_is_in_its_bucket(units: int) -> None:
    """The range of a bucket contains the number, is at most an eighth wide, and ends where the next
    range begins.
    """
    least, most = units_range(units_bucket(units))
    assert least <= units <= most
    assert most - least <= least / 8
    assert units_range(units_bucket(units) + 1)[0] == most + 1
