"""The breakers on the page of the app."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.core.management import call_command
from django.test import Client

from django_ratelimit_lua.contrib.breakers.operations import force
from tests.acceptance.test_admin import staff
from tests.acceptance.test_admin_home import shown, site  # noqa: F401 - a fixture
from tests.contrib.breakers.test_breaker_operators import payments  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


def test_breakers_that_are_not_closed_are_listed(
    payments: Callable[..., str],  # noqa: F811
    operator: Client,
) -> None:
    """The state in force is listed for users who may view breakers. Closed breakers are
    not listed.
    """
    words = "Breakers that are not closed"
    assert words not in shown(operator)
    for _ in range(30):
        payments(fails=True)
    text = shown(operator)
    assert "payments : open since" in text.partition(words)[2]
    force("payments", "closed")
    assert (
        "payments : forced closed until it is set to automatic"
        in shown(operator).partition(words)[2]
    )
    assert words not in shown(staff("view_ratelimitrule", name="rules"))
    seen = staff("view_ratelimitrule", "view_ratelimitbreaker", name="breakers")
    assert words in shown(seen)


def test_an_optional_app_without_tables_is_named(operator: Client) -> None:
    """The page of the app can be opened without the tables."""
    call_command("migrate", "ratelimit_breakers", "zero", verbosity=0)
    try:
        assert "breakers is not migrated. Run “manage.py migrate”." in shown(operator)
    finally:
        call_command("migrate", "ratelimit_breakers", verbosity=0)
