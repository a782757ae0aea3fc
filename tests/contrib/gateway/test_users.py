"""The user that a proxy reports."""

from __future__ import annotations

import subprocess
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import models
from django.test.utils import isolate_apps

from django_ratelimit_lua.contrib.gateway import users
from django_ratelimit_lua.contrib.gateway.users import VouchedUser, load_user, log_in

WITHOUT_USERS = """
import django
from django.conf import settings
settings.configure(SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.gateway"])
django.setup()
import django_ratelimit_lua.contrib.gateway.urls
from django_ratelimit_lua.contrib.gateway.users import VouchedUser
print(VouchedUser("ada"))
"""  # noqa: E501


@pytest.mark.django_db
@isolate_apps("django_ratelimit_lua")
def test_a_reported_user_that_is_not_a_valid_primary_key_stays_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A text that is not a valid key causes no database error."""

    class Person(models.Model):
        id = models.UUIDField(primary_key=True)

        class Meta:
            app_label = "django_ratelimit_lua"

    monkeypatch.setattr(users, "get_user_model", lambda: Person)
    request: Any = SimpleNamespace()
    log_in(request, VouchedUser("ada"))
    load_user(request)
    assert (request.user.pk, str(request.user)) == ("ada", "ada")
    key = uuid.uuid4()
    assert VouchedUser(str(key)).pk == key


def test_a_site_without_users_accepts_any_text() -> None:
    """The user is counted by the text that the proxy reports."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_USERS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ada\n"
