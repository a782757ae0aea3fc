"""`@ratelimit` on the functions of django-ninja, and on whatever other decorators return."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from ninja import NinjaAPI, Router
from ninja.decorators import decorate_view

from django_ratelimit_lua import LimitError, RateLimiter, ratelimit

Decorator = Callable[[Any], Any]


def limit() -> Decorator:
    return ratelimit(key="ip", rate="2/h")


def serve(api: NinjaAPI, settings: Any) -> Client:
    urls = types.ModuleType("urls")
    vars(urls)["urlpatterns"] = [path("", api.urls)]
    settings.ROOT_URLCONF = urls
    return Client()


def test_a_limit_below_the_decorator_of_ninja_limits_the_view(settings: Any) -> None:
    """Functions and coroutines have counts of their own, with `decorate_view` as well."""
    api = NinjaAPI(urls_namespace="below")

    @api.get("/plain")
    @limit()
    def plain(request: HttpRequest) -> dict[str, int]:
        return {"found": 1}

    @api.get("/coroutine")
    @limit()
    async def coroutine(request: HttpRequest) -> dict[str, int]:
        return {"found": 1}

    @api.get("/decorated")
    @decorate_view(limit())
    def decorated(request: HttpRequest) -> dict[str, int]:
        return {"found": 1}

    @api.get("/another")
    @decorate_view(limit())
    def another(request: HttpRequest) -> dict[str, int]:
        return {"found": 1}

    client = serve(api, settings)
    for name in ("plain", "coroutine", "decorated", "another"):
        assert [client.get(f"/{name}").status_code for _ in range(3)] == [200, 200, 429], name


@pytest.mark.parametrize("decorator", [limit(), RateLimiter("ninja", "2/h")], ids=["view", "any"])
@pytest.mark.parametrize("between", [False, True], ids=["directly", "between"])
def test_a_limit_above_the_decorator_of_ninja_is_an_error_at_import(
    decorator: Decorator, between: bool
) -> None:
    """The limit would never apply. The error names the right order."""
    router = Router()

    def view(request: HttpRequest) -> dict[str, int]:
        return {}

    registered: Any = router.post("/")(view)
    if between:
        registered = functools.wraps(registered)(lambda request: registered(request))
    with pytest.raises(LimitError, match=r"view: django-ninja .* below @api.get, @router.post"):
        decorator(registered)


@pytest.mark.parametrize("decorator", [limit(), RateLimiter("ninja", "2/h")], ids=["view", "any"])
@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_a_limit_above_what_is_not_a_function_is_an_error_at_import(
    decorator: Decorator, kind: Callable[[Any], Any]
) -> None:
    """The error names the kind of object and the right order."""

    def view(request: HttpRequest) -> None: ...

    name = kind.__name__
    with pytest.raises(LimitError, match=rf"that is a {name}, .* below the decorator that made"):
        decorator(kind(view))


def test_limits_work_on_static_methods_and_class_methods(rf: RequestFactory) -> None:
    """On a class method, a limit without `method_decorator` is an error at import."""

    class Pages:
        @staticmethod
        @limit()
        def static(request: HttpRequest) -> int:
            return 200

        @classmethod
        @method_decorator(limit())
        def of_class(cls, request: HttpRequest) -> int:
            return 200

    def statuses(view: Any) -> list[int]:
        answers = [view(rf.get("/")) for _ in range(3)]
        return [getattr(answer, "status_code", answer) for answer in answers]

    assert statuses(Pages.static) == [200, 200, 429]
    assert statuses(Pages.of_class) == [200, 200, 429]
    with pytest.raises(LimitError, match="On a method, use"):

        class Wrong:
            @classmethod
            @limit()
            def of_class(cls, request: HttpRequest) -> int:
                return 200
