"""The tables of settings and options are complete."""

from __future__ import annotations

import pytest

from django_ratelimit_lua import Limit
from django_ratelimit_lua.limits.algorithms import ALGORITHMS
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.rules.options import COLUMNS, option_table


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_limit_is_an_attribute_and_an_option_of_rules(name: str) -> None:
    """A rule has the options of limits, as columns or in its table of options."""
    row = OPTIONS[name]
    assert getattr(Limit("x", "5/m"), name) == row.default
    assert name in {*COLUMNS, *option_table()}
    assert {*row.excludes, *filter(None, [row.needs])} < set(OPTIONS)


def test_every_algorithm_has_only_known_options() -> None:
    """Each option of an algorithm has a row in the table of options."""
    assert set().union(*(algorithm.options for algorithm in ALGORITHMS.values())) < set(OPTIONS)
