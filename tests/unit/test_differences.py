"""The migration guides explain each test of another package that fails here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.differences import GUIDES, Differences

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("guide", "differences"), GUIDES.items(), ids=str)
def test_each_difference_to_django_ratelimit_is_explained(
    guide: str, differences: Differences
) -> None:
    """The guide has a paragraph for each difference that a migrating project may meet."""
    text = (REPOSITORY / guide).read_text()
    assert differences
    assert [words for words in differences.values() if f"**{words}" not in text] == []
