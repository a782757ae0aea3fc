"""The tables of settings and options in the documentation."""

from __future__ import annotations

import pytest

from docs.tables import FOLDER, TABLES, table


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_match_the_code(name: str) -> None:
    """`make docs` writes them."""
    assert (FOLDER / name).read_text() == table(name)
