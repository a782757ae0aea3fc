"""What stands on a view: the stacks of `@ratelimit`, and the breakers, that a request meets there."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from .fallbacks import NO_FALLBACK, Instead
from .rule import Rule

LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
BEFORE_METHODS = ("", "dispatch")
"""Where stacks stand that are asked before a class-based view looks at its request: around it, and on `dispatch`."""


def url_patterns() -> Iterator[tuple[URLPattern, str]]:
    """All URL patterns of the site, each with the namespaces that it is in, as in "shop:"; none without a
    `ROOT_URLCONF`."""

    def within(patterns: Sequence[Any], space: str, seen: frozenset[int]) -> Iterator[tuple[URLPattern, str]]:
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                if id(pattern) not in seen:  # A URLconf may include itself.
                    inner = f"{space}{pattern.namespace}:" if pattern.namespace else space
                    yield from within(pattern.url_patterns, inner, seen | {id(pattern)})
            elif isinstance(pattern, URLPattern):
                yield pattern, space

    if not getattr(settings, "ROOT_URLCONF", None):  # As in a project of workers alone.
        return iter(())
    return within(get_resolver().url_patterns, "", frozenset())


@dataclass(frozen=True, slots=True)
class Stack:
    """The limits that stand together on one view, and are decided in one call; kept on the function that checks them.

    `checker`: that function; `view`: what it guards; `group`: what is counted under where a limit names no group;
    `fallback`: what answers refused requests.
    """

    checker: Callable[..., Any]
    view: Callable[..., Any]
    rules: tuple[Rule, ...]
    group: str
    fallback: Any = NO_FALLBACK

    @property
    def blocks(self) -> bool:
        """Whether it refuses requests; else it only tells the view."""
        return any(rule.block for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Guard:
    """A breaker that stands on a view; kept on the function that asks it.

    `checker`: that function; `breaker`: its name; `instead`: what comes of a call that is not made.
    """

    checker: Callable[..., Any]
    breaker: str
    instead: Instead


def guarding(checker: Any, breaker: str, instead: Instead) -> Callable[..., Any]:
    """The function that asks a breaker, so that it is found on a view."""
    checker._ratelimit_guard = Guard(checker, breaker, instead)
    found: Callable[..., Any] = checker
    return found


class StandingGuard(NamedTuple):
    """Where a breaker stands, as a `Standing`; `of`: what goes before the request among the arguments."""

    guard: Guard
    method: str
    of: tuple[Any, ...]

    @property
    def checker(self) -> Callable[..., Any]:
        """The function that asks it."""
        return self.guard.checker


class Standing(NamedTuple):
    """Where a stack stands: on a method of that name of the view's class, or (empty) around the view."""

    stack: Stack
    method: str

    @property
    def checker(self) -> Callable[..., Any]:
        """The function that checks it."""
        return self.stack.checker


def stacks_on(view: Any, method: str | None = None) -> list[Standing]:
    """The stacks of `@ratelimit` that a request of that method (None: of any) meets at a view, outermost first.

    Around the view; on `dispatch` and on the method that answers; and on what these run of their own class, as
    `super().get(...)` and `self.create(...)` do: whichever class has it. `method_decorator` decorates anew for each
    request, and so is done here.
    """
    return _found(view, method).standing


def guards_on(view: Any, method: str | None = None) -> list[StandingGuard]:
    """The breakers that a request of that method (None: of any) meets at a view, found as stacks are."""
    return _found(view, method).guards


def _found(view: Any, method: str | None) -> _Found:
    found = _Found()
    around = list(layers(view))
    for layer in around:
        found.add(layer, "")
    cls = next((cls for layer in around for cls in (_class_of(layer),) if cls is not None), None)
    innermost = around[-1]
    if cls is not None:
        for name in ("dispatch", *_handlers(cls, around, method)):
            found.add_method(object.__new__(cls), name)
    elif inspect.ismethod(innermost):
        found.add_method(innermost.__self__, innermost.__name__)
    elif not inspect.isfunction(innermost):
        found.add_method(innermost, "__call__")
    return found


def is_behind_login(view: Any, standing: Standing | StandingGuard) -> bool:
    """Whether somebody has to be logged in before a stack or a breaker is asked, by Django's own means: the middleware,
    the decorator or the mixin."""
    if LOGIN_REQUIRED in settings.MIDDLEWARE and getattr(view, "login_required", True):
        return True
    # `login_required` leaves this on what it makes. Decorators around that copy it; those inside have it not.
    is_closed = hasattr(view, "login_url")
    # The mixin asks in `dispatch`, before the methods.
    # Django's AccessMixin by what it has: to import it, django.contrib.auth would have to be installed.
    cls = _class_of(view)
    asks = cls is not None and (is_closed or hasattr(cls, "handle_no_permission"))
    is_inside = is_closed and not hasattr(standing.checker, "login_url")
    return is_inside or (asks and standing.method not in BEFORE_METHODS)


