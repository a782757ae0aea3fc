"""The cost of a refusal is bounded and small, for any request of a proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_ratelimit_lua.contrib.gateway.check import answer_check
from tests.acceptance.test_refusal_cost import FEWEST, READ, assert_as_cheap, parts_read, serial
from tests.floors import PACKAGE

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("tricks", ["", "%5c..;a/\\;b%2f/./c#" * 12])
@pytest.mark.parametrize("piece", ["a", "%41", ";a", "\\", "%2f..", "//", "/.;/", "#"])
def test_the_gateway_refuses_large_requests_at_the_same_cost(
    piece: str, tricks: str, settings: Any
) -> None:
    """This holds for paths with several readings. A path with too many readings is refused."""
    settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_GATEWAY_SECRET = (
        "envoy",
        "a-secret-of-the-tests",
    )
    settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1"]
    globs = [
        {"name": f"glob {number}", "key": "ip", "rate": "0/h", "path": f"/**{number}.php"}
        for number in range(9)
    ]
    settings.RATELIMIT_RULES = [{"name": "rule", "key": "ip", "rate": "0/h", "path": "/"}, *globs]

    def asked(size: int) -> Any:
        uri = f"/{next(serial)}/{tricks if size > FEWEST else ''}{(piece * size)[:size]}"
        return {
            "REMOTE_ADDR": "127.0.0.1",
            "HTTP_X_RATELIMIT_SECRET": "a-secret-of-the-tests",
            "HTTP_X_ORIGINAL_URI": uri,
            "HTTP_X_ORIGINAL_METHOD": "GET",
            "HTTP_X_ORIGINAL_HOST": "site",
            "HTTP_X_ORIGINAL_ADDRESS": "203.0.113.9",
        }

    with asyncio.Runner() as runner:
        assert_as_cheap(
            lambda meta: runner.run(answer_check(meta)).response(),
            asked,
            1000,
            4000,
            16_000,
            60_000,
        )


def test_the_gateway_reads_only_the_body() -> None:
    """The body is bounded, as test_json.py checks."""
    assert parts_read(PACKAGE / "contrib" / "gateway") - {*READ} <= {"read"}
