"""Views that hold slots, of every kind and with bodies of every kind, and what is counted there.

The views count in Redis how many run at the same time, independently of the package.
"""

from __future__ import annotations

import asyncio
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
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.throttling import SimpleRateThrottle
from tests.support.processes import until
from tests.support.redis_server import url

SLOTS = "3"
CHUNKS = 4
RULES = [
    {
        "name": "at once",
        "path": "/middleware/",
        "key": "get:who",
        "rate": SLOTS,
        "algorithm": "concurrency",
    }
]
counting = redis.Redis.from_url(url())


def running_key(who: str) -> str:
    """Return the key that counts the running views of a client."""
    return f"running:{settings.RATELIMIT_CACHE_PREFIX}{who}"


class Run:
    """A view or body that runs until `end`. Redis counts those that run at the same time."""

    def __init__(self, request: Any) -> None:
        self._key = running_key(request.GET["who"])
        counting.lpush(f"{self._key}:counts", counting.incr(self._key))

    def end(self) -> None:
        counting.decr(self._key)


def chunks(request: Any, run: Run) -> Iterator[bytes]:
    seconds = float(request.GET.get("seconds", 0))
    try:
        for number in range(CHUNKS):
            if number == 2 and "breaks" in request.GET:
                raise ValueError("in the middle of the body")
            yield b"x" * int(request.GET.get("size", 10))
            time.sleep(seconds / CHUNKS)
    finally:
        run.end()


async def achunks(request: Any, run: Run) -> AsyncIterator[bytes]:
    seconds = float(request.GET.get("seconds", 0))
    try:
        for number in range(CHUNKS):
            if number == 2 and "breaks" in request.GET:
                raise ValueError("in the middle of the body")
            yield b"x" * int(request.GET.get("size", 10))
            await asyncio.sleep(seconds / CHUNKS)
    finally:
        run.end()


ENDINGS: dict[str, type[BaseException]] = {
    "raises": ValueError,
    "exits": SystemExit,
    "interrupted": KeyboardInterrupt,
    "closed": GeneratorExit,
}


def answer(request: Any, ending: str) -> Any:
    """Return a kind of response, or None, or raise."""
    run = Run(request)
    if ending == "stream":
        return StreamingHttpResponse(chunks(request, run))
    if ending == "astream":
        return StreamingHttpResponse(achunks(request, run))
    try:
        time.sleep(float(request.GET.get("seconds", 0)))
        if ending in ENDINGS:
            raise ENDINGS[ending]("raised by the view")
    finally:
        run.end()
    if ending == "file":
        body = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
        body.write(b"x" * 100_000)
        body.seek(0)
        return FileResponse(body)
    return None if ending == "nothing" else HttpResponse("done")


async def aanswer(request: HttpRequest, ending: str) -> Any:
    if ending == "plain":
        run = Run(request)
        try:
            await asyncio.sleep(float(request.GET.get("seconds", 0)))
        finally:
            run.end()
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


class Rest(APIView):
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


class SlotsInUse:
    """The slots of a site with a prefix, and its running views."""

    def __init__(self, direct: redis.Redis, prefix: str) -> None:
        self._direct, self._prefix = direct, prefix

    @property
    def held(self) -> int:
        """Return the number of held slots."""
        seconds, rest = self._direct.time()
        keys = self._direct.scan_iter(f"{self._prefix}*:c", count=10_000)
        now = seconds * 1_000_000 + rest
        return sum(self._direct.zcount(key, f"({now}", "+inf") for key in keys)

    def running(self, who: str) -> int:
        """Return the number of running views and bodies of a client."""
        return int(self._direct.get(f"running:{self._prefix}{who}") or 0)

    def max_running(self, who: str) -> int:
        """Return the maximum number of views and bodies of a client that ran at the same time."""
        counts = self._direct.lrange(f"running:{self._prefix}{who}:counts", 0, -1)
        return max(map(int, counts), default=0)

    def until_free(self, seconds: float = 20) -> None:
        """Wait until no slot is held."""
        until(lambda: self.held == 0, "all slots are released", seconds)
