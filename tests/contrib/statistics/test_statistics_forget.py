"""Erasing the statistics of a client."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.report import read_timelines
from tests.acceptance.commands.test_forget import (
    ADDRESS,
    IP,
    OTHER,
    erased,
    forget_what_another_process_knows,
)
from tests.acceptance.commands.test_reset_and_block import said
from tests.contrib.statistics.counts import top

pytestmark = pytest.mark.django_db(transaction=True)


def test_another_process_forgets_unwritten_counts(
    direct: redis.Redis, prefix: str, tmp_path: Path
) -> None:
    """The process also drops its unwritten counts and lists of clients."""
    forget_what_another_process_knows(direct, prefix, tmp_path, "statistics")


def test_the_client_is_in_no_list(settings: object) -> None:
    """The lists that contain it are deleted. Its requests stay counted."""
    limiter = RateLimiter("searched", "1/h")
    for identity in (IP, ("ip", OTHER)):
        for _ in range(3):
            limiter.hit(identity)
    time.sleep(1.5)
    found = erased(said("forget", "--ip", ADDRESS))
    lists = found["lists of clients, with the other clients in them"]
    assert lists == 2  # Of the limit and of all limits.
    assert top("searched") == top("") == []
    assert read_timelines(["searched"], "hour")["searched"].numbers["refused"] == 4
