"""The compared limiters, each with its public API.

Each has a number of limits (1000/h, 1001/h, ...) of the same identity, and returns whether a hit is
admitted. If it cannot decide several limits at once, it decides one after the other, as in a
project. A package that is missing or fails has a row with the error.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.measure import BARE, DIRECT
from tests.support.redis_server import url

Decide = Callable[[str], Any]
AsyncDecide = Callable[[str], Awaitable[Any]]
View = Callable[..., Any]
Decorate = Callable[[int, View], View]

RATE = 1000
HEADER = "X-Client"
"""The header by which requests are counted."""


@dataclass(frozen=True)
class Limiter:
    """One row of the tables.

    - `make`, `amake`: given a number of limits, whether a hit is let through; `amake` is called in
      an event loop;
    - `beyond`: the row of the same view without a limit, whose cost is subtracted.
    """

    name: str
    make: Callable[[int], Decide] | None = None
    amake: Callable[[int], AsyncDecide] | None = None
    beyond: str = ""


# Redis alone


def bare(limits: int) -> Decide:
    import redis

    client, sha = redis.Redis.from_url(url()), DIRECT.script_load(BARE)
    return lambda identity: all(
        client.evalsha(sha, 1, f"bare:{number}:{identity}") for number in range(limits)
    )


def abare(limits: int) -> AsyncDecide:
    import redis.asyncio

    client, sha = redis.asyncio.Redis.from_url(url()), DIRECT.script_load(BARE)

    async def decide(identity: str) -> bool:
        return all(
            [await client.evalsha(sha, 1, f"bare:{number}:{identity}") for number in range(limits)]
        )

    return decide


# Libraries that count any identity


def ours(algorithm: str) -> Limiter:
    def make(limits: int) -> Any:
        from django_ratelimit_lua import RateLimiter

        return RateLimiter(
            f"{algorithm}-{limits}",
            [f"{RATE + number}/h" for number in range(limits)],
            algorithm=algorithm,
        )

    return Limiter(
        f"RateLimiter, {algorithm}",
        lambda limits: make(limits).hit,
        lambda limits: make(limits).ahit,
    )


def limits_library(name: str, strategy: str, implementation: str = "redispy") -> Limiter:
    def make(limits: int) -> Decide:
        from limits import RateLimitItemPerHour, storage, strategies

        ask = getattr(strategies, strategy)(storage.storage_from_string(url())).hit
        items = [
            RateLimitItemPerHour(RATE + number, namespace=strategy) for number in range(limits)
        ]
        return lambda identity: all(ask(item, identity) for item in items)

    def amake(limits: int) -> AsyncDecide:
        from limits import RateLimitItemPerHour, storage
        from limits.aio import strategies

        store = storage.storage_from_string(f"async+{url()}", implementation=implementation)
        ask = getattr(strategies, strategy)(store).hit
        items = [
            RateLimitItemPerHour(RATE + number, namespace=strategy) for number in range(limits)
        ]

        async def decide(identity: str) -> bool:
            return all([await ask(item, identity) for item in items])

        return decide

    return Limiter(f"limits, {name}", make if implementation == "redispy" else None, amake)


def throttled(using: str) -> Limiter:
    def make(limits: int) -> Decide:
        from throttled import RedisStore, Throttled, rate_limiter

        store = RedisStore(server=url())
        made = [
            Throttled(
                using=using,
                quota=rate_limiter.per_hour(RATE + number),
                store=store,
                key_prefix=f"limit{number}",
            )
            for number in range(limits)
        ]
        return lambda identity: not any(one.limit(identity).limited for one in made)

    def amake(limits: int) -> AsyncDecide:
        from throttled.asyncio import RedisStore, Throttled, rate_limiter

        store = RedisStore(server=url())
        made = [
            Throttled(
                using=using,
                quota=rate_limiter.per_hour(RATE + number),
                store=store,
                key_prefix=f"limit{number}",
            )
            for number in range(limits)
        ]

        async def decide(identity: str) -> bool:
            return not any([(await one.limit(identity)).limited for one in made])

        return decide

    return Limiter(f"throttled-py, {using}", make, amake)


# Views


def _answer() -> Any:
    from django.http import HttpResponse

    return HttpResponse("ok", headers={"Content-Length": "2"})


def undecorated() -> View:
    def answer(request: Any) -> Any:
        return _answer()

    return answer


def async_undecorated() -> View:
    async def answer(request: Any) -> Any:
        return _answer()

    return answer


def plain(limits: int, view: View) -> View:
    return view


def decorated(limits: int, view: View) -> View:
    from django_ratelimit_lua import ratelimit

    return ratelimit(
        key="header:x-client", rate=[f"{RATE + number}/h" for number in range(limits)]
    )(view)


def django_ratelimit(limits: int, view: View) -> View:
    from django_ratelimit.decorators import ratelimit

    for number in range(limits):
        view = ratelimit(key="header:x-client", rate=f"{RATE + number}/h", group="bench")(view)
    return view


def smart(algorithm: str, *, is_async: bool = False) -> Decorate:
    def decorate(limits: int, view: View) -> View:
        from django_smart_ratelimit import aratelimit, ratelimit

        for number in range(limits):

            def key(request: Any, *args: Any, number: int = number, **kwargs: Any) -> str:
                return f"{algorithm}:{number}:{request.headers[HEADER]}"

            rate = f"{RATE + number}/h"
            view = (
                aratelimit(key=key, rate=rate)(view)
                if is_async
                else ratelimit(key, rate, algorithm=algorithm)(view)
            )
        return view

    return decorate


def drf(base: Callable[[], type] | None) -> Decorate:
    """A view of DRF with a number of throttles of a class."""

    def decorate(limits: int, view: View) -> View:
        from rest_framework.response import Response
        from rest_framework.views import APIView

        class Throttled(APIView):
            authentication_classes = ()
            throttle_classes = (
                tuple(_throttle(base(), number) for number in range(limits)) if base else ()
            )

            def get(self, request: object) -> Response:
                return Response("ok", headers={"Content-Length": "4"})

        return Throttled.as_view()

    return decorate


def _throttle(base: type, number: int) -> type:
    def get_cache_key(self: Any, request: Any, view: Any) -> str:
        return f"{self.scope}:{request.headers[HEADER]}"

    return type(
        f"Throttle{number}",
        (base,),
        {"scope": f"bench{number}", "rate": f"{RATE + number}/h", "get_cache_key": get_cache_key},
    )


def _theirs() -> type:
    from rest_framework.throttling import SimpleRateThrottle

    return SimpleRateThrottle


def _ours() -> type:
    from django_ratelimit_lua.throttling import SimpleRateThrottle

    return SimpleRateThrottle


def slug(name: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _request(identity: str) -> Any:
    from django.http import HttpRequest

    request = HttpRequest()
    request.method = "GET"
    request.META = {
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "bench",
        "SERVER_PORT": "80",
        "HTTP_X_CLIENT": identity,
    }
    return request


def _asked(decorate: Decorate) -> Callable[[int], Decide]:
    def make(limits: int) -> Decide:
        view = decorate(limits, undecorated())
        return lambda identity: view(_request(identity)).status_code == 200

    return make


def _async_asked(decorate: Decorate) -> Callable[[int], AsyncDecide]:
    def make(limits: int) -> AsyncDecide:
        view = decorate(limits, async_undecorated())

        async def decide(identity: str) -> bool:
            return bool((await view(_request(identity))).status_code == 200)

        return decide

    return make


VIEW, DRF_VIEW = "a view", "a view of DRF"
VIEWS: dict[str, Decorate] = {
    VIEW: plain,
    "@ratelimit": decorated,
    "django-ratelimit": django_ratelimit,
    "django-smart-ratelimit, fixed_window": smart("fixed_window"),
    "django-smart-ratelimit, sliding_window": smart("sliding_window"),
    "django-smart-ratelimit, token_bucket": smart("token_bucket"),
    DRF_VIEW: drf(None),
    "DRF's throttles": drf(_theirs),
    "our throttles for DRF": drf(_ours),
}
"""Ways to limit a view."""

ASYNC_VIEWS: dict[str, Decorate] = {
    VIEW: plain,
    "@ratelimit": decorated,
    "django-smart-ratelimit, aratelimit": smart("", is_async=True),
}
"""Those that are made for `async def` views."""


def undecorated_name(name: str) -> str:
    """The view without a limit that is the same otherwise."""
    return DRF_VIEW if "DRF" in name else VIEW


BARE_NAME = "redis-py, bare EVALSHA"
LIMITERS = [
    Limiter(BARE_NAME, bare, abare),
    *map(ours, ("token_bucket", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket")),
    limits_library("fixed window", "FixedWindowRateLimiter"),
    limits_library("moving window", "MovingWindowRateLimiter"),
    limits_library("sliding window counter", "SlidingWindowCounterRateLimiter"),
    limits_library("fixed window, by coredis", "FixedWindowRateLimiter", "coredis"),
    *map(throttled, ("fixed_window", "sliding_window", "token_bucket", "leaking_bucket", "gcra")),
]
LIMITERS += [
    Limiter(name, _asked(decorate), beyond=undecorated_name(name))
    for name, decorate in VIEWS.items()
]
LIMITERS += [
    Limiter(
        f"{name}, async", amake=_async_asked(decorate), beyond=f"{undecorated_name(name)}, async"
    )
    for name, decorate in ASYNC_VIEWS.items()
]
