"""Benchmarks report limiters that are missing or refuse, instead of numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers import rounds
from tests.bench.peers.limiters import Limiter, ours

ROOT = Path(__file__).parents[2]


def test_a_command_prints_the_profile_of_a_hit() -> None:
    """It names the functions that take the most time, for a hit, a view and coroutines."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.profile_hit", "200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.bench.settings"},
    )
    assert told.returncode == 0, told.stderr
    tables = told.stdout.strip().split("\n\n")
    assert [table.partition(":")[0] for table in tables] == [
        "RateLimiter.hit",
        "a view under @ratelimit",
        "RateLimiter.ahit, 100 coroutines",
    ]
    for table in tables:
        assert "django_ratelimit_lua/engine/decide.py" in table


def missing(limits: int) -> Any:
    import no_such_package  # type: ignore[import-not-found]

    return no_such_package


@pytest.mark.usefixtures(
    "quiet"
)  # Round trips are counted by the server: nobody else may make any.
def test_benchmarks_report_missing_extensions() -> None:
    """The result of the limiter is its error, and the others are measured."""
    limiters = [
        ours("fixed_window"),
        Limiter("missing", missing),
        Limiter("refuses", lambda limits: lambda identity: False),
    ]
    found = rounds.measure_hits(limiters, 1, rounds=1, calls=10)
    assert found["missing"] == "ModuleNotFoundError: No module named 'no_such_package'"
    assert found["refuses"] == "Refused: 10.0.0.0"
    measured = found["RateLimiter, fixed_window"]
    assert isinstance(measured, rounds.Cost)
    assert measured.trips == 1
    assert all(number > 0 for number in measured)
