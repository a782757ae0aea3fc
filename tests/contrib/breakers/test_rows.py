"""Thresholds and rows of breakers."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.contrib.breakers.rows import (
    TUNED,
    BreakerError,
    Thresholds,
    read_row,
    thresholds,
)


def test_declared_thresholds_can_be_parsed_again() -> None:
    """Parsing the declared form of thresholds returns equal thresholds."""
    odd = thresholds(
        "x",
        {"slow": "1.5s", "failure_ratio": 0.125, "failures": 7, "window": "90s", "open_for": 0.25},
    )
    for by in (Thresholds(), odd):
        declared = by.declared()
        assert tuple(declared) == TUNED
        assert thresholds("x", declared) == by


def test_the_code_sets_the_thresholds_that_a_row_leaves_empty() -> None:
    """An empty field of a row keeps the value in the code. The longest pause is at least
    the first.
    """
    code = thresholds("x", {"slow": "2s", "minimum": 50})
    row = read_row({"name": "x", "minimum": 10, "open_for": "10m"})
    assert row.over(code) == thresholds(
        "x", {"slow": "2s", "minimum": 10, "open_for": "10m", "open_max": "10m"}
    )


def test_a_forced_state_is_parsed() -> None:
    """The row has the forced state and its end."""
    row = read_row({"name": "x", "forced": "open", "until": 5})
    assert (row.forced, row.is_forced(4), row.is_forced(5)) == ("open", True, False)
    assert not read_row({"name": "x"}).is_forced(0)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x", "minimum": "20"},
        {"name": "x", "window": "2d"},
    ],
)
def test_an_invalid_row_is_refused(given: dict[str, Any]) -> None:
    """The row raises a `BreakerError`."""
    with pytest.raises(BreakerError):
        read_row(given)
