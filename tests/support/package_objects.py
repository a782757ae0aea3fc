"""The modules of the package, and all objects that are reachable from them in this process."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakMethod, ref

import django_ratelimit_lua
from django_ratelimit_lua import signals
from django_ratelimit_lua.extension import ANNEXES, is_installed

NAME = "django_ratelimit_lua"
_CONTAINERS = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    types.CellType,
    types.MethodType,
    types.MappingProxyType,
)
_WRAPPERS = ("functools", "collections", "weakref", "_weakrefset")
_SIGNALS = (
    signals.limit_exceeded,
    signals.rules_changed,
    signals.slot_lost,
    signals.store_down,
    signals.store_up,
)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and (module == NAME or module.startswith(NAME + "."))


def _is_entered(found: Any) -> bool:
    """Return whether the references of an object are followed: it is a container or of our code."""
    kind = type(found)
    if isinstance(found, _CONTAINERS):
        return True
    if isinstance(found, (type, types.FunctionType)):
        return _is_ours(found.__module__)
    return _is_ours(kind.__module__) or kind.__module__ in _WRAPPERS or found in _SIGNALS


def _next(found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, (ref, WeakMethod)):
        yield "()", found()
    elif isinstance(found, types.FunctionType):  # Its globals are those of a module.
        yield ".__closure__", found.__closure__
        yield ".__defaults__", found.__defaults__
        yield ".__dict__", vars(found)
    elif isinstance(found, dict):
        for key, value in list(found.items()):
            yield f"[{key!r:.60}]", value
            yield ".key", key
    elif isinstance(found, type):
        yield from ((f".{name}", value) for name, value in list(vars(found).items()))
    else:
        attributes = getattr(found, "__dict__", {})
        yield from ((f".{name}", value) for name, value in list(attributes.items()))
        # Since Python 3.13 an object leads to its attributes without a dictionary in between.
        named = [attributes, *attributes.values()]
        for value in gc.get_referents(found):
            if not any(value is one for one in named):
                yield f"<{type(value).__name__}>", value


def is_available(module: str) -> bool:
    """Return whether a module belongs to the core or to an installed annex."""
    return not module.startswith(
        tuple(f"{NAME}.contrib.{name}" for name in ANNEXES if not is_installed(name))
    )


def names_of_modules() -> list[str]:
    """Return the modules of the core and of the annexes that are installed."""
    names = (
        module.name for module in pkgutil.walk_packages(django_ratelimit_lua.__path__, f"{NAME}.")
    )
    return [name for name in names if is_available(name)]


def import_all() -> None:
    """Import these modules."""
    for name in names_of_modules():
        importlib.import_module(name)


def modules() -> list[tuple[str, types.ModuleType]]:
    """Return the imported modules of the package, with their names."""
    return [(name, module) for name, module in sorted(sys.modules.items()) if _is_ours(name)]


def reachable_objects(*more: object) -> Iterable[tuple[str, Any]]:
    """Yield every object that is reachable from the package or from `more`, with its path."""
    seen: dict[int, Any] = {}
    ways: list[tuple[str, Any]] = [(f"more[{place}]", one) for place, one in enumerate(more)]
    for name, module in modules():
        if name == f"{NAME}.process":  # A child does not use the objects of its parent.
            continue
        ways += [(f"{name}.{attribute}", value) for attribute, value in list(vars(module).items())]
    while ways:
        way, found = ways.pop()
        if id(found) in seen or isinstance(found, (types.ModuleType, types.CodeType)):
            continue
        seen[id(found)] = found
        yield way, found
        if _is_entered(found):
            ways += [(way + step, value) for step, value in _next(found)]
