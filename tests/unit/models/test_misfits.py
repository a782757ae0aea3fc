"""What does not fit together in a row, in the form's own words. No database is asked."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.models.misfits import by_field, misfits, number_misfits

ROW = {"name": "api", "path": "/", "key": "ip", "limit": 5, "unit": "m"}


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"algorithm": "sliding_window", "burst": 5}, "burst", "“Burst” needs the algorithm token bucket."),
        ({"burst": 5}, "burst", "“Burst” needs the algorithm token bucket."),
        ({"segments": 5, "algorithm": "gcra"}, "segments", "“Segments” needs the algorithm sliding window."),
        ({"lease": 5}, "lease", "“Lease” needs the algorithm token bucket or fixed window."),
        ({"lease": 5, "algorithm": "token_bucket", "burst": 1}, "lease", "A lease needs a burst of at least 2."),
        (
            {"count_denied": True, "max_wait": 1.0}, "count_denied",
            "“Count refused requests” and “Longest wait” contradict each other. Leave one of them empty.",
        ),
        ({"key": "id"}, "key", "“id” is no key. Write for example ip, user_or_ip or post:username, and + between"),
        ({"key": "ip+app.key"}, "key", "“app.key” names code, which only rules of the settings can do."),
        ({"key": ""}, "key", "Choose who is counted, for example ip: the client address."),
        ({"path": "api/"}, "path", "“api/” does not begin with a slash. Write /api/."),
        ({"path": "/\n" * 51}, "path", "Enter at most 50 paths, each of at most 1000 characters."),
        ({"path": "", "exempt": True}, "path", "An exemption needs a path, a route or a descriptor;"),
        ({"descriptor": "remote_address\n=x"}, "descriptor", "Write one entry per line: generic_key=login"),
        (
            {"descriptor": "generic_key=login"}, "key",
            "The descriptor needs an entry remote_address to be counted by “ip”.",
        ),
        ({"descriptor": "a", "key": "session"}, "key", "A descriptor cannot be counted by “session”."),
        ({"more_rates": ["9/60s"]}, "more_rates", "“5/m” and “9/60s” are for the same period. Keep the smaller one."),
        ({"more_rates": ["9/99999w"]}, "more_rates", "“9/99999w” is too large"),
        ({"limit": 10**6, "algorithm": "sliding_log"}, "limit", "The algorithm sliding log takes limits up to 100000."),
        ({"algorithm": "fixed_window", "align": "week"}, "align", "then the limit is for 1 week, not “5/m”."),
        ({"align": "clock"}, "align", "“Window starts” needs the algorithm fixed window."),
        (
            {"algorithm": "fixed_window", "time_zone": "Europe/Berlin"}, "time_zone",
            "A time zone is for windows that start each day, week or month.",
        ),
        (
            {"algorithm": "fixed_window", "align": "day", "unit": "d", "time_zone": "Mars"}, "time_zone",
            "There is no time zone “Mars”. Write one such as Europe/Berlin.",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_of_its_field_in_the_words_of_the_form(
    fields: dict[str, Any], field: str, problem: str
) -> None:
    """Labels and not names, sentences and not lists of what the code accepts."""
    found = by_field(misfits(RateLimitRule(**{**ROW, **fields}).values()))
    assert list(found) == [field]
    assert problem in found[field][0]


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"algorithm": "token_bucket", "burst": 9, "lease": 2}, {"key": "exact:header:X-API-Key + ip"},
        {"path": "", "key": ""}, {"path": "", "group": "api", "key": ""}, {"exempt": True, "key": "", "burst": 5},
        {"more_rates": ["500/h", "9/d"]}, {"algorithm": "fixed_window", "align": "month", "period": 30, "unit": "d"},
        {"limit": "many"}, {"path": None}, {"more_rates": {"unreadable": ""}}, {"algorithm": "best"},
    ],
)  # fmt: skip
def test_what_fits_and_what_somebody_broke_by_hand_is_left_to_the_judge_of_rules(fields: dict[str, Any]) -> None:
    """Nothing is said, and nothing fails."""
    values = RateLimitRule(**{**ROW, **fields}).values()
    assert misfits(values) == []
    assert number_misfits(values) == [] or fields.get("exempt")


def test_other_numbers_are_held_against_the_rule_they_are_for() -> None:
    """What is of a field that a tier or an override does not have is said of its limit."""
    rule = RateLimitRule(**ROW, algorithm="fixed_window", align="day").values()
    assert list(by_field(number_misfits({**rule, "unit": "m"}), {"limit", "burst"}, "limit")) == ["limit"]
