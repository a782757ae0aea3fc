"""Every public thing is explained, and the examples in the explanations run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import django_ratelimit_lua

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(django_ratelimit_lua.__path__, "django_ratelimit_lua.")
    if ".migrations" not in name
]


@pytest.mark.parametrize("name", ["django_ratelimit_lua", *MODULES])
def test_examples_run(name: str) -> None:
    """As doctests, on the real server."""
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


@pytest.mark.parametrize("name", ["django_ratelimit_lua", *MODULES])
def test_public_things_are_explained(name: str) -> None:
    """Modules, classes, functions and methods have docstrings; a method may have that of the one it overrides."""
    module = importlib.import_module(name)
    assert module.__doc__
    for attribute, thing in vars(module).items():
        if attribute.startswith("_") or getattr(thing, "__module__", None) != name or not callable(thing):
            continue
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"{name}.{attribute}"
        if inspect.isclass(thing):
            for member, method in vars(thing).items():
                if inspect.isfunction(method) and not member.startswith("_"):
                    assert inspect.getdoc(getattr(thing, member)), f"{name}.{attribute}.{member}"
