"""Public names are documented, and the examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest

from tests.support.package_objects import names_of_modules
from tests.unit.test_public import AVAILABLE, PUBLIC

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
