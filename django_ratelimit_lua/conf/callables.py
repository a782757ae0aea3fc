"""Resolve callables that are given by a dotted path.

A path is imported when it is first used. `manage.py check` imports all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

Function = Callable[..., Any]
"""A function of the project, with whatever parameters."""

known: dict[str, str] = {}
"""Every path that call sites name, with what it is for; the first ones, and none that is too long
to be one.
"""
MAX_ENTRIES = 10_000
MAX_LENGTH = 300


def find(path: str, purpose: str, *arguments: str) -> Function:
    """Return the object at a dotted path.

    Raises `ImproperlyConfigured` if it cannot be imported, or cannot be called with these
    arguments, if any are given.
    """
    try:
        target: object = import_string(path)
    except Exception as error:  # Importing runs code, which may raise anything.
        raise ImproperlyConfigured(f"{purpose} {path!r} cannot be imported: {error}") from error
    if not callable(target):
        raise ImproperlyConfigured(f"{purpose} {path!r} is not callable")
    if arguments and not accepts(target, *arguments):
        raise ImproperlyConfigured(f"{purpose} {path!r} must accept ({', '.join(arguments)})")
    return target


def accepts(function: Function, *arguments: str) -> bool:
    """Return whether a function can be called with this number of arguments.

    >>> accepts(lambda request: "ada", "group", "request")
    False
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def lazily(path: str, purpose: str) -> Function:
    """Return a function that imports the callable of a dotted path when it is first called."""
    if len(known) < MAX_ENTRIES and len(path) <= MAX_LENGTH:
        known[path] = purpose

    def call(*args: object) -> object:
        return find(path, purpose, "group", "request")(*args)

    call.__module__, _, call.__qualname__ = path.rpartition(".")
    return call


def name_of(function: Function) -> str:
    """Return the dotted name of a function.

    >>> name_of(lazily("shop.limits.tenant", "Key"))
    'shop.limits.tenant'
    """
    named = function
    if not hasattr(function, "__qualname__"):
        named = type(function)
    return f"{named.__module__}.{named.__qualname__}"
