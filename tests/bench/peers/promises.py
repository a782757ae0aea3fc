"""The promises that each limiter keeps, measured with limits of ten.

The cases are simultaneous requests, the edge of a window, several limits, and faults of Redis.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.test import override_settings

from tests.bench.measure import DIRECT
from tests.bench.peers.limiters import View, undecorated
from tests.bench.peers.rounds import Failed, failure
from tests.support.redis_server import server

Ask = Callable[..., str]
"""Ask for one request, with an identity for each limit; returns the status, or the exception."""
Make = Callable[[Sequence[str]], Ask]
"""Given the rates of some limits, a view or a limiter with all of them."""

LIMIT, REQUESTS = 10, 100
MOMENTS, CLIENTS = 30, 8
MAX_SECONDS = 20
ALLOWED = "200"
SECONDS = {"s": 1, "h": 3600}


class Promises(NamedTuple):
    """The measured behaviour.

    - `at_once`: how many of 100 simultaneous requests passed a limit of 10;
    - `in_a_second`: the most that passed within a second of a limit of 10 a second;
    - `lost`: how much of one limit was used up by three requests that another refused;
    - `hung`, `down`: the answer while Redis hangs (with the seconds) or is gone;
    - `retry_after`: whether a refusal has this header.
    """

    at_once: int
    in_a_second: int
    lost: int
    hung: str
    down: str
    retry_after: str


def _header(number: int) -> str:
    return f"x-client-{number}"


def _view(stack: Callable[[View, Sequence[str]], View]) -> Make:
    def make(rates: Sequence[str]) -> Ask:
        from django.http import HttpRequest

        view = stack(undecorated(), rates)

        def ask(*identities: str, retry_after: bool = False) -> str:
            request = HttpRequest()
            request.method = "GET"
            request.META = {"REMOTE_ADDR": "127.0.0.1", "SERVER_NAME": "x", "SERVER_PORT": "80"}
            for number, identity in enumerate(identities):
                request.META[f"HTTP_X_CLIENT_{number}"] = identity
            try:
                response = view(request)
            except PermissionDenied:  # Django's answer to this exception.
                return "no" if retry_after else "403"
            except Exception as error:
                return type(error).__name__
            if retry_after:
                return "yes" if response.has_header("Retry-After") else "no"
            return str(response.status_code)

        return ask

    return make


def _ours(view: View, rates: Sequence[str]) -> View:
    from django_ratelimit_lua import ratelimit

    for number, rate in reversed(list(enumerate(rates))):
        view = ratelimit(group=f"try-{rate}", key=f"header:{_header(number)}", rate=rate)(view)
    return view


def _django_ratelimit(view: View, rates: Sequence[str]) -> View:
    from django_ratelimit.decorators import ratelimit

    for number, rate in reversed(list(enumerate(rates))):
        view = ratelimit(group=f"try-{rate}", key=f"header:{_header(number)}", rate=rate)(view)
    return view


def _smart(algorithm: str) -> Callable[[View, Sequence[str]], View]:
    def stack(view: View, rates: Sequence[str]) -> View:
        from django_smart_ratelimit import ratelimit

        for number, rate in reversed(list(enumerate(rates))):

            def key(request: Any, *args: Any, number: int = number, **kwargs: Any) -> str:
                return f"try:{algorithm}:{number}:{request.headers[_header(number)]}"

            view = ratelimit(key, rate, algorithm=algorithm)(view)
        return view

    return stack


def _trafficwatch(view: View, rates: Sequence[str]) -> View:
    from django_trafficwatch import trafficwatch_rule
    from django_trafficwatch.middleware import TrafficWatchMiddleware

    for number, rate in enumerate(rates):
        limit, _, unit = rate.partition("/")

        def key(request: Any, number: int = number) -> str:
            return str(request.headers[_header(number)])

        view = trafficwatch_rule(
            SECONDS[unit], int(limit), name=f"try-{number}-{unit}", key_func=key
        )(view)
    middleware = TrafficWatchMiddleware(view)

    def asked(request: Any) -> Any:
        return middleware.process_view(request, view, (), {}) or middleware(request)

    return asked


def _modern_rest(view: View, rates: Sequence[str]) -> View:
    import redis
    from dmr import Controller
    from dmr.plugins.pydantic import PydanticSerializer
    from dmr.throttling import SyncThrottle
    from dmr.throttling.backends.redis import SyncRedis
    from dmr.throttling.cache_keys import BaseThrottleCacheKey

    from tests.support.redis_server import url

    class Header(BaseThrottleCacheKey):
        def __call__(self, endpoint: Any, controller: Any) -> str:
            return str(controller.request.headers[self.name])

    def throttle(number: int, rate: str) -> SyncThrottle:
        limit, _, unit = rate.partition("/")
        key = Header(runs_before_auth=True, name=_header(number))
        backend = SyncRedis(redis.Redis.from_url(url()))
        return SyncThrottle(int(limit), SECONDS[unit], cache_key=key, backend=backend)

    class Throttled(Controller[PydanticSerializer]):
        throttling = tuple(throttle(*each) for each in enumerate(rates))

        def get(self) -> str:
            return "ok"

    return Throttled.as_view()


def _drf(base: Callable[[], type]) -> Callable[[View, Sequence[str]], View]:
    def stack(view: View, rates: Sequence[str]) -> View:
        from rest_framework.response import Response
        from rest_framework.views import APIView

        def throttle(number: int, rate: str) -> type:
            def get_cache_key(self: Any, request: Any, view: Any) -> str:
                return f"{self.scope}:{request.headers[_header(number)]}"

            scope = f"try-{number}-{rate.replace('/', '-')}"
            fields = {"scope": scope, "rate": rate, "get_cache_key": get_cache_key}
            return type(f"Throttle{number}", (base(),), fields)

        class Throttled(APIView):
            authentication_classes = ()
            throttle_classes = tuple(throttle(*each) for each in enumerate(rates))

            def get(self, request: object) -> Response:
                return Response("ok")

        return Throttled.as_view()

    return stack


def _their_throttle() -> type:
    from rest_framework.throttling import SimpleRateThrottle

    return SimpleRateThrottle


def _our_throttle() -> type:
    from django_ratelimit_lua.throttling import SimpleRateThrottle

    return SimpleRateThrottle


def _limits(strategy: str) -> Make:
    def make(rates: Sequence[str]) -> Ask:
        from limits import parse, storage, strategies

        from tests.support.redis_server import url

        hit = getattr(strategies, strategy)(storage.storage_from_string(url())).hit
        items = [parse(rate.replace("/s", "/second").replace("/h", "/hour")) for rate in rates]

        def ask(*identities: str, retry_after: bool = False) -> str:
            if retry_after:
                return "—"  # A library sends no headers.
            try:
                passed = all(
                    hit(item, strategy, identity)
                    for item, identity in zip(items, identities, strict=True)
                )
            except Exception as error:
                return type(error).__name__
            return ALLOWED if passed else "429"

        return ask

    return make


MAKERS: dict[str, Make] = {
    "@ratelimit": _view(_ours),
    "our throttles for DRF": _view(_drf(_our_throttle)),
    "django-ratelimit": _view(_django_ratelimit),
    "DRF's throttles": _view(_drf(_their_throttle)),
    "limits, moving window": _limits("MovingWindowRateLimiter"),
    "limits, fixed window": _limits("FixedWindowRateLimiter"),
    "django-smart-ratelimit, sliding_window": _view(_smart("sliding_window")),
    "django-smart-ratelimit, fixed_window": _view(_smart("fixed_window")),
    "django-modern-rest, SimpleRate": _view(_modern_rest),
    "django-trafficwatch, redis": _view(_trafficwatch),
}


def _simultaneous(make: Make) -> int:
    ask = make([f"{LIMIT}/h"])
    ask("the first")
    barrier = threading.Barrier(REQUESTS)
    answers: list[str] = []

    def request() -> None:
        barrier.wait()
        answers.append(ask("at once"))

    threads = [threading.Thread(target=request) for _ in range(REQUESTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers.count(ALLOWED)


def _around_edges(make: Make) -> int:
    """Clients send bursts at random moments of several windows."""
    ask = make([f"{LIMIT}/s"])
    moments = random.Random(1)
    passed: dict[str, list[tuple[float, float]]] = {
        f"client {number}": [] for number in range(CLIENTS)
    }
    for _ in range(MOMENTS):
        time.sleep(moments.uniform(0.05, 0.6))
        for client, times in passed.items():
            for _ in range(moments.choice((1, LIMIT))):
                started = time.monotonic()
                if ask(client) == ALLOWED:
                    times.append((started, time.monotonic()))
    # The moment of a decision is between these two.
    return max(
        sum(first <= began and ended < first + 1 for began, ended in times)
        for times in passed.values()
        for first, _ended in times
    )


def _stacked(make: Make) -> int:
    """The second limit admits one of four requests; the first has one left for each refused."""
    ask = make([f"{LIMIT}/h", "1/h"])
    for _ in range(4):
        ask("stacked", "the same")
    passed = sum(ask("stacked", f"another {number}") == ALLOWED for number in range(2 * LIMIT))
    return LIMIT - 1 - passed


def _slow(ask: Ask) -> str:
    """The longest of three requests while Redis does not answer, and the answer."""
    answers: list[tuple[float, str]] = []

    def request() -> None:
        for _ in range(3):
            started = time.monotonic()
            answer = ask("hung")
            answers.append((time.monotonic() - started, answer))

    ask("hung")
    thread = threading.Thread(target=request, daemon=True)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        thread.start()
        thread.join(MAX_SECONDS)
        seconds, answer = max(answers, default=(MAX_SECONDS, ""))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    thread.join()
    time.sleep(2)  # Limiters that stopped asking Redis ask it again.
    ask("hung")
    return f"{seconds:.1f} s, {answer}" if answer else f"no answer in {MAX_SECONDS} s"


@override_settings(RATELIMIT_TIMEOUT=0.1)  # The default. Tests wait longer.
def measure_promises() -> dict[str, Promises | Failed]:
    """Try everything with each limiter. The server is gone afterwards."""
    DIRECT.flushdb()
    found: dict[str, Promises | Failed] = {}
    for name, make in MAKERS.items():
        try:
            slow, refusing = make(["1000/h"]), make(["1/h"])
            refusing("refused")
            found[name] = Promises(
                _simultaneous(make),
                _around_edges(make),
                _stacked(make),
                _slow(slow),
                "",
                refusing("refused", retry_after=True),
            )
        except Exception as error:
            found[name] = failure(error)
    server.stop()
    for name, measured in found.items():
        if isinstance(measured, Promises):
            found[name] = measured._replace(down=MAKERS[name](["1000/h"])("gone"))
    return found
