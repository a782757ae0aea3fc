"""Find the limits of a view without calling it, and name the view.

A decorator leaves its data as an attribute, under a unique name, on the function that it makes.
`functools.wraps`, `method_decorator` and `as_view` copy such attributes, so they are found on the
function of any URL pattern, and on the methods of its class.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count
from types import CellType, MethodType, ModuleType
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from ..conf.values import Function, dotted_name
from ..rules.rule import Rule
from .fallback import NO_FALLBACK

LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
BEFORE_METHODS = ("", "dispatch")
"""Places of stacks that are decided before a class-based view examines its request: around it, and
on `dispatch`.
"""
DECORATORS_MODULE = "django.utils.decorators."
"""`method_decorator` tries a decorator on a function of this module, and copies what that has to
the method.
"""
_DRF_CALLS = {
    "get": ("list", "retrieve"),
    "post": ("create",),
    "put": ("update",),
    "patch": ("partial_update",),
    "delete": ("destroy",),
    "partial_update": ("update",),
}
"""The methods that DRF's generic views and mixins call."""
_ATTRIBUTE = "_ratelimit_stack_"
_numbers = count()


def url_patterns(
    resolver: URLResolver | None = None,
    namespaces: str = "",
    visited: frozenset[int] = frozenset(),
) -> Iterator[tuple[URLPattern, str]]:
    """Yield all URL patterns of a resolver, each with its namespaces, as in "shop:".

    By default, the resolver is that of the site. Nothing is yielded without a `ROOT_URLCONF`, as in
    a project of workers alone.
    """
    if resolver is None:
        if not getattr(settings, "ROOT_URLCONF", None):
            return
        resolver = get_resolver()
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLPattern):
            yield pattern, namespaces
        elif id(pattern) not in visited:  # A URLconf may include itself.
            inner = namespaces
            if pattern.namespace:
                inner = f"{namespaces}{pattern.namespace}:"
            yield from url_patterns(pattern, inner, visited | {id(pattern)})


class Stack(NamedTuple):
    """The limits of one view that are decided in one call.

    - `checker`: the function that checks them;
    - `view`: the function that it guards;
    - `rules`: the rules of the call sites;
    - `group`: the group of limits that name none;
    - `fallback`: the response to refused requests;
    - `method`: the method of the view's class that has the limits.
    """

    checker: Function
    view: Function
    rules: tuple[Rule, ...]
    group: str
    fallback: object = NO_FALLBACK
    method: str = ""

    @property
    def blocks(self) -> bool:
        """Return whether the limits refuse requests. Otherwise they only inform the view."""
        return any(rule.block for rule in self.rules)


StackMap = dict[str, Stack]
"""The stacks on a function, by the names of their attributes. Outer decorators have greater names.
"""


def attach_stack(stack: Stack) -> Function:
    """Attach a stack to its function, and return the function."""
    setattr(stack.checker, f"{_ATTRIBUTE}{next(_numbers):015}", stack)
    return stack.checker


def _attached_stacks(function: object) -> StackMap:
    """Return the stacks on a function: its own, and those that were copied from other functions."""
    attributes = getattr(function, "__dict__", {})
    return {name: attributes[name] for name in attributes if name.startswith(_ATTRIBUTE)}


def stack_of(function: object) -> Stack | None:
    """Return the stack of limits that a function checks itself; None: it checks none.

    Stacks of functions that it wraps are ignored.
    """
    own = (stack for stack in _attached_stacks(function).values() if stack.checker is function)
    return next(own, None)


class ViewLimits(NamedTuple):
    """The limits of a view, outermost first.

    - `class_view`: the object with the attributes that `as_view()` sets; None if there is no class;
    - `unknown`: functions with limits that the view may or may not call;
    - `hidden`: the stacks that were found on the functions in `unknown`.
    """

    stacks: list[Stack]
    class_view: object
    unknown: list[str]
    hidden: list[Stack]

    @property
    def has_throttles(self) -> bool:
        """Return whether the view is one of Django REST framework."""
        return hasattr(_class_of(self.class_view), "get_throttles")


