"""The server of the test session: Valkey, unless `RATELIMIT_TEST_BINARY` names another.

Child processes share it. Each worker of pytest-xdist has its own.
"""

from __future__ import annotations

import os
from typing import Any

from django_ratelimit_lua.testing.server import Server

server = Server(os.environ.get("RATELIMIT_TEST_BINARY"))


CLOSED = "redis://127.0.0.1:1/0"
"""The URL of a port that no server listens on."""


def caches(location: str, **options: Any) -> dict[str, Any]:
    """Return the setting `CACHES` with one server, and these options of the alias."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    return {"default": cache}


def url() -> str:
    """Return the URL of the server, and start it with the first call."""
    name = "RATELIMIT_TEST_URL" + os.environ.get("PYTEST_XDIST_WORKER", "")
    if name not in os.environ:
        os.environ[name] = server.start().url
    return os.environ[name]
