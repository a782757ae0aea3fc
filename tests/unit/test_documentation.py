"""The bounds, links, examples and tables of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_ratelimit_lua import Limit
from django_ratelimit_lua.limits.algorithms import ALGORITHMS
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.rules.options import COLUMNS, option_table
from docs.llms import llms_text, summary
from tests.foreign.differences import GUIDES, Differences

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
PAGES = {path: path.read_text() for path in DOCS.rglob("*.rst") if "_build" not in path.parts}
PROMISES = PAGES[DOCS / "reference" / "promises.rst"]
README = ROOT / "README.md"
SHOWN = [README, *PAGES, *(ROOT / "example_project").rglob("*.py")]
TOGETHER = re.compile(r"""\("ip", "(post|get|json|data):\w+"\)""")
RECIPES = [path for path in SHOWN if TOGETHER.search(path.read_text())]


def test_the_documentation_is_short() -> None:
    """It has at most 24,000 words, and the operator's guide at most six pages."""
    assert sum(len(text.split()) for text in PAGES.values()) <= 24_000
    assert len(list((DOCS / "operators").glob("*.rst"))) <= 6


def test_each_promise_names_its_tests() -> None:
    """There are at most 45 promises and 12 exceptions. Each test file exists."""
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


def test_the_code_in_the_readme_runs() -> None:
    """Each Python block of the README runs unchanged."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_the_links_of_the_readme_lead_somewhere() -> None:
    """Each relative link points to a file or folder of the repository."""
    linked = re.findall(r"\]\(((?!https?:)[^)#]+)\)", README.read_text())
    assert linked
    assert [path for path in linked if not (ROOT / path).exists()] == []


def test_the_readme_is_short() -> None:
    """The README has at most 400 words, and names no test."""
    text = README.read_text()
    words = [word for word in text.split() if any(map(str.isalnum, word))]
    assert len(words) <= 400
    assert "tests/" not in text


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_recipe_against_guessing_has_three_limits(path: Path) -> None:
    """They are by address and name, by address, and by name."""
    text = path.read_text()
    field = TOGETHER.search(text)
    assert field is not None
    name = field[0].partition(", ")[2].rstrip(")")
    for key in (field[0], '"ip"', name):
        keys = (re.escape(key), re.escape(key.replace('"post:', '"device:')))
        assert re.search(rf"""(key=|"key": |"login", )({"|".join(keys)})""", text), key
    assert re.search(r"many (addresses|who guess)", text)
    assert "many names" in text or "one who tries many" in text


def test_recipes_against_guessing_exist() -> None:
    """The pages on logins and outcomes, and the example site, contain the recipe."""
    assert {"login.rst", "count-by-outcome.rst", "views.py"} <= {path.name for path in RECIPES}


def test_the_list_has_every_page_of_the_documentation() -> None:
    """Each page except the front page is in the list once, with its title and its source."""
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES} - {"index"}
    listed = re.findall(r"^- \[.+\]\(.*_sources/(\S+)\.rst\.txt\)", llms_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names)
    assert llms_text().startswith("# django_ratelimit_lua\n\n> Put `@ratelimit`")


def test_a_page_is_described_by_its_first_sentence_or_its_headings() -> None:
    """A summary has no markup of reStructuredText."""
    page = "Title\n=====\n\nSee :doc:`the limit <a/b>` and\n``x.y``. More.\n"
    assert summary(page) == "See the limit and `x.y`."
    assert summary("Title\n=====\n\nFirst\n-----\n\nSecond\n------\n\nText.\n") == "First; Second"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_limit_is_an_attribute_and_an_option_of_rules(name: str) -> None:
    """A rule has the options of limits, as columns or in its table of options."""
    row = OPTIONS[name]
    assert getattr(Limit("x", "5/m"), name) == row.default
    assert name in {*COLUMNS, *option_table()}
    assert {*row.excludes, *filter(None, [row.needs])} < set(OPTIONS)


def test_every_algorithm_has_only_known_options() -> None:
    """Each option of an algorithm has a row in the table of options."""
    assert set().union(*(algorithm.options for algorithm in ALGORITHMS.values())) < set(OPTIONS)


@pytest.mark.parametrize(("guide", "differences"), GUIDES.items(), ids=str)
def test_each_difference_to_django_ratelimit_is_explained(
    guide: str, differences: Differences
) -> None:
    """The guide explains each difference that a migrating project may meet."""
    text = (ROOT / guide).read_text()
    assert differences
    assert [words for words in differences.values() if words not in text] == []
