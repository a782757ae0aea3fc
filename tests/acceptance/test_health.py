"""Health, for an endpoint and for a person."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from django_ratelimit_lua.operations.health import ahealth, health


def test_health_tells_that_limits_can_be_decided(direct: redis.Redis, prefix: str) -> None:
    """By a decision, which counts nothing."""
    found = health()
    assert (found.ok, found.error, found.revision, found.is_paused) == (True, None, 0, False)
    assert 0 < found.seconds < 10
    assert asyncio.run(ahealth()).ok
    assert direct.keys(f"{prefix}*") == []


def test_health_tells_what_is_wrong(settings: Any) -> None:
    """Within the deadline, and that asking is paused; the command exits with 1."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    found = [health() for _ in range(4)]
    assert not any(one.ok for one in found)
    assert "Connection refused" in str(found[0].error)
    assert [one.is_paused for one in found] == [False, False, True, True]
    assert not asyncio.run(ahealth()).ok
    with pytest.raises(CommandError, match="limits cannot be decided"):
        call_command("ratelimit_health")


def test_the_command_says_how_it_is() -> None:
    """In one line."""
    output = io.StringIO()
    call_command("ratelimit_health", stdout=output)
    assert output.getvalue().startswith("a decision takes ")
    assert output.getvalue().endswith("no rules are published\n")