def inspect_view(view: object, method: str | None = None) -> ViewLimits:
    """Return the limits of a view for a request of that method (None: any method).

    They are searched around the view, on `dispatch` of its class and of the parents, and on the
    method that handles the request. Those on other methods of the class are `unknown`, unless these
    methods handle other requests.
    """
    around = _unwrap(view)
    unknown = list(around.unknown)
    stacks: StackMap = {}
    hidden: StackMap = {}
    class_view = next((layer for layer in around.layers if _class_of(layer) is not None), None)
    cls = _class_of(class_view)
    if cls is not None:
        of_class = _inspect_class(class_view, cls, method)
        stacks = of_class.running
        unknown += of_class.unknown
        for name, on_method in of_class.others.items():
            not_running = {key: on_method[key] for key in on_method if key not in stacks}
            if not_running:
                unknown.append(name)
                hidden |= not_running
    for layer in around.layers:
        stacks = _attached_stacks(layer) | stacks
    return ViewLimits(_without_repeated(stacks), class_view, unknown, _without_repeated(hidden))


class _ClassStacks(NamedTuple):
    """The stacks on the methods of a view's class.

    - `running`: those on methods that run for the request;
    - `others`: by method, those on methods that no request runs, unless another method calls them;
    - `unknown`: functions around the running methods that may call further functions.
    """

    running: StackMap
    others: dict[str, StackMap]
    unknown: list[str]


def _inspect_class(class_view: object, cls: type, method: str | None) -> _ClassStacks:
    """Return the stacks on the methods of a view's class and of its parents."""
    result = _ClassStacks({}, {}, [])
    running = _running_methods(class_view, cls, method)
    running_for_any = _running_methods(class_view, cls, None)
    for owner in cls.__mro__:
        for name, function in vars(owner).items():
            if not inspect.isfunction(function):
                continue
            # An overridden method does not run, but each `dispatch` calls the next one.
            may_run = name == "dispatch" or getattr(cls, name) is function
            if may_run and name in running:
                wrapped = _unwrap(function)
                result.unknown.extend(wrapped.unknown)
                for key, stack in _stacks_on_method(wrapped.layers, cls, name).items():
                    result.running.setdefault(key, stack)
            elif not may_run or name not in running_for_any:
                on_method = _stacks_on_method([function], cls, name)
                result.others[f"{owner.__qualname__}.{name}"] = on_method
    return result


def _without_repeated(stacks: StackMap) -> list[Stack]:
    """Return the stacks, outermost first, but only the outermost of those on the same view.

    It checks the rules of the others as well.
    """
    outermost: list[Stack] = []
    for name in sorted(stacks, reverse=True):  # Outer decorators have greater names.
        stack = stacks[name]
        if all(stack.view is not outer.view for outer in outermost):
            outermost.append(stack)
    return outermost


def is_behind_login(view: object, stack: Stack) -> bool:
    """Return whether Django requires a login before a stack is reached.

    The login may be required by a middleware, a decorator or a mixin.
    """
    if LOGIN_REQUIRED in settings.MIDDLEWARE and getattr(view, "login_required", True):
        return True
    # `login_required` sets this attribute on its result, and decorators around that copy it. A
    # stack inside does not have it.
    is_decorated = hasattr(view, "login_url")
    if is_decorated and not hasattr(stack.checker, "login_url"):
        return True
    # Django's AccessMixin checks in `dispatch`, before the methods. It is recognised by a method of
    # it, because importing it requires that django.contrib.auth is installed.
    cls = _class_of(view)
    checks_in_dispatch = cls is not None and (is_decorated or hasattr(cls, "handle_no_permission"))
    return checks_in_dispatch and stack.method not in BEFORE_METHODS


