"""The methods that a limit counts: GET includes HEAD, and an unknown method is an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.throttling import SimpleRateThrottle
from tests.urls import LIMITS

runs: list[str] = []


def ok(request: HttpRequest) -> HttpResponse:
    runs.append(str(request.method))
    return HttpResponse("ok")


@ratelimit(key="ip", rate="2/m", method="GET")
def function(request: HttpRequest) -> HttpResponse:
    return ok(request)


@ratelimit(key="ip", rate="2/m", method=["get", "POST"])
async def coroutine(request: HttpRequest) -> HttpResponse:
    return ok(request)


class OnMethod(View):
    @method_decorator(ratelimit(key="ip", rate="2/m", method="GET"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return ok(request)


@method_decorator(ratelimit(key="ip", rate="2/m", method="GET"), name="dispatch")
class OnClass(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return ok(request)


@ratelimit(key="ip", rate="50/m", method="POST")
def retuned(request: HttpRequest) -> HttpResponse:
    return ok(request)


class ByMethod(SimpleRateThrottle):
    rate = {"GET": "2/h", "*": None}  # noqa: RUF012 - as users write it

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return self.get_ident(request)


class Throttled(APIView):
    authentication_classes = ()
    throttle_classes = (ByMethod,)

    def get(self, request: Any) -> Response:
        ok(request)
        return Response({})


urlpatterns = [
    path("function", function),
    path("coroutine", coroutine),
    path("on-method", OnMethod.as_view()),
    path("on-class", OnClass.as_view()),
    path("throttled", Throttled.as_view()),
    path("ruled", ok),
    path("retuned", retuned),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]
    rule = {"method": "GET", "key": "ip", "rate": "2/m"}
    group = f"{__name__}.retuned"
    settings.RATELIMIT_RULES = [
        {"name": "ruled", "path": "/ruled", **rule},
        {"name": group, "group": group, **rule},
    ]
    runs.clear()


EVERYWHERE = ["function", "coroutine", "on-method", "on-class", "throttled", "ruled", "retuned"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("methods", [["GET", "HEAD"], ["HEAD", "GET"]])
def test_a_limit_on_get_counts_head(where: str, kind: str, methods: list[str]) -> None:
    """Both share a count, whichever comes first. Two of four requests run the view."""
    client: Any = Client() if kind == "sync" else AsyncClient()

    def status(method: str) -> int:
        response = client.generic(method, f"/{where}")
        return (asyncio.run(response) if kind == "async" else response).status_code

    assert list(map(status, methods * 2)) == [200, 200, 429, 429]
    assert runs == methods


def test_a_limit_on_head_counts_only_head(rf: RequestFactory) -> None:
    """A limit on HEAD lets GET pass, and a limit on other methods counts neither."""
    head = ratelimit("head", "ip", "1/m", "HEAD")(ok)
    assert [head(rf.get("/")).status_code for _ in range(3)] == [200, 200, 200]
    assert [head(rf.head("/")).status_code for _ in range(2)] == [200, 429]
    posts = ratelimit("posts", "ip", "0/m", ["POST", "OPTIONS"])(ok)
    requests = (rf.head("/"), rf.get("/"), rf.post("/"))
    assert [posts(request).status_code for request in requests] == [200, 200, 429]


def test_a_throttle_may_give_head_its_own_rate() -> None:
    """HEAD then has a separate count. Names of methods are case-insensitive."""

    class Both(ByMethod):
        rate = {"get": "1/h", "Head": "2/h"}  # noqa: RUF012 - as users write it

    view = type("View", (Throttled,), {"throttle_classes": (Both,)}).as_view()
    factory = RequestFactory()
    assert [view(factory.get("/")).status_code for _ in range(2)] == [200, 429]
    assert [view(factory.head("/")).status_code for _ in range(3)] == [200, 200, 429]


def test_webdav_methods_are_accepted(rf: RequestFactory) -> None:
    """A limit for methods of WebDAV counts them."""
    middleware = RateLimitMiddleware(ok)
    view = ratelimit("dav", "ip", "1/m", ["PROPFIND", "REPORT"])(middleware)
    requests = [rf.generic(method, "/") for method in ("PROPFIND", "REPORT", "GET")]
    assert [view(request).status_code for request in requests] == [200, 429, 200]
