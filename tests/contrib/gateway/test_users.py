"""The user that a proxy reports."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_USERS = """
import django
from django.conf import settings
settings.configure(SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.gateway"])
django.setup()
import django_ratelimit_lua.contrib.gateway.urls
from django_ratelimit_lua.contrib.gateway.described_request import ReportedUser
print(ReportedUser("ada"))
"""  # noqa: E501


def test_a_site_without_users_accepts_any_text() -> None:
    """The user is counted by the text that the proxy reports."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_USERS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ada\n"
