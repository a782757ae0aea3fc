"""Limits written at a call site: what `@ratelimit` and `is_ratelimited` are told."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from types import ModuleType
from typing import Any

from ..identity.keys import KeyLike
from ..limits.options import OPTIONS, Options, refuse_unknown
from ..limits.rate import LimitError
from .methods import methods_label, parse_methods
from .rule import Outcome, Rule
from .template import CostLike, LimitTemplate

_ARGUMENTS = ("group", "key", "rate", "method", "block", "cost", "count_if", "reset_if", "cost_after")
"""What `@ratelimit` takes beside the options of a limit."""


class KnownNames:
    """What call sites are called by, as far as they are imported: rules of these names take their place.

    Names that are made up at run time may be any number, so only the first are kept. Where there were more, nobody
    knows: then any name may be one.
    """

    MOST, LONGEST = 10_000, 200

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names or len(name) > self.LONGEST or len(self._names) >= self.MOST

    def add(self, *names: str) -> None:
        """There are call sites of these names."""
        for name in names:
            if len(name) <= self.LONGEST and len(self._names) < self.MOST:
                self._names.add(name)


known_call_sites = KnownNames()


def call_site(
    group: str | None,
    key: KeyLike | None,
    rate: Any,
    method: Any,
    cost: CostLike,
    options: Options,
    *,
    block: bool = True,
    count_if: Outcome | None = None,
    reset_if: Outcome | None = None,
    cost_after: Outcome | None = None,
) -> Rule:
    """The anonymous rule that a call site is. Its limits are named by group, methods, key and rate, so that no two
    share a count. Raises `LimitError` for whatever is wrong with it."""
    refuse_unknown("@ratelimit", options, (*_ARGUMENTS, *OPTIONS))
    if not key:
        raise LimitError("A rate limit needs a key: whom to count, such as key='ip'")
    if group is not None and (not isinstance(group, str) or not group):
        raise LimitError(f"group is {group!r}: must be text")
    template = LimitTemplate.compiled("at this call site", key, rate, cost, options)
    methods = parse_methods(method)
    for name, function in (("count_if", count_if), ("reset_if", reset_if), ("cost_after", cost_after)):
        if function is not None and not callable(function):
            raise LimitError(f"{name} is {function!r}: must be a callable (request, response or exception)")
    if group is not None:
        known_call_sites.add(group)
    assert template.key is not None
    return Rule(
        template=replace(template, label=f"{methods_label(methods)}:{template.key.name}", _limits={}),
        group=group, methods=methods, block=block, count_if=count_if, reset_if=reset_if, cost_after=cost_after,
    )  # fmt: skip


def group_of(view: Any) -> str:
    """The name a view's counts go by if it names no group: module and qualified name.

    A method is named by the class of the view that runs, so that views that inherit it do not share a count.
    """
    for attribute in ("view_class", "cls"):  # What `as_view()` of Django and of DRF returns.
        cls = getattr(view, attribute, None)
        if isinstance(cls, type):
            actions = getattr(view, "actions", None)
            suffix = "." + ",".join(sorted(set(actions.values()))) if isinstance(actions, dict) else ""
            return f"{cls.__module__}.{cls.__qualname__}{suffix}"
    function = view
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = str(getattr(view, "__qualname__", None) or getattr(function, "__qualname__", type(function).__qualname__))
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    module = getattr(function, "__module__", None) or type(function).__module__  # A partial's own is functools.
    code = getattr(function, "__code__", None)
    return f"{module}.{name}" + (f":{code.co_firstlineno}" if code and code.co_name == "<lambda>" else "")


def stacks_on(view: Any, method: str) -> list[Any]:
    """The stacks of `@ratelimit` that a request of that method meets at a view, outermost first: on the view, on the
    class that it is of, and on the method of that class. Each has `view`, what is limited, and `rules`.

    `method_decorator` decorates anew for each request, and so is done here.
    """
    stacks = _stacks(view)
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if isinstance(cls, type):
        name = method.lower()
        handler = getattr(cls, name, None) or (getattr(cls, "get", None) if name == "head" else None)
        for function in (getattr(cls, "dispatch", None), handler):
            stacks += _stacks_of_method(function, cls)
    return stacks


def _stacks(function: Any) -> list[Any]:
    stacks = []
    while function is not None:
        stack = getattr(function, "_ratelimits", None)
        if stack is not None and stack.checker is function:  # Other decorators copy what is found on a function.
            stacks.append(stack)
            function = stack.view  # What stands right below is in the same stack.
        else:
            function = getattr(function, "__wrapped__", None)
    return stacks


def _stacks_of_method(function: Any, cls: type) -> list[Any]:
    stacks: list[Any] = []
    while inspect.isfunction(function):
        names = inspect.getclosurevars(function).nonlocals
        if not {"decorators", "method"} <= names.keys():
            function = getattr(function, "__wrapped__", None)
            continue
        function = names["method"]
        bound: Any = functools.wraps(function)(functools.partial(function.__get__(object.__new__(cls), cls)))
        for decorator in names["decorators"]:
            bound = decorator(bound)
        stacks += [stack for stack in _stacks(bound) if stack not in stacks]
    return stacks
