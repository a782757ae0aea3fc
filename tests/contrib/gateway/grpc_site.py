"""A site whose settings stand in the environment.

`python -m tests.contrib.gateway.grpc_site COMMAND` is its manage.py.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from django.conf import settings

DEFAULTS: dict[str, Any] = {
    "SECRET_KEY": "tests",
    "USE_TZ": True,
    "ROOT_URLCONF": "tests.contrib.gateway.grpc_site",
    "INSTALLED_APPS": [
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_ratelimit_lua",
        "django_ratelimit_lua.contrib.gateway",
    ],
    "RATELIMIT_ON_STORE_ERROR": "closed",
}
urlpatterns: list[Any] = []

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    settings.configure(**{**DEFAULTS, **json.loads(os.environ["GRPC_SETTINGS"])})
    execute_from_command_line(sys.argv)
