"""The number of functions and files that a decision passes through is bounded."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.floors import PACKAGE
from tests.tools.walk import walks


@pytest.mark.django_db(transaction=True)
def test_a_decision_passes_through_few_functions_and_files(settings: Any, no_others: None) -> None:
    """The bound is for the functions from `@ratelimit` to Redis and back, and for their files."""
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    warm, stale = walks()
    newer = sys.version_info >= (3, 12)  # Which enters a few functions more.
    assert warm.frames <= 39 + 2 * newer, str(warm)
    assert warm.files <= 17, str(warm)
    # Most of them compile the edited rule. Without hiredis a reply has one more read, and other
    # tests of the process may have breakers, which receive new rules.
    assert stale.frames <= 300 + 2 * newer, str(stale)


def test_the_guided_tour_lists_existing_functions() -> None:
    """Every function in the documentation exists in the named file, and their number is bounded."""
    *stations, counts = (Path(__file__).parents[3] / "docs" / "walk.txt").read_text().splitlines()
    assert len(stations) == int(counts.split()[0]) <= 39
    for station in stations:
        file, name = station.split()
        assert re.search(
            rf"\b{re.escape(name.rpartition('.')[2].strip('<>'))}\b", (PACKAGE / file).read_text()
        ), station
