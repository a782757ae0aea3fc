"""Which limits stand on a view, found without a request."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_ratelimit_lua import CircuitBreaker, circuit, ratelimit
from django_ratelimit_lua.rules.stacks import guards_on, is_behind_login, layers, stacks_on

limited = ratelimit(key="ip", rate="5/m")


class Parent(View):
    @method_decorator(limited)
    def get(self, request: Any) -> Any:
        return request

    @method_decorator([never_cache, limited])
    def found(self, request: Any) -> Any:
        return request

    def options(self, request: Any) -> Any:
        return request.GET.get("q")


class BySuper(Parent):
    async def get(self, request: Any) -> Any:
        return super().get(request)


class ByName(Parent):
    def get(self, request: Any) -> Any:
        return Parent.get(self, request)


class BySelf(Parent):
    def get(self, request: Any) -> Any:
        return self.found(request)


class ByOld(Parent):
    def get(self, request: Any) -> Any:
        return super(ByOld, self).get(request)  # noqa: UP008 - as it may be written


class Other(Parent):
    def get(self, request: Any) -> Any:
        return request.GET.get("q")


@pytest.mark.parametrize(
    ("cls", "found"),
    [(Parent, "get"), (BySuper, "get"), (ByName, "get"), (BySelf, "found"), (ByOld, "get"), (Other, "")],
)
def test_what_a_method_runs_of_its_class_is_looked_at(cls: Any, found: str) -> None:
    """By `super()`, by the name of the parent, by `self`; and not what only sounds like it. It counts under the class
    of the view."""
    named = [(found, f"{__name__}.{cls.__name__}.{found}")] if found else []
    for method in ("GET", "HEAD", None):
        assert [(one.method, one.stack.group) for one in stacks_on(cls.as_view(), method)] == named
    assert stacks_on(cls.as_view(), "POST") == []


def fine(request: Any) -> Any:
    return request


def test_layers_are_what_a_view_wraps() -> None:
    """By `functools.wraps`, by a partial, by a closure alone; a method ends it, and a circle does."""

    def careless(view: Any) -> Any:
        return lambda request: view(request)

    assert list(layers(fine)) == [fine]
    inner = limited(fine)
    for around in (never_cache(inner), functools.partial(inner), careless(inner), careless(never_cache(inner))):
        assert list(layers(around))[-2:] == [inner, fine]
        assert [one.stack.checker for one in stacks_on(around)] == [inner]
    assert len(list(layers(Parent().get))) == 1
    fine.__wrapped__ = never_cache(fine)  # type: ignore[attr-defined]
    try:
        assert len(list(layers(fine))) == 2
    finally:
        del fine.__wrapped__  # type: ignore[attr-defined]


payments, search = CircuitBreaker("payments of a view"), circuit("search of a view", fallback=fine)


class Guarded(View):
    @payments
    def get(self, request: Any) -> Any:
        return request

    @method_decorator([never_cache, search])
    def post(self, request: Any) -> Any:
        return self.get(request)


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (search(fine), ["search"]), (limited(never_cache(search(fine))), ["search"]),
        (search(limited(payments(fine))), ["search", "payments"]), (fine, []), (never_cache(fine), []),
        (method_decorator(search, name="dispatch")(Parent).as_view(), ["search"]), (Guarded.as_view(), ["payments"]),
    ],
)  # fmt: skip
def test_breakers_on_a_view_are_found(view: Any, found: list[str]) -> None:
    """Around it, on its methods, between limits; outermost first, and each once."""
    assert [one.guard.breaker.split()[0] for one in guards_on(view, "GET")] == found
    answers = {"search": "fallback", "payments": "raises"}
    assert [one.guard.instead for one in guards_on(view, "GET")] == [answers[name] for name in found]


def test_breakers_of_what_a_method_runs_are_found() -> None:
    """With what each is called with in front of the request."""
    on_method, run = guards_on(Guarded.as_view(), "POST")
    assert (on_method.guard.breaker, on_method.method, on_method.of) == ("search of a view", "post", ())
    assert (run.guard.breaker, run.method) == ("payments of a view", "get")
    assert isinstance(run.of[0], Guarded)


class Gated(LoginRequiredMixin, Parent):
    pass


@pytest.mark.parametrize(
    ("view", "is_behind"),
    [
        (limited(fine), False), (login_required(limited(fine)), True), (limited(login_required(fine)), False),
        (Parent.as_view(), False), (Gated.as_view(), True), (limited(Gated.as_view()), False),
    ],
)  # fmt: skip
def test_a_login_in_front_of_a_limit_is_seen(view: Any, is_behind: bool, settings: Any) -> None:
    """By the decorator, the mixin or the middleware."""
    assert is_behind_login(view, stacks_on(view, "GET")[0]) is is_behind
    settings.MIDDLEWARE = ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert is_behind_login(view, stacks_on(view, "GET")[0])
