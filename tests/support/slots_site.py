"""A site whose views hold slots, by every face and with bodies of every kind, for a server of its
own or none.

What runs at the same time is counted in Redis, past everything of ours: `SLOTS_PREFIX` names the
keys.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from tests.support.redis_server import url

SLOTS = "3"
PREFIX = os.environ.get("SLOTS_PREFIX", "slots-site:")
CHUNKS = 4
if not settings.configured:
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.support.slots_site",
        INSTALLED_APPS=["django_ratelimit_lua"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
        MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
        RATELIMIT_RULES=[
            {
                "name": "at once",
                "path": "/middleware/",
                "key": "get:who",
                "rate": SLOTS,
                "algorithm": "concurrency",
            },
        ],
        RATELIMIT_TIMEOUT=10,
        RATELIMIT_SLOT_SECONDS=float(os.environ.get("SLOTS_SECONDS", "10")),
        RATELIMIT_CACHE_PREFIX=PREFIX,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )

    import django

    django.setup()

from rest_framework.views import APIView  # noqa: E402

from django_ratelimit_lua import ratelimit  # noqa: E402
from django_ratelimit_lua.throttling import SimpleRateThrottle  # noqa: E402

counting = redis.Redis.from_url(url())


class Runs:
    """One that runs, from now on until it has ended: how many do is noted."""

    def __init__(self, request: Any) -> None:
        self._key = f"running:{PREFIX}{request.GET['who']}"
        now = counting.incr(self._key)
        counting.lpush(f"{self._key}:seen", now)

    def end(self) -> None:
        counting.decr(self._key)


def chunks(request: Any, runs: Runs) -> Iterator[bytes]:
    seconds = float(request.GET.get("seconds", 0))
    try:
        for number in range(CHUNKS):
            if number == 2 and "breaks" in request.GET:
                raise ValueError("in the middle of the body")
            yield b"x" * int(request.GET.get("size", 10))
            time.sleep(seconds / CHUNKS)
    finally:
        runs.end()


async def achunks(request: Any, runs: Runs) -> AsyncIterator[bytes]:
    seconds = float(request.GET.get("seconds", 0))
    try:
        for number in range(CHUNKS):
            if number == 2 and "breaks" in request.GET:
                raise ValueError("in the middle of the body")
            yield b"x" * int(request.GET.get("size", 10))
            await asyncio.sleep(seconds / CHUNKS)
    finally:
        runs.end()


ENDINGS: dict[str, type[BaseException]] = {
    "raises": ValueError,
    "exits": SystemExit,
    "interrupted": KeyboardInterrupt,
    "closed": GeneratorExit,
}


def answer(request: Any, ending: str) -> Any:
    """A response of a kind, or what comes in its place."""
    runs = Runs(request)
    if ending == "stream":
        return StreamingHttpResponse(chunks(request, runs))
    if ending == "astream":
        return StreamingHttpResponse(achunks(request, runs))
    try:
        time.sleep(float(request.GET.get("seconds", 0)))
        if ending in ENDINGS:
            raise ENDINGS[ending]("raised by the view")
    finally:
        runs.end()
    if ending == "file":
        body = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
        body.write(b"x" * 100_000)
        body.seek(0)
        return FileResponse(body)
    return None if ending == "nothing" else HttpResponse("done")


async def aanswer(request: HttpRequest, ending: str) -> Any:
    if ending == "plain":
        runs = Runs(request)
        try:
            await asyncio.sleep(float(request.GET.get("seconds", 0)))
        finally:
            runs.end()
        return HttpResponse("done")
    return (
        await sync_to_async(answer)(request, ending)
        if ending == "file"
        else answer(request, ending)
    )


limit = ratelimit("view", "get:who", SLOTS, algorithm="concurrency")


@method_decorator(limit, name="dispatch")
class Class(View):
    def get(self, request: HttpRequest, ending: str) -> Any:
        return answer(request, ending)


class Throttle(SimpleRateThrottle):
    scope = "throttle"
    rate = SLOTS
    algorithm = "concurrency"

    def get_cache_key(self, request: Any, view: Any) -> str:
        return str(request.GET["who"])


class Rest(APIView):  # type: ignore[misc] # DRF is not typed.
    throttle_classes = (Throttle,)

    def get(self, request: Any, ending: str) -> Any:
        return answer(request, ending)


urlpatterns = [
    path("sync/<ending>/", limit(answer)),
    path("async/<ending>/", limit(aanswer)),
    path("class/<ending>/", Class.as_view()),
    path("drf/<ending>/", Rest.as_view()),
    path("middleware/<ending>/", answer),
    path("middleware/async/<ending>/", aanswer),
]
FACES = ("sync", "async", "class", "drf", "middleware", "middleware/async")

if os.environ.get("SLOTS_PREFIX"):
    from django.core.asgi import get_asgi_application
    from django.core.wsgi import get_wsgi_application

    from django_ratelimit_lua.asgi import finish_at_shutdown

    asgi, wsgi = finish_at_shutdown(get_asgi_application()), get_wsgi_application()
