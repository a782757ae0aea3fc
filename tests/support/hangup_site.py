"""A site whose views take longer than their clients wait, for a server of its own.

`HANGUP_MIDDLEWARE` names what middleware it has beside ours.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.support.redis_server import url

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.support.hangup_site",
    INSTALLED_APPS=["django_ratelimit_lua"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
    MIDDLEWARE=[
        *filter(None, [os.environ["HANGUP_MIDDLEWARE"]]),
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ],
    RATELIMIT_TIMEOUT=10,
    RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
)

import django  # noqa: E402

django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402

from django_ratelimit_lua import ratelimit  # noqa: E402


def stopped(request: HttpRequest, outcome: Any) -> bool:
    """Whether the view did not get to its end."""
    return isinstance(outcome, BaseException)


def finished(request: HttpRequest, outcome: Any) -> bool:
    return not stopped(request, outcome)


async def astopped(request: HttpRequest, outcome: Any) -> bool:
    await asyncio.sleep(0.01)
    return stopped(request, outcome)


class Blocking:
    """A middleware that only knows the blocking way: Django runs it, and what is around it, in a
    thread.
    """

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
asgi = get_asgi_application()
