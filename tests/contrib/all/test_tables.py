"""The tables of settings and options in the documentation."""

from __future__ import annotations

import pytest

from docs.tables import COMPARED, FOLDER, README, TABLES, readme, table


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_match_the_code(name: str) -> None:
    """`make docs` writes them."""
    assert (FOLDER / name).read_text() == table(name)


def test_the_readme_has_the_comparison_of_the_documentation() -> None:
    """`make docs` copies five rows of the table of `make bench-peers` into the README."""
    assert README.read_text() == readme()
    assert all(f"| {name} |" in readme() for name in COMPARED)