def _class_of(view: object) -> type | None:
    """Return the class of a view that `as_view()` of Django or DRF made, or None."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if isinstance(cls, type):
        return cls
    return None


class _Unwrapped(NamedTuple):
    """A function and those that it wraps, outermost first.

    - `unknown`: the innermost one, by name, if it is not a function or may call several functions.
    """

    layers: list[Any]
    unknown: list[str]


def _unwrap(view: Any) -> _Unwrapped:
    """Return a function and those that it wraps."""
    layers: list[Any] = []
    layer = view
    while layer is not None:
        layer = strip_partials(layer)
        wrapped = _wrapped_functions(layer)
        is_repeated = layer in layers
        layers.append(layer)
        if not inspect.isfunction(layer) or is_repeated or len(wrapped) > 1:
            return _Unwrapped(layers, [dotted_name(layer)])
        layer = next(iter(wrapped), None)
    return _Unwrapped(layers, [])


def _wrapped_functions(function: Any) -> list[Any]:
    """Return the functions that a function may call: `__wrapped__`, or those in its closure."""
    if hasattr(function, "__wrapped__"):
        return [function.__wrapped__]
    cells = getattr(function, "__closure__", None) or ()
    values = [cell.cell_contents for cell in cells if cell != CellType()]
    return [value for value in values if inspect.isfunction(value)]


def _running_methods(class_view: object, cls: type, method: str | None) -> list[str]:
    """Return the names of the methods of a class that run for requests of an HTTP method.

    Without a `method`, all HTTP methods are included, and for a `ViewSet` its other URLs as well.
    """
    actions: dict[str, str] = getattr(class_view, "actions", None) or {}
    handlers = list(getattr(cls, "http_method_names", ()))
    if method is not None:
        handlers = [method.lower()]
    if "head" in handlers and "head" not in actions and not hasattr(cls, "head"):
        handlers.append("get")
    running = ["dispatch", *(actions.get(name, name) for name in handlers)]
    for name in running:  # It grows meanwhile: the methods that are added call others.
        if getattr(getattr(cls, name, None), "__module__", "").startswith("rest_framework."):
            running += [called for called in _DRF_CALLS.get(name, ()) if hasattr(cls, called)]
    if actions and method is None:
        extra_actions = [name for name in dir(cls) if hasattr(getattr(cls, name, None), "mapping")]
        running += [*extra_actions, *chain.from_iterable(_DRF_CALLS.values())]
    return running


def _stacks_on_method(layers: Sequence[Any], cls: type, name: str) -> StackMap:
    """Return the stacks on a method of a view's class.

    Those that `method_decorator` has attached count under the class of the view.
    """
    stacks: StackMap = {}
    for layer in layers:
        for key, attached in _attached_stacks(layer).items():
            stack = attached._replace(method=name)
            if stack.group.startswith(DECORATORS_MODULE):
                group = f"{cls.__module__}.{cls.__qualname__}.{layer.__name__}"
                stack = stack._replace(group=group)
            stacks.setdefault(key, stack)
    return stacks


def default_group(view: Any) -> str:
    """Return the default group of a view: its module and qualified name.

    For a class-based view, these are of its class. For a bound method, they are the class of its
    object and the name of the method, so that classes that inherit it do not share a count. A
    lambda also has the number of its line.
    """
    cls = _class_of(view)
    if cls is not None:
        return _class_group(view, cls)
    function = _innermost_function(view)
    owner = getattr(function, "__self__", None)
    view_func = getattr(owner, "view_func", None)
    if inspect.isfunction(view_func):  # django-ninja's `decorate_view`.
        return default_group(view_func)
    fallback = getattr(function, "__qualname__", type(function).__qualname__)
    name = str(getattr(view, "__qualname__", None) or fallback)
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    # A partial's own module is functools.
    module = getattr(function, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    if code and code.co_name == "<lambda>":
        name += f":{code.co_firstlineno}"
    return f"{module}.{name}"


def _class_group(view: Any, cls: type) -> str:
    """Return the default group of a class-based view, with the actions of a `ViewSet`."""
    group = f"{cls.__module__}.{_class_name(cls)}"
    actions = getattr(view, "actions", None)
    if not isinstance(actions, dict):
        return group
    names = ",".join(sorted(set(actions.values())))
    return f"{group}.{names}"


def _class_name(cls: type) -> str:
    """Return the qualified name of a class; for that of an `@api_view`, the function's name.

    DRF renames such a class, but not its qualified name.
    """
    if cls.__qualname__.rpartition(".")[2] == cls.__name__:
        return cls.__qualname__
    return cls.__name__


def _innermost_function(view: Any) -> Any:
    """Return the function or method that decorators and partials wrap."""
    # `method_decorator` wraps a partial of the bound method.
    function = inspect.unwrap(view, stop=lambda layer: isinstance(layer, (partial, MethodType)))
    return strip_partials(function)


def strip_partials(function: Any) -> Any:
    """Return the function inside a `functools.partial`; any other unchanged."""
    innermost = function
    while isinstance(innermost, partial):
        innermost = innermost.func
    return innermost


def decoration_problem(function: Any) -> str | None:
    """Return why a decorator directly above this function would have no effect, or None.

    Frameworks that register a function and return it unchanged never call what a decorator above
    theirs makes. Of these, only django-ninja leaves a mark on the function.
    """
    name = dotted_name(function)
    if hasattr(function, "_ninja_operation"):
        return (
            f"on {name}: django-ninja has registered the function without it. Write it below "
            "@api.get, @router.post and the like, directly above the function"
        )
    if isinstance(function, staticmethod) or not callable(function):
        kind = type(function).__name__
        return (
            f"on {name}: that is a {kind}, not a function. Write it below the decorator that made "
            f"the {kind}, directly above the function"
        )
    return None
