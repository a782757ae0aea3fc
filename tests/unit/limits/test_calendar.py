"""The time zones of calendar windows."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator

import pytest

from django_ratelimit_lua.limits.rate import LimitError, boundaries, zone

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


@pytest.mark.usefixtures("no_time_zones")
def test_utc_needs_no_database_of_time_zones() -> None:
    """A container without time zones counts days in UTC. The error of other zones names UTC."""
    assert boundaries("day", "UTC", NOW)[0] % 86_400_000_000 == 0
    with pytest.raises(LimitError, match="UTC"):
        zone("Europe/Berlin")
