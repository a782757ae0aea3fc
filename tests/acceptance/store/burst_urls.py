"""Views that receive bursts of requests."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ratelimit_lua import ratelimit


def burst(group: str, request: HttpRequest) -> str:
    return request.GET["burst"]


def views(policy: str) -> list[Any]:
    """Return the URL patterns of a sync and an async view with a limit of 10 under a policy."""

    @ratelimit(f"{policy}-sync", key=burst, rate="10/h", on_store_error=policy)
    def blocking(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    @ratelimit(f"{policy}-async", key=burst, rate="10/h", on_store_error=policy)
    async def coroutine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    return [path(f"{policy}/sync", blocking), path(f"{policy}/async", coroutine)]


urlpatterns = [*views("open"), *views("closed"), *views("local")]
