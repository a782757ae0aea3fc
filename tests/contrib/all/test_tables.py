"""The pages with tables of settings and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tables import PAGES, with_table


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_pages_match_the_tables(page: str) -> None:
    """`make docs` writes them."""
    assert (Path(__file__).parents[3] / "docs" / page).read_text() == with_table(page)
