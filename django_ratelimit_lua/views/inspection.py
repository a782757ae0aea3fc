"""The stacks of `@ratelimit` on a view.

A decorator leaves its data as an attribute, under a unique name, on the function that it makes.
`functools.wraps`, `method_decorator` and `as_view` copy such attributes, so they are found on the
function of any URL pattern, and on the methods of its class.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
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
_NAME = "_ratelimit_stack_"
_numbers = count()


def url_patterns(
    resolver: URLResolver | None = None, space: str = "", seen: frozenset[int] = frozenset()
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
            yield pattern, space
        elif id(pattern) not in seen:  # A URLconf may include itself.
            inner = space
            if pattern.namespace:
                inner = f"{space}{pattern.namespace}:"
            yield from url_patterns(pattern, inner, seen | {id(pattern)})


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


Placed = dict[str, Stack]
"""The stacks on a function, by the names of their attributes. Outer decorators have greater names.
"""


def attach_stack(stack: Stack) -> Function:
    """Attach a stack to its function, and return the function."""
    setattr(stack.checker, f"{_NAME}{next(_numbers):015}", stack)
    return stack.checker


def stack_of(function: object) -> Stack | None:
    """Return the stack of limits that a function checks itself.

    Stacks of functions that it wraps are ignored.
    """
    own = (each for each in _placed(function).values() if each.checker is function)
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
    unknown: list[str] = []
    found: Placed = {}
    others: dict[str, Placed] = {}
    around = _layers(view, unknown)
    class_view = next((layer for layer in around if _class_of(layer) is not None), None)
    cls = _class_of(class_view)
    if cls is not None:
        running = _answering(class_view, cls, method)
        answering = _answering(class_view, cls, None)
        for base in cls.__mro__:
            for name, function in vars(base).items():
                if not inspect.isfunction(function):
                    continue
                # Each `dispatch` calls the next.
                is_own = name == "dispatch" or getattr(cls, name) is function
                if is_own and name in running:
                    found = _on_method(_layers(function, unknown), cls, name) | found
                elif not is_own or name not in answering:
                    others[f"{base.__qualname__}.{name}"] = _on_method([function], cls, name)
    hidden: Placed = {}
    for name, placed in others.items():
        if left := {key: placed[key] for key in placed if key not in found}:
            unknown.append(name)
            hidden |= left
    for layer in around:
        found = _placed(layer) | found
    return ViewLimits(_stacks(found), class_view, unknown, _stacks(hidden))


def _stacks(placed: Placed) -> list[Stack]:
    """Return the stacks, without those that another stack checks as well."""
    stacks: list[Stack] = []
    for key in sorted(placed, reverse=True):
        each = placed[key]
        if all(each.view is not other.view for other in stacks):
            stacks.append(each)
    return stacks


def is_behind_login(view: object, stack: Stack) -> bool:
    """Return whether Django requires a login before a stack is reached.

    The login may be required by a middleware, a decorator or a mixin.
    """
    if LOGIN_REQUIRED in settings.MIDDLEWARE and getattr(view, "login_required", True):
        return True
    # `login_required` leaves this on what it makes. Decorators around that copy it; those inside
    # have it not.
    is_closed = hasattr(view, "login_url")
    # The mixin asks in `dispatch`, before the methods. Django's AccessMixin by what it has: to
    # import it, django.contrib.auth would have to be installed.
    cls = _class_of(view)
    asks = cls is not None and (is_closed or hasattr(cls, "handle_no_permission"))
    is_inside = is_closed and not hasattr(stack.checker, "login_url")
    return is_inside or (asks and stack.method not in BEFORE_METHODS)


def _class_of(view: object) -> type | None:
    """Return the class of a view that `as_view()` of Django or DRF made, or None."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if isinstance(cls, type):
        return cls
    return None


def _layers(view: Any, unknown: list[str]) -> list[Any]:
    """Return a function and those that it wraps, outermost first.

    An object that is not a function, or may call several functions, is added to `unknown`.
    """
    found: list[Any] = []
    while view is not None:
        while isinstance(view, partial):
            view = view.func
        inside = [
            cell.cell_contents
            for cell in getattr(view, "__closure__", None) or ()
            if cell != CellType() and inspect.isfunction(cell.cell_contents)
        ]
        if hasattr(view, "__wrapped__"):
            inside = [view.__wrapped__]
        wrapped = next(iter(inside), None)
        if not inspect.isfunction(view) or view in found or len(inside) > 1:
            unknown.append(dotted_name(view))
            wrapped = None
        found.append(view)
        view = wrapped
    return found


def _answering(class_view: object, cls: type, method: str | None) -> list[str]:
    """Return the names of the methods of a class that run for requests of an HTTP method.

    If `method` is None, all HTTP methods are included, and for a `ViewSet` its other URLs as well.
    """
    actions: dict[str, str] = getattr(class_view, "actions", None) or {}
    names = list(getattr(cls, "http_method_names", ()))
    if method is not None:
        names = [method.lower()]
    if "head" in names and "head" not in actions and not hasattr(cls, "head"):
        names.append("get")
    running = ["dispatch", *(actions.get(name, name) for name in names)]
    for name in running:
        if getattr(getattr(cls, name, None), "__module__", "").startswith("rest_framework."):
            running += [called for called in _DRF_CALLS.get(name, ()) if hasattr(cls, called)]
    if actions and method is None:
        extra = [name for name in dir(cls) if hasattr(getattr(cls, name, None), "mapping")]
        running += [*extra, *(called for each in _DRF_CALLS.values() for called in each)]
    return running


def _placed(function: object) -> Placed:
    values = getattr(function, "__dict__", {})
    return {name: values[name] for name in values if name.startswith(_NAME)}


def _on_method(inside: Sequence[Any], cls: type, name: str) -> Placed:
    """Return the stacks on a method.

    Those that `method_decorator` has attached count under the class of the view.
    """
    found: Placed = {}
    for layer in inside:
        for key, placed in _placed(layer).items():
            each = placed._replace(method=name)
            if each.group.startswith(DECORATORS_MODULE):
                each = each._replace(group=f"{cls.__module__}.{cls.__qualname__}.{layer.__name__}")
            found.setdefault(key, each)
    return found


def default_group(view: Any) -> str:
    """Return the default group of a view: its module and qualified name.

    For a method, it is the class of the view that runs, so that views that inherit the method do
    not share a count.
    """
    for attribute in ("view_class", "cls"):  # What `as_view()` of Django and of DRF returns.
        cls = getattr(view, attribute, None)
        if isinstance(cls, type):
            name = f"{cls.__module__}.{cls.__qualname__}"
            actions = getattr(view, "actions", None)
            if isinstance(actions, dict):
                name += "." + ",".join(sorted(set(actions.values())))
            return name
    # `method_decorator` wraps a partial of the bound method.
    function = inspect.unwrap(view, stop=lambda layer: isinstance(layer, (partial, MethodType)))
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    view_func = getattr(owner, "view_func", None)
    if inspect.isfunction(view_func):  # django-ninja's `decorate_view`.
        return default_group(view_func)
    name = str(
        getattr(view, "__qualname__", None)
        or getattr(function, "__qualname__", type(function).__qualname__)
    )
    if owner is not None and not isinstance(owner, (type, ModuleType)):
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    # A partial's own module is functools.
    module = getattr(function, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    if code and code.co_name == "<lambda>":
        name += f":{code.co_firstlineno}"
    return f"{module}.{name}"


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
