"""The columns of a rate, which rules, tiers and overrides have in common, without a database."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_ratelimit_lua.limits.rate import LimitError
from django_ratelimit_lua.models import RateLimitRule


@pytest.mark.parametrize(
    ("written", "columns", "read"),
    [
        ("100/m", (100, 1, "m"), "100/m"),
        ("5/15m", (5, 15, "m"), "5/15m"),
        ("5/60s", (5, 60, "s"), "5/60s"),
        ("1000/day", (1000, 1, "d"), "1000/d"),
        ((5, 90), (5, 90, "s"), "5/90s"),
        ("0/h", (0, 1, "h"), "0/h"),
    ],
)
def test_a_rate_is_stored_in_its_unit(
    written: Any, columns: tuple[int, int, str], read: str
) -> None:
    """A rate is stored and read in the unit in which it was written, so 60 seconds do not become a
    minute.
    """
    rule = RateLimitRule()
    assert rule.rate is None
    rule.rate = written
    assert ((rule.limit, rule.period, rule.unit), rule.rate) == (columns, read)


def test_a_rule_has_one_rate_or_a_list() -> None:
    """The rates of a list keep their units. A rule without a limit has no rate."""
    rule = RateLimitRule()
    rule.rate = ["10/second", "5/60s", "500/h"]
    assert ((rule.limit, rule.unit, rule.more_rates), rule.rate) == (
        (10, "s", ["5/60s", "500/h"]),
        ["10/s", "5/60s", "500/h"],
    )
    rule.rate = "3/m"
    assert (rule.more_rates, rule.rate) == ([], "3/m")
    rule.limit = None
    assert rule.rate is None


@pytest.mark.parametrize("written", ["5/moon", "m", (1, 0.5), None])
def test_a_rate_that_the_form_cannot_show_is_refused(written: Any) -> None:
    """Periods with fractions of a second, and values that are not rates, raise an error."""
    with pytest.raises(LimitError):
        RateLimitRule().rate = written


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": " a"}, "name"),
        ({"route": "a "}, "route"),
        ({"limit": -1}, "limit"),
        ({"period": 0}, "period"),
        ({"unit": "y"}, "unit"),
        ({"burst": 0}, "burst"),
    ],
)
def test_a_value_that_cannot_be_stored_is_an_error_of_its_field(
    fields: dict[str, Any], wrong: str
) -> None:
    """The value is refused when the fields are cleaned, before it reaches the database."""
    rule = RateLimitRule(**{"name": "api", "limit": 5, **fields})
    with pytest.raises(ValidationError) as raised:
        rule.clean_fields()
    assert list(raised.value.message_dict) == [wrong]
