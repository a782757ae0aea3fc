"""The URLs of the test project: a view of every kind, each with limits."""

from __future__ import annotations

import asyncio
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_ratelimit_lua import UNSAFE, ratelimit

SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
LIMITS = "django_ratelimit_lua.middleware.RateLimitMiddleware"


def ok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


async def aok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit(key="ip", rate="2/m")
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("plain")


@ratelimit(key="ip", rate="2/m")
async def coroutine(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("async")


class OnMethod(View):
    @method_decorator(ratelimit(key="ip", rate="2/m"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("get")

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("post")


@method_decorator(ratelimit(key="ip", rate="2/m"), name="dispatch")
class OnClass(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("get")


class Inherits(OnClass):
    pass


@method_decorator(ratelimit(key="ip", rate="2/m"), name="dispatch")
class AsyncOnClass(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("get")


class AsyncOnMethod(View):
    @method_decorator([ratelimit(key="ip", rate="2/m"), ratelimit(key="ip", rate="50/h")])
    async def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"limits": len(request.ratelimit.limits)})


class Wrapped(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("wrapped")


class AlsoWrapped(Wrapped):
    pass


@ratelimit(key="ip", rate="2/m", block=False)
def advisory(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"limited": request.limited, "remaining": request.ratelimit.remaining})


@ratelimit(key="ip", rate="2/m", method=UNSAFE)
def form(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"limited": request.limited})


class BoomError(Exception):
    pass


runs: list[str] = []


@ratelimit(key="ip", rate="5/m")
def broken(request: HttpRequest) -> HttpResponse:
    runs.append("broken")
    raise BoomError


def custom(request: HttpRequest, exception: Any) -> HttpResponse:
    return HttpResponse(f"custom {exception.decision.denied_by}", status=418)


class CustomError(Exception):
    pass


wrapping = ratelimit(key="ip", rate="2/m")
urlpatterns = [
    path("plain", plain),
    path("coroutine", coroutine),
    path("on-method", OnMethod.as_view()),
    path("on-class", OnClass.as_view()),
    path("inherits", Inherits.as_view()),
    path("async-on-class", AsyncOnClass.as_view()),
    path("async-on-method", AsyncOnMethod.as_view()),
    path("wrapped", wrapping(Wrapped.as_view())),
    path("also-wrapped", wrapping(AlsoWrapped.as_view())),
    path("advisory", advisory),
    path("form", form),
    path("broken", broken),
]
