"""The arguments that each algorithm's Lua receives."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua import Limit, LimitError
from django_ratelimit_lua.limits import program
from django_ratelimit_lua.limits.algorithms import ALGORITHMS, find

MINUTE, DAY = 60_000_000, 86_400_000_000


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_has_a_python_and_a_lua_file(name: str) -> None:
    """Both files have the algorithm's name. The suffixes of Redis keys are unique letters."""
    assert ALGORITHMS[name].__class__.__module__ == f"django_ratelimit_lua.limits.algorithms.{name}"
    assert program.source(f"limits/algorithms/{name}")
    assert len({algorithm.suffix for algorithm in ALGORITHMS.values()}) == len(ALGORITHMS)
    assert len(ALGORITHMS[name].suffix) == 1
    assert find(name) is ALGORITHMS[name]


@pytest.mark.parametrize(
    ("algorithm", "rate", "options", "numbers"),
    [
        ("token_bucket", "7/m", {}, (7, 7, MINUTE, 1)),
        ("token_bucket", "60/m", {"burst": 2}, (2, 1, 1_000_000, 1)),
        ("token_bucket", "0/m", {}, (0, 1, MINUTE, 1)),
        # Counted in milliseconds.
        ("token_bucket", "99991/d", {}, (99_991, 99_991, DAY // 1000, 1000)),
        ("leaky_bucket", "60/m", {}, (60, 1, 1_000_000, 1)),
        ("leaky_bucket", "60/m", {"queue": 0}, (1, 1, 1_000_000, 1)),
        ("leaky_bucket", "0/m", {}, (0, 1, MINUTE, 1)),
        ("fixed_window", "5/m", {}, (5, MINUTE, 0, 0, 0, 0)),
        ("fixed_window", "5/m", {"align": "clock"}, (5, MINUTE, 1, 0, 0, 0)),
        ("fixed_window", "5/d", {"align": "day"}, (5, DAY, 2, DAY, 2 * DAY, 3 * DAY)),
        ("sliding_window", "5/m", {}, (5, MINUTE, MINUTE // 10)),
        ("sliding_window", "5/m", {"segments": 7}, (5, MINUTE, MINUTE // 7)),
        ("sliding_log", "5/m", {}, (5, MINUTE)),
    ],
)
def test_the_arguments_of_the_lua_are_whole_numbers(
    algorithm: str, rate: str, options: Any, numbers: tuple[int, ...]
) -> None:
    """The arguments are in lowest terms."""
    assert Limit("x", rate, algorithm=algorithm, **options).numbers(DAY + 5) == numbers


@pytest.mark.parametrize(
    ("algorithm", "rate", "options", "field"),
    [
        ("token_bucket", "999999999989/d", {}, "burst"),
        ("token_bucket", "1/3650d", {"burst": 10**6}, "burst"),
        ("leaky_bucket", "7/m", {"queue": 10**12}, "queue"),
        ("token_bucket", "1/s", {"burst": 1, "lease": 1}, "lease"),
        ("sliding_window", (5, 0.000009), {"segments": 10}, "segments"),
        ("sliding_log", "100001/m", {}, ""),
        ("fixed_window", "5/m", {"align": "day"}, "align"),
        ("fixed_window", "5/m", {"time_zone": "Europe/Berlin"}, "time_zone"),
    ],
)
def test_an_inexact_limit_is_refused(algorithm: str, rate: Any, options: Any, field: str) -> None:
    """The error is raised when the limit is created, and names the option."""
    with pytest.raises(LimitError) as raised:
        Limit("x", rate, algorithm=algorithm, **options)
    assert raised.value.field == field


def test_units_taken_ahead_expire() -> None:
    """Leased units expire after a second, or after a tenth of the time in which a bucket fills."""
    assert Limit("x", "5/m").lapse == 1.0
    assert Limit("x", "100/s", algorithm="token_bucket", burst=500).lapse == 0.5
