"""An optional app that is installed but not migrated."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command

LINE = "not migrated: django_ratelimit_lua.contrib.breakers. Run `manage.py migrate`"


@pytest.mark.django_db(transaction=True)
def test_an_optional_app_without_tables_is_named() -> None:
    """`ratelimit health` names the app, and rules are published without it."""
    call_command("migrate", "ratelimit_breakers", "zero", verbosity=0)
    try:
        call_command("ratelimit", "publish", stdout=io.StringIO())
        output = io.StringIO()
        call_command("ratelimit", "health", stdout=output, stderr=output)
        assert LINE in output.getvalue()
    finally:
        call_command("migrate", "ratelimit_breakers", verbosity=0)
