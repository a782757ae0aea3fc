"""The guides for migrating explain each test of the others that fails on our names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.differences import GUIDES, Differences

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("guide", "differences"), GUIDES.items(), ids=str)
def test_each_difference_to_django_ratelimit_is_explained(
    guide: str, differences: Differences
) -> None:
    """What somebody who migrates would stumble over has a paragraph of its own."""
    text = (REPOSITORY / guide).read_text()
    assert differences
    assert [words for words in differences.values() if f"**{words}" not in text] == []
