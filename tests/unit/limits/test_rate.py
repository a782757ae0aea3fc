"""Rates and limits as text, pairs and options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import Limit, LimitError, Rate
from django_ratelimit_lua.rules.describe import rate_words

SECOND = 1_000_000
BY_CLOCK = {"algorithm": "fixed_window", "align": "clock"}
UNITS = {
    SECOND: ("s", "sec", "second", "seconds"),
    60 * SECOND: ("m", "min", "minute", "minutes"),
    3600 * SECOND: ("h", "hr", "hour", "hours"),
    86400 * SECOND: ("d", "day", "days"),
    7 * 86400 * SECOND: ("w", "week", "weeks"),
}


@pytest.mark.parametrize(
    ("period", "unit"), [(period, unit) for period, units in UNITS.items() for unit in units]
)
def test_every_unit_of_time_is_parsed(period: int, unit: str) -> None:
    """Each unit is parsed alone and with a multiplier."""
    assert Rate.parse(f"5/{unit}") == Rate(5, period)
    assert Rate.parse(f"5/3{unit}") == Rate(5, 3 * period)


@pytest.mark.parametrize(
    ("pair", "period"),
    [
        ((5, 60), 60 * SECOND),
        ((5, 0.5), SECOND // 2),
        ((5, timedelta(minutes=1)), 60 * SECOND),
        ([5, 1], SECOND),
    ],
)
def test_pairs_are_a_count_and_seconds(pair: Any, period: int) -> None:
    """The second item of a pair is a number of seconds, which may be fractional, or a timedelta."""
    assert Rate.parse(pair) == Rate(5, period)
    assert Rate.parse(Rate(5, period)) == Rate(5, period)


INVALID_TEXTS = ["", "5/", "/m", "5/x", "5/month", "5/M", "ten/m", "5/m junk", " 5/m"]
INVALID_TEXTS += ["5 /m", "5/ m", "5/m\n", "-5/m", "+5/m", "5/-1m", "5.5/m", "5/1.5m"]
INVALID_TEXTS += ["5/0m", "٥/m", "5/m/h", "1e3/m", "5/99999999999999999999s"]
INVALID_TEXTS += ["1000000000001/s", "5/11000d", "5 per", "5 per month", "5  per m"]
INVALID_TEXTS += ["5 per15 m", "5 per 0 minutes", "5 per 15minutes", "5/15 minutes"]
INVALID_TEXTS += ["five at once"]


@pytest.mark.parametrize("text", INVALID_TEXTS)
def test_an_invalid_rate_is_an_error_with_the_accepted_forms(text: str) -> None:
    """The error quotes the text and shows the accepted forms or the range."""
    with pytest.raises(LimitError) as caught:
        Rate.parse(text)
    assert repr(text) in str(caught.value)


INVALID_PAIRS = [(5, 0), (5, -1), (5, float("nan")), (5, float("inf")), (5, "60")]
INVALID_PAIRS += [("5", 60), (True, 60), (5, True), (-1, 1), (5, 1e-7)]


@pytest.mark.parametrize("pair", INVALID_PAIRS)
def test_pairs_out_of_range_are_errors(pair: Any) -> None:
    """The message names the pair."""
    with pytest.raises(LimitError, match=r"Rate \("):
        Rate.parse(pair)


@given(st.integers(0, 10**12), st.integers(1, 10**9), st.sampled_from("smhdw"))
def test_a_rate_can_be_parsed_from_its_text(limit: int, times: int, unit: str) -> None:
    """Parsing the text of a rate returns an equal rate."""
    try:
        rate = Rate.parse(f"{limit}/{times}{unit}")
    except LimitError:
        return
    assert Rate.parse(str(rate)) == rate


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.sampled_from(["x", *"smhdw"]))
def test_a_rate_in_the_notation_of_summaries_is_parsed(limit: int, times: int, unit: str) -> None:
    """The notations "20 per minute", "5 per 15 minutes" and "2 at once" are parsed."""
    try:
        rate = Rate.parse(str(limit) if unit == "x" else f"{limit}/{times}{unit}")
    except LimitError:
        return
    assert Rate.parse(rate_words(str(rate))) == rate


def test_a_period_below_a_second_is_written_in_microseconds() -> None:
    """Such a period has no unit that can be parsed, so microseconds are for display only."""
    assert str(Rate.parse((5, 0.25))) == "5/250000us"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "leaky"}, "choose one of"),
        ({"algorithm": ["x"]}, "Unknown algorithm"),
        ({"burst": 5}, "sliding_window has no option burst; it is for token_bucket"),
        ({"algorithm": "token_bucket", "burst": 0}, "burst is 0"),
        ({"algorithm": "token_bucket", "burst": 1.5}, "burst is 1.5"),
        ({"algorithm": "leaky_bucket", "queue": -1}, "queue is -1"),
        ({"algorithm": "leaky_bucket", "count_denied": True}, "no option count_denied"),
        ({"algorithm": "token_bucket", "count_denied": True}, "no option count_denied"),
        ({"segments": 1001}, "at most 1000"),
        ({"segments": True}, "segments is True"),
        ({"mode": "off"}, "enforce, shadow"),
        ({"algorithm": "token_bucket", "max_wait": -1}, "max_wait is -1"),
        ({"algorithm": "leaky_bucket", "max_wait": "1"}, "max_wait is '1'"),
        ({"max_wait": 1}, "sliding_window has no option max_wait; .* token_bucket, leaky_bucket"),
        ({"algorithm": "sliding_log", "max_wait": 1}, "it is for token_bucket, leaky_bucket"),
        ({"algorithm": "fixed_window", "max_wait": 1}, "it is for token_bucket, leaky_bucket"),
        ({"algorithm": "fixed_window", "align": "year"}, "clock, day, week, month"),
        ({"algorithm": "fixed_window", "align": "day"}, "such as 1000/d, not"),
        ({"algorithm": "fixed_window", "time_zone": "Europe/Berlin"}, "needs align as well"),
        ({**BY_CLOCK, "time_zone": "Europe/Berlin"}, "each day, week or month"),
        ({**BY_CLOCK, "time_zone": "Mars/Base"}, "Unknown time zone"),
        ({"algorithm": "sliding_window", "lease": 10}, "sliding_window has no option lease"),
        ({"algorithm": "sliding_log", "lease": 10}, "sliding_log has no option lease"),
        ({"algorithm": "leaky_bucket", "lease": 10}, "leaky_bucket has no option lease"),
        ({"algorithm": "fixed_window", "lease": 0}, "lease is 0"),
        ({"algorithm": "fixed_window", "lease": True}, "lease is True"),
        ({"algorithm": "token_bucket", "lease": 10, "max_wait": 1}, "lease and max_wait"),
        (
            {"algorithm": "fixed_window", "lease": 10, "count_denied": True},
            "lease and count_denied",
        ),
        ({"algorithm": "token_bucket", "lease": 10, "burst": 1}, "burst of at least 2"),
        ({"algorithm": "token_bucket", "lease": 10, "split": True}, "contradict"),
        ({"split": True}, "no option split; it is for token_bucket, fixed_window"),
        ({"algorithm": "fixed_window", "split": "half"}, "must be true or false"),
        ({"algorithm": "token_bucket", "split": True, "max_wait": 1}, "split and max_wait"),
        ({"algorithm": "fixed_window", "align": "day", "split": True}, "split and align"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, Any], message: str) -> None:
    """The error states the valid values or the contradiction."""
    with pytest.raises(LimitError, match=message):
        Limit("x", "5/m", **options)


def test_a_limit_needs_a_name() -> None:
    """The count is stored under the limit's name, so an empty or non-text name is an error."""
    wrong: Any
    for wrong in ("", 5, b"x"):
        with pytest.raises(LimitError, match="name must be text"):
            Limit(wrong, "5/m")
        if wrong:
            with pytest.raises(LimitError, match="name must be text"):
                Limit("x", "5/m", counted_as=wrong)


def test_the_length_of_names_in_keys_is_bounded() -> None:
    """Short plain names are used unchanged."""
    assert Limit("mail", "5/m").key_part == b"mail:s"
    parts = {
        Limit(name, "5/m").key_part
        for name in ("x" * 65, "x" * 66, "two\nlines", "two lines", "{braces}", "😀")
    }
    assert len(parts) == 6
    assert all(len(part) < 70 and b"{" not in part and b"\n" not in part for part in parts)


def test_limits_are_equal_if_their_declarations_are() -> None:
    """Spellings of a rate and an algorithm are equal."""
    assert Limit("x", "60/m", algorithm="gcra") == Limit("x", (60, 60), algorithm="token_bucket")
    assert "'x'" in repr(Limit("x", "5/m"))
    shadow = Limit("x", "5/m", mode="shadow")
    assert shadow.advising() is shadow
