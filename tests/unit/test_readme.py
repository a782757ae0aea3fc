"""The examples of the README work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SHOWN = [README, *(ROOT / "docs").rglob("*.rst"), *(ROOT / "example_project").rglob("*.py")]
TOGETHER = re.compile(r"""\("ip", "(post|get|json|data):\w+"\)""")
RECIPES = [path for path in SHOWN if TOGETHER.search(path.read_text())]


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
    """The recipe has limits by address and name, by address, and by name, and explains which
    attacks they stop.
    """
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
