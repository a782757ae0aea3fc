"""The ban options of a limit: how they are written, and which of them contradict each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import LimitError, duration

HOUR = 3_600_000_000
BANS = {"ban_after": 5, "ban_for": "1h"}


def test_two_options_are_enough_for_a_ban() -> None:
    """Refusals are counted for as long as the first ban, and all bans are as long."""
    ban = Limit("login", "5/m", ban_after=10, ban_for="10m").ban
    assert ban is not None
    assert (ban.after, ban.window_us, ban.lengths_us) == (10, HOUR // 6, (HOUR // 6,))
    assert Limit("login", "5/m").ban is None


@pytest.mark.parametrize(
    "given", ["10min,1h, 1d", ["10m", timedelta(hours=1), "24h"], ("600s", "1h", "1d")]
)
def test_each_ban_has_its_length(given: Any) -> None:
    """The n-th ban has the n-th length. The window is as long as the first ban."""
    limit = Limit("a", "5/m", ban_after=1, ban_for=given)
    assert limit.ban is not None
    assert limit.ban.lengths_us == (HOUR // 6, HOUR, 24 * HOUR)
    assert limit.ban.window_us == HOUR // 6
    assert Limit("a", "5/m", ban_after=1, ban_for=limit.ban_for) == limit


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"ban_after": 5}, "ban_after", "ban_after needs ban_for as well"),
        ({"ban_for": "1h"}, "ban_for", "ban_for needs ban_after"),
        ({"ban_on": "counted"}, "ban_on", "unknown option 'ban_on'"),
        ({"ban_key": "ip"}, "ban_key", "unknown option 'ban_key'"),
        ({"ban_after": 0, "ban_for": "1h"}, "ban_after", "whole number from 1 to 1000"),
        ({"ban_after": 1001, "ban_for": "1h"}, "ban_after", "whole number from 1 to 1000"),
        ({"ban_after": 5, "ban_for": "1h,soon"}, "ban_for", "ban_for: 'soon': write a number"),
        ({"ban_after": 5, "ban_for": "1h,0s,1d"}, "ban_for", "'0s': write .* from 1s to ten"),
        ({"ban_after": 5, "ban_for": "1h,"}, "ban_for", "'': write a number and a unit"),
        ({"ban_after": 5, "ban_for": 60}, "ban_for", "60: write a number and a unit"),
        ({"ban_after": 5, "ban_for": "1h," * 8 + "1h"}, "ban_for", "write 1 to 8 durations, such"),
        ({"ban_after": 5, "ban_for": []}, "ban_for", "write 1 to 8 durations"),
        ({**BANS, "algorithm": "token_bucket", "split": True}, "split", "and ban_after contradict"),
        ({**BANS, "ban_window": "soon"}, "ban_window", "'soon': write a number and a unit"),
    ],
)
def test_contradicting_ban_options_are_an_error(
    options: dict[str, Any], field: str, message: str
) -> None:
    """The error names the option and the reason."""
    with pytest.raises(LimitError, match=message) as error:
        Limit("login", "5/m", **options)
    assert error.value.field == field


def test_a_lease_cannot_be_combined_with_bans() -> None:
    """Leased units are decided without Redis, so they cannot lead to a ban."""
    with pytest.raises(LimitError, match="lease and ban_after contradict each other"):
        Limit("login", "50/m", algorithm="token_bucket", lease=10, ban_after=5, ban_for="1h")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("10m", "10m"),
        ("10min", "10m"),
        ("1hour", "1h"),
        ("7days", "1w"),
        ("90s", "90s"),
        ("2weeks", "2w"),
        (timedelta(minutes=10), "10m"),
        (timedelta(days=14), "2w"),
        (timedelta(seconds=61), "61s"),
    ],
)
def test_a_duration_is_a_number_and_a_unit(given: Any, written: str) -> None:
    """Durations have the units of rates and are normalized to one spelling."""
    assert duration(given) == written
    assert duration(written) == written
    assert Limit("a", "5/m", ban_after=1, ban_for=given).ban_for == written


INVALID_DURATIONS = ["", "10", "m", "10 m", "-1m", "10M", "10y", "0s", "3654d", "9" * 400 + "s"]
INVALID_DURATIONS += [600, 1.5, None, True, timedelta(seconds=0.5), timedelta(0)]
INVALID_DURATIONS += [timedelta(days=-1), timedelta(days=9999)]


@pytest.mark.parametrize("given", INVALID_DURATIONS)
def test_an_invalid_duration_is_an_error(given: Any) -> None:
    """A duration is in whole seconds, from one second to ten years."""
    with pytest.raises(
        ValueError, match=r"write a number and a unit|from 1s to ten years|whole seconds"
    ):
        duration(given)


def test_a_renamed_limit_has_other_bans() -> None:
    """Bans are stored under the name of the limit."""
    limit = Limit("login", "5/m", ban_after=1, ban_for="1h")
    assert limit.ban is not None
    for other, is_same in [
        (limit.renamed("other"), False),
        (limit.advising(), True),
        (limit.at_rate(limit.rate, None, "other"), True),
        (Limit("login", "9/h", algorithm="sliding_log", ban_after=3, ban_for="2h"), True),
    ]:
        assert other.ban is not None
        assert (other.ban.key_part == limit.ban.key_part) is is_same