def _class_of(view: Any) -> type | None:
    """The class that `as_view()` of Django or of DRF made a view of."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    return cls if isinstance(cls, type) else None


def _handlers(cls: Any, around: Sequence[Any], method: str | None) -> list[str]:
    """The names of the methods that answer requests of a method. A `ViewSet` says which of its actions each is."""
    actions: dict[str, str] = next(
        (layer.actions for layer in around if isinstance(getattr(layer, "actions", None), dict)), {}
    )
    names = [method.lower()] if method is not None else list(getattr(cls, "http_method_names", ()))
    by_get = [
        "get" if name == "head" and name not in actions and not hasattr(cls, name) else name
        for name in names
    ]  # fmt: skip
    return list(dict.fromkeys(actions.get(name, name) for name in by_get))


def layers(function: Any) -> Iterator[Any]:
    """A function and what it wraps, outermost first. What wraps without `functools.wraps` has it in its closure."""
    seen: list[Any] = []
    while function is not None and not any(function is other for other in seen):
        seen.append(function)
        yield function
        stack = getattr(function, "_ratelimits", None)
        if isinstance(stack, Stack) and stack.checker is function:  # Other decorators copy what is found on a function.
            function = stack.view  # What stands right below is in the same stack.
        elif isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = None  # What decorates a method is looked for on its class.
        else:
            inner = getattr(function, "__wrapped__", None)
            wrapped = (value for value in _closure(function).values() if _is_function(value))
            function = inner if inner is not None else next(wrapped, None)


def _is_function(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value) or isinstance(value, functools.partial)


def _closure(function: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # A name that has no value yet.
                names[name] = cell.cell_contents
    return names


class _Found:
    """Stacks and breakers that were found, each once."""

    def __init__(self) -> None:
        self.standing: list[Standing] = []
        self.guards: list[StandingGuard] = []
        self._seen: set[tuple[int, str]] = set()

    def add(self, layer: Any, method: str) -> None:
        """The stack that a function checks, or the breaker that it asks, if it does."""
        self._add_guard(layer, method, ())
        stack = getattr(layer, "_ratelimits", None)
        is_new = all(stack is not other.stack for other in self.standing)
        if isinstance(stack, Stack) and stack.checker is layer and is_new:
            self.standing.append(Standing(stack, method))

    def _add_guard(self, layer: Any, method: str, of: tuple[Any, ...]) -> None:
        guard = getattr(layer, "_ratelimit_guard", None)
        is_new = all(guard is not other.guard for other in self.guards)
        if isinstance(guard, Guard) and guard.checker is layer and is_new:
            self.guards.append(StandingGuard(guard, method, of))

    def add_method(self, instance: Any, name: str, after: int = 0) -> None:
        """What stands on a method of a class, and on what that runs of its own class; `after`: of the classes in the
        order of inheritance, so many are passed over."""
        mro = type(instance).__mro__
        place = next((place for place in range(after, len(mro)) if name in vars(mro[place])), None)
        if place is None or (place, name) in self._seen:
            return
        self._seen.add((place, name))
        function = vars(mro[place])[name]
        while inspect.isfunction(function):
            self._add_guard(function, name, (instance,))
            closure = _closure(function)
            if {"decorators", "method"} <= closure.keys():  # As `method_decorator` leaves it.
                function = closure["method"]
                self._add_decorated(instance, function, closure["decorators"], name)
            elif hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            else:
                break
        if not inspect.isfunction(function):
            return
        for inner in filter(_is_function, _closure(function).values()):
            for layer in layers(inner):  # The function that DRF's `@api_view` made a class of.
                self.add(layer, name)
        for whose, other in _methods_named(function.__code__):
            places = {"self": 0, "super": place + 1} | {cls.__name__: at for at, cls in reversed(list(enumerate(mro)))}
            if whose in places:
                self.add_method(instance, other, places[whose])

    def _add_decorated(self, instance: Any, function: Any, decorators: Any, name: str) -> None:
        method = functools.wraps(function)(functools.partial(function.__get__(instance, type(instance))))
        bound: Any = method
        for decorator in decorators:
            with suppress(Exception):  # One that asks more of the view than an empty one can say.
                bound = decorator(bound)
        for layer in layers(bound):
            if layer is method:
                break
            self.add(layer, name)


@functools.lru_cache(maxsize=4096)
def _methods_named(code: CodeType) -> Sequence[tuple[str, str]]:
    """What a method may run: of "self", of "super", or of a class of that name; and the name of the method."""
    named: dict[tuple[str, str], None] = {}
    own = code.co_varnames[0] if code.co_argcount else None
    whose = ""
    for instruction in dis.get_instructions(code):
        operation, value = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            if whose:
                named[whose, value] = None
            whose = ""
        elif operation == "LOAD_GLOBAL":
            whose = value if whose != "super" else whose  # `super(Parent, self)` is one, too.
        elif whose != "super":
            # Python 3.13 and later load two names at once.
            last = value[-1] if isinstance(value, tuple) and value else value
            is_self = own is not None and last == own and operation.startswith(("LOAD_FAST", "LOAD_DEREF"))
            whose = "self" if is_self else ""
    return tuple(named)
