"""The public names, which other projects may import and which are stable."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.package_objects import is_available, names_of_modules

LINES = (Path(__file__).parents[1] / "public_names.txt").read_text().splitlines()
PUBLIC = {module: names.split() for module, names in (line.split(": ", 1) for line in LINES)}
"""The names of each module. docs/design/stability.rst states how long they stay."""
AVAILABLE = [module for module in PUBLIC if is_available(module)]
DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_public_names_is_sorted() -> None:
    """So the diff of a change shows only added or removed names."""
    assert list(PUBLIC) == sorted(PUBLIC)
    assert all(names == sorted(set(names)) for names in PUBLIC.values())


@pytest.mark.parametrize("name", AVAILABLE)
def test_public_names_can_be_imported(name: str) -> None:
    """`__all__` of a module has no name that is not listed."""
    module = importlib.import_module(name)
    names = PUBLIC[name]
    assert [missing for missing in names if not hasattr(module, missing)] == []
    if name != "django_ratelimit_lua.store" and hasattr(module, "__all__"):
        others = {*module.__all__} - {*names}  # Modules, from which annexes import.
        assert {*names} <= {*module.__all__}
        assert all(find_spec(f"{module.__name__}.{other}") for other in others)


def test_the_documentation_uses_only_public_names() -> None:
    """So do all examples."""
    taught = set()
    for page in [*DOCS.rglob("*.rst"), DOCS.parent / "README.md"]:
        modules = re.findall(r"from (django_ratelimit_lua[\w.]*) import", page.read_text())
        taught |= {(page.name, module) for module in modules}
    assert {(page, module) for page, module in taught if module not in PUBLIC} == set()
    reference = (DOCS / "reference" / "python.rst").read_text()
    for path in re.findall(r":: (django_ratelimit_lua\.[\w.]+)$", reference, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert name in PUBLIC[module], path


MODULES = [name for name in names_of_modules() if ".migrations" not in name]


@pytest.mark.parametrize("name", ["django_ratelimit_lua", *MODULES])
def test_doctests_pass(name: str) -> None:
    """The examples of each module's docstrings run as doctests, on the real server."""
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("django_ratelimit_lua")


@pytest.mark.parametrize("name", AVAILABLE)
def test_public_names_have_docstrings(name: str) -> None:
    """An overriding method may inherit its docstring."""
    module = importlib.import_module(name)
    assert module.__doc__
    for public in PUBLIC[name]:
        thing = getattr(module, public)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)) or not is_ours(thing):
            continue
        assert thing.__doc__, f"{name}.{public}"
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, (property, classmethod))
            ):
                assert inspect.getdoc(getattr(thing, member)), f"{name}.{public}.{member}"
