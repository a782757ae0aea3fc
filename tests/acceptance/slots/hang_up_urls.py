"""Views that take longer than their clients wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ratelimit_lua import ratelimit


def stopped(request: HttpRequest, outcome: Any) -> bool:
    """Return whether the view was cancelled."""
    return isinstance(outcome, BaseException)


def finished(request: HttpRequest, outcome: Any) -> bool:
    return not stopped(request, outcome)


async def astopped(request: HttpRequest, outcome: Any) -> bool:
    await asyncio.sleep(0.01)
    return stopped(request, outcome)


class Blocking:
    """Sync middleware: Django runs it, and the middleware around it, in a thread."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)


async def export(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(float(request.GET.get("seconds", 0)))
    return HttpResponse("exported")


def blocking_export(request: HttpRequest) -> HttpResponse:
    time.sleep(float(request.GET.get("seconds", 0)))
    return HttpResponse("exported")


LIMITS: dict[str, Any] = {
    "costs": ratelimit("costs", "get:who", "100/h", cost_after=lambda request, outcome: 30),
    "counts": ratelimit("counts", "get:who", "100/h", count_if=stopped),
    "acounts": ratelimit("acounts", "get:who", "100/h", count_if=astopped),
    "returns": ratelimit("returns", "get:who", "100/h", count_if=finished),
    "resets": ratelimit("resets", "get:who", "100/h", reset_if=stopped),
    "keeps": ratelimit("keeps", "get:who", "100/h", reset_if=finished),
}
urlpatterns = [
    *(path(f"async/{name}/", limit(export)) for name, limit in LIMITS.items()),
    *(path(f"sync/{name}/", limit(blocking_export)) for name, limit in LIMITS.items()),
]
