"""The server of the test session: Valkey, unless `RATELIMIT_TEST_BINARY` names another. Child processes share it."""

from __future__ import annotations

import os

from django_ratelimit_lua.testing.server import Server

server = Server(os.environ.get("RATELIMIT_TEST_BINARY"))


def url() -> str:
    """Where it is, started if nobody has yet."""
    if "RATELIMIT_TEST_URL" not in os.environ:
        os.environ["RATELIMIT_TEST_URL"] = server.start().url
    return os.environ["RATELIMIT_TEST_URL"]
