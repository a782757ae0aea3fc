"""The bounds of the documentation, and the words by which readers search it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PAGES = {path: path.read_text() for path in DOCS.rglob("*.rst")}
PROMISES = PAGES[DOCS / "reference" / "promises.rst"]


def test_the_documentation_is_short() -> None:
    """It has at most 24,000 words, and the operator's guide at most six pages."""
    assert sum(len(text.split()) for text in PAGES.values()) <= 24_000
    assert len(list((DOCS / "operators").glob("*.rst"))) <= 6


def test_each_promise_names_its_tests() -> None:
    """There are at most 45 promises and 12 exceptions. Each promise has a test, and each test file
    exists.
    """
    _, *rows = re.split(r"^- ", PROMISES, flags=re.MULTILINE)
    files = [re.findall(r"``([\w/]+\.py)``", row) for row in rows]
    assert len(rows) <= 45
    assert [row for row in rows if not re.search(r"\.py``|``make faults``", row)] == []
    assert [name for found in files for name in found if not (TESTS / name).exists()] == []
    exceptions = re.findall(r"Exceptions?(?: to all)?:(.+?\.)(?: ``|\n)", PROMISES, re.DOTALL)
    assert sum(1 + text.count(";") for text in exceptions) <= 12


@pytest.mark.parametrize("words", ["brute force", "Cloudflare", "allowlist", "locmem"])
def test_the_search_finds_what_readers_call_it(words: str) -> None:
    """A page contains all of the words, so the search of the documentation finds it."""
    assert any(
        all(re.search(rf"\b{word}\b", text) for word in words.split()) for text in PAGES.values()
    )
