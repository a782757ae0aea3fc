"""The limits on a view, found without a request."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.decorators import api_view
from rest_framework.generics import ListCreateAPIView, UpdateAPIView
from rest_framework.viewsets import ModelViewSet

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.views.inspection import default_group, inspect_view, is_behind_login

limited = ratelimit(key="ip", rate="5/m")
hourly = ratelimit(key="ip", rate="50/h")


def fine(request: Any) -> Any:
    return request


class Parent(View):
    @method_decorator(limited)
    def get(self, request: Any) -> Any:
        return request

    @method_decorator([never_cache, limited])
    def found(self, request: Any) -> Any:
        return request

    def options(self, request: Any) -> Any:
        return request


class Child(Parent):
    def get(self, request: Any) -> Any:
        return super().get(request)


@method_decorator([hourly, never_cache, limited], name="dispatch")
class OnDispatch(View):
    @method_decorator(hourly)
    @method_decorator(limited)
    def get(self, request: Any) -> Any:
        return request


class Gated(LoginRequiredMixin, OnDispatch):
    pass


def rates(view: Any, method: str | None = "GET") -> list[tuple[str, ...]]:
    return [
        (stack.method, *map(str, stack.rules[0].template.rates))
        for stack in inspect_view(view, method).stacks
    ]


def careless(view: Any) -> Any:
    return lambda request: view(request)


def of_two(view: Any, other: Any) -> Any:
    return lambda request: (view if request.GET else other)(request)


DISPATCH = [("dispatch", "50/h"), ("dispatch", "5/m"), ("get", "50/h"), ("get", "5/m")]


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (fine, []),
        (limited(fine), [("", "5/m")]),
        (never_cache(hourly(never_cache(limited(fine)))), [("", "50/h"), ("", "5/m")]),
        (careless(never_cache(limited(fine))), [("", "5/m")]),
        (never_cache(functools.partial(limited(fine))), [("", "5/m")]),
        (OnDispatch.as_view(), DISPATCH),
        (Gated.as_view(), DISPATCH),
        (limited(never_cache(OnDispatch.as_view())), [("", "5/m"), *DISPATCH]),
    ],
)
def test_limits_on_a_view_are_found(view: Any, found: list[Any]) -> None:
    """They are found from the outermost inwards, whichever other decorators there are."""
    for method in ("GET", "HEAD", None):
        assert rates(view, method) == found
    assert inspect_view(view, "GET").unknown == []


def test_stacked_limits_are_one_stack() -> None:
    """Stacked limits are decided in one call, so they are returned as one stack."""
    (stack,) = inspect_view(never_cache(hourly(limited(fine)))).stacks
    assert [str(rule.template.rates[0]) for rule in stack.rules] == ["50/h", "5/m"]


def test_a_method_counts_under_the_class_of_the_view() -> None:
    """It does not count under the class that defines it."""
    cls = type("Heir", (OnDispatch,), {})
    names = [
        stack.group.removeprefix(f"{__name__}.")
        for stack in inspect_view(cls.as_view(), "GET").stacks
    ]
    assert names == ["Heir.dispatch"] * 2 + ["Heir.get"] * 2


@pytest.mark.parametrize(
    ("view", "unknown", "groups"),
    [
        (Parent.as_view(), ["Parent.found"], ["Parent.found"]),
        (Child.as_view(), ["Parent.get", "Parent.found"], ["Child.found", "Child.get"]),
        (of_two(limited(fine), fine), [f"{__name__}.of_two.<locals>.<lambda>"], []),
        (Parent().get, [f"{__name__}.Parent.get"], []),
    ],
)
def test_limits_that_cannot_be_read_are_reported_as_unknown(
    view: Any, unknown: list[str], groups: list[str]
) -> None:
    """These are methods that the view may call, and functions inside another callable."""
    found = inspect_view(view, "GET")
    assert found.unknown == unknown
    assert [stack.group.removeprefix(f"{__name__}.") for stack in found.hidden] == groups


def test_a_method_limited_for_other_requests_is_not_reported_as_unknown() -> None:
    """A limit on the method for POST is not reported as unknown for GET."""

    class Both(View):
        get = Parent.options
        post = Parent.get

    assert (rates(Both.as_view(), "GET"), inspect_view(Both.as_view(), "GET").unknown) == ([], [])
    assert rates(Both.as_view(), "POST") == [("post", "5/m")]


@method_decorator(limited, name="create")
class Created(ListCreateAPIView):
    pass


@method_decorator(limited, name="update")
class Updated(UpdateAPIView):
    pass


@method_decorator(limited, name="update")
class Rows(ModelViewSet):
    pass


@pytest.mark.parametrize(
    ("view", "method", "name"),
    [
        (Created.as_view(), "POST", "create"),
        (Created.as_view(), "GET", ""),
        (Updated.as_view(), "PATCH", "update"),
        (Rows.as_view({"patch": "partial_update"}), "PATCH", "update"),
        (Rows.as_view({"get": "list"}), "GET", ""),
    ],
)
def test_methods_that_rest_framework_calls_are_found(view: Any, method: str, name: str) -> None:
    """Limits on the methods of REST framework's generic views, mixins and view sets are found."""
    assert rates(view, method) == ([(name, "5/m")] if name else [])
    assert inspect_view(view, method).unknown == []


class Asking(LoginRequiredMixin, View):
    @method_decorator(limited)
    def get(self, request: Any) -> Any:
        return request


@pytest.mark.parametrize(
    ("view", "is_behind"),
    [
        (limited(fine), False),
        (login_required(limited(fine)), True),
        (limited(login_required(fine)), False),
        (OnDispatch.as_view(), False),
        (Asking.as_view(), True),
        (limited(Asking.as_view()), False),
    ],
)
def test_a_login_before_a_limit_is_detected(view: Any, is_behind: bool, settings: Any) -> None:
    """The decorator, the mixin or the middleware requires it."""
    assert is_behind_login(view, inspect_view(view, "GET").stacks[0]) is is_behind
    settings.MIDDLEWARE = ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert is_behind_login(view, inspect_view(view, "GET").stacks[0])


def test_views_of_functions_in_drf_have_groups_of_their_own() -> None:
    """The group of an `@api_view` is its function, so two views do not share a count."""

    @api_view()
    def search(request: Any) -> None: ...

    @api_view()
    def export(request: Any) -> None: ...

    groups = [default_group(view) for view in (search, export)]
    assert groups == [f"{__name__}.search", f"{__name__}.export"]
