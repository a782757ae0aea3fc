"""The server of the test session: Valkey, unless `RATELIMIT_TEST_BINARY` names another.

Child processes share it. Each worker of pytest-xdist has its own.
"""

from __future__ import annotations

import os

from django_ratelimit_lua.testing.server import Server

server = Server(os.environ.get("RATELIMIT_TEST_BINARY"))


def url() -> str:
    """Return the URL of the server, and start it with the first call."""
    name = "RATELIMIT_TEST_URL" + os.environ.get("PYTEST_XDIST_WORKER", "")
    if name not in os.environ:
        os.environ[name] = server.start().url
    return os.environ[name]
