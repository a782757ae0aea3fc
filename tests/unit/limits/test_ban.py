"""By what a limit bans: how its options are written, and what contradicts itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import LimitError, Rate, duration, time_us

HOUR = 3_600_000_000


def test_two_options_are_enough() -> None:
    """The others have defaults: offences count as long as the first ban, a ban doubles up to a week, a day forgets."""
    ban = Limit("login", "5/m", ban_after=10, ban_for="10m").ban
    assert ban is not None
    assert (ban.after, ban.window_us, ban.on, ban.renew) == (10, HOUR // 6, "refused", False)
    minutes = [ban.duration_us(times) // 60_000_000 for times in range(12)]
    assert minutes == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 7 * 24 * 60, 7 * 24 * 60]
    assert ban.forget_us == 24 * HOUR
    assert Limit("login", "5/m").ban is None


def test_a_first_ban_may_be_longer_than_bans_mostly_are() -> None:
    """Then the others are as long."""
    ban = Limit("login", "5/m", ban_after=1, ban_for="30d").ban
    assert ban is not None
    assert ban.duration_us(0) == ban.duration_us(5) == time_us("30d")


def test_bans_that_do_not_grow() -> None:
    """A factor of 1; and one that is no whole number is rounded down to the microsecond."""
    same = Limit("a", "5/m", ban_after=1, ban_for="1h", ban_factor=1).ban
    half = Limit("a", "5/m", ban_after=1, ban_for="1s", ban_factor=1.5).ban
    assert same is not None
    assert half is not None
    assert same.duration_us(10**9) == HOUR
    assert [half.duration_us(times) for times in range(8)][-2:] == [11_390_625, 17_085_937]


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"ban_after": 5}, "ban_after", "ban_after needs ban_for: say how long a ban is"),
        ({"ban_for": "1h"}, "ban_for", "ban_for needs ban_after"),
        ({"ban_on": "counted"}, "ban_on", "ban_on needs ban_after"),
        ({"ban_renew": True}, "ban_renew", "ban_renew needs ban_after"),
        ({"ban_after": 0, "ban_for": "1h"}, "ban_after", "whole number from 1 to 1000"),
        ({"ban_after": 1001, "ban_for": "1h"}, "ban_after", "whole number from 1 to 1000"),
        ({"ban_after": 5, "ban_for": "1h", "ban_factor": 0.5}, "ban_factor", "must be a number from 1"),
        ({"ban_after": 5, "ban_for": "1h", "ban_max": "10m"}, "ban_max", r"\(10m\) is shorter than .* \(ban_for=1h\)"),
        ({"ban_after": 5, "ban_for": "1h", "ban_on": "always"}, "ban_on", "refused, counted, reported"),
        ({"ban_after": 5, "ban_for": "1h", "split": "equal"}, "split", "split and ban_after contradict"),
        ({"ban_after": 5, "ban_for": "1h", "ban_window": "soon"}, "ban_window", "'soon': write a number and a unit"),
    ],
)
def test_what_contradicts_itself_is_an_error(options: dict[str, Any], field: str, message: str) -> None:
    """It names the option and says why."""
    with pytest.raises(LimitError, match=message) as error:
        Limit("login", "5/m", **options)
    assert error.value.field == field


def test_a_lease_bans_nobody() -> None:
    """What is decided without Redis earns no ban."""
    with pytest.raises(LimitError, match="lease and ban_after contradict each other: it is decided without asking"):
        Limit("login", "50/m", algorithm="token_bucket", lease=10, ban_after=5, ban_for="1h")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("10m", "10m"), ("10min", "10m"), ("1hour", "1h"), ("7days", "7d"), ("90s", "90s"), ("2weeks", "2w"),
        (timedelta(minutes=10), "10m"), (timedelta(days=14), "2w"), (timedelta(seconds=61), "61s"),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_and_a_unit(given: Any, written: str) -> None:
    """By the units of rates, written in one way; a timedelta will do."""
    assert duration(given) == written
    assert duration(written) == written
    assert Limit("a", "5/m", ban_after=1, ban_for=given).ban_for == written


@pytest.mark.parametrize(
    "given",
    ["", "10", "m", "10 m", "-1m", "1.5h", "10M", "10y", "0s", "3654d", "9" * 400 + "s", 600, 1.5, None, True,
     timedelta(seconds=0.5), timedelta(0), timedelta(days=-1), timedelta(days=9999)],
)  # fmt: skip
def test_anything_else_is_no_duration(given: Any) -> None:
    """Whole seconds from one to ten years."""
    with pytest.raises(ValueError, match=r"write a number and a unit|from 1s to ten years|whole seconds"):
        duration(given)


def test_a_limit_by_another_name_has_other_bans() -> None:
    """And one with other numbers has the same."""
    limit = Limit("login", "5/m", ban_after=1, ban_for="1h")
    assert limit.ban is not None
    for other, is_same in [
        (limit.renamed("other"), False), (limit.advising(), True), (limit.at(limit.rate, None), True),
        (Limit("login", "9/h", algorithm="sliding_log", ban_after=3, ban_for="2h"), True),
    ]:  # fmt: skip
        assert other.ban is not None
        assert (other.ban.key_part == limit.ban.key_part) is is_same


@pytest.mark.parametrize("mode", ["enforce", "advise"])
def test_a_limit_without_bans_stays_so(mode: str) -> None:
    """At another rate, as an override has it, and under another name; one with bans keeps them."""
    limit = Limit("login", "5/m", ban_after=3, ban_for="10m")
    limit = limit.advising() if mode == "advise" else limit
    rate = Rate.parse("1/m")
    assert limit.at(rate, None).ban == limit.ban
    assert limit.at(rate, None).mode == mode
    assert limit.renamed("other").ban is not None
    assert limit.without_bans() is limit.without_bans()
    assert limit.without_bans().mode == mode
    assert limit.without_bans().at(rate, None).ban is None
    assert limit.without_bans().renamed("other").ban is None
