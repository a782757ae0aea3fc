"""The time zones of calendar windows."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.limits.rate import LimitError, boundaries, zone
from tests.support.reference_model import calendar_window

NOW = 1_750_000_000_000_000


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the time zones of the system and of the package tzdata."""
    imported = [name for name in sys.modules if name.startswith("tzdata.")]
    for name in ("tzdata", *imported):
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@given(
    align=st.sampled_from(["day", "week", "month"]),
    name=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
    now=st.integers(0, 40 * 365 * 86_400_000_000),
)
def test_the_boundaries_of_any_moment_surround_it(align: Any, name: str, now: int) -> None:
    """A day is a local day, also where clocks go back by half an hour, or a day was skipped."""
    opens, ends, later = boundaries(align, name, now)
    assert opens <= now < ends < later
    assert (opens, ends) == calendar_window(align, name, now)


@pytest.mark.usefixtures("no_time_zones")
def test_utc_needs_no_database_of_time_zones() -> None:
    """A container without time zones counts days in UTC. The error of other zones names UTC."""
    assert boundaries("day", "UTC", NOW)[0] % 86_400_000_000 == 0
    with pytest.raises(LimitError, match="UTC"):
        zone("Europe/Berlin")
