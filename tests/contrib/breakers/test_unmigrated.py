"""An optional app that is installed but not migrated."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

LINE = "not migrated: django_ratelimit_lua.contrib.breakers. Run `manage.py migrate`"


@pytest.mark.django_db(transaction=True)
def test_an_optional_app_without_tables_is_named_by_commands() -> None:
    """Commands that need its tables, and `ratelimit health`, name the app."""
    call_command("migrate", "ratelimit_breakers", "zero", verbosity=0)
    try:
        with pytest.raises(CommandError, match=LINE):
            call_command("ratelimit", "rules", "export", stdout=io.StringIO())
        output = io.StringIO()
        call_command("ratelimit", "health", stdout=output, stderr=output)
        assert LINE in output.getvalue()
    finally:
        call_command("migrate", "ratelimit_breakers", verbosity=0)
