"""The tables of settings and options are complete."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import flatten_fieldsets

from django_ratelimit_lua import Limit
from django_ratelimit_lua.admin import preview
from django_ratelimit_lua.admin.rules import RuleAdmin
from django_ratelimit_lua.limits.algorithms import ALGORITHMS
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules.rule import FIELDS


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_an_attribute_a_column_and_a_form_field(name: str) -> None:
    """Each option is an attribute of a limit, a field of rules, a column with its label and help
    text, and a field of the form.
    """
    row = OPTIONS[name]
    column = RateLimitRule._meta.get_field(name)
    assert getattr(Limit("x", "5/m"), name) == row.default
    assert name in FIELDS
    assert (column.verbose_name, column.help_text) == (row.label, row.help)
    assert name in flatten_fieldsets(RuleAdmin.fieldsets)

    assert name in preview.FIELDS or name in (
        "mode",
        "on_store_error",
        "lease",
        "split",
    )
    assert {*row.excludes, *filter(None, [row.needs])} < set(OPTIONS)


def test_every_algorithm_has_only_known_options() -> None:
    """Each option of an algorithm has a row in the table of options."""
    assert set().union(*(algorithm.options for algorithm in ALGORITHMS.values())) < set(OPTIONS)
