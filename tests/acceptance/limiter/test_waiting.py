"""Callers wait for a turn, or try again, for at most their timeout. A caller that is stopped gives
its turn back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import Decision, RateLimiter, ratelimit
from django_ratelimit_lua.engine.decide import adecide, decide
from django_ratelimit_lua.engine.holding import await_turn
from django_ratelimit_lua.limiter import _HitPlanner
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.throttling import SimpleRateThrottle
from tests.support.processes import until


def request(**query: str) -> HttpRequest:
    return RequestFactory().get("/", query)


async def auntil(ready: Callable[[], bool]) -> None:
    """Let others go on until that is so."""
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def cancelled(coroutine: Any, waits: Callable[[], bool], times: int = 1) -> None:
    """Run a coroutine, cancel it when it waits, as often as told, and see that it ends so."""
    task = asyncio.ensure_future(coroutine)
    await auntil(waits)
    await asyncio.sleep(0.05)  # The coroutine reads its reply, too.
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


def next_turn(limiter: RateLimiter) -> float:
    """Seconds that whoever came now would have to wait."""
    return decide(_HitPlanner(limiter, "peek", "ada", 1, max_wait_us=-1)).wait


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_cancelled_caller_returns_only_its_own_turn(
    algorithm: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two callers wait, and the second is cancelled repeatedly."""
    options: dict[str, Any] = {"queue": 9} if algorithm == "leaky_bucket" else {"burst": 1}
    limiter = RateLimiter("own", "1/h", algorithm=algorithm, **options)
    held: list[float] = []

    async def hold(seconds: float, charges: Any) -> None:
        held.append(seconds)
        await await_turn(seconds, charges)

    monkeypatch.setattr("django_ratelimit_lua.limiter.await_turn", hold)

    async def turns() -> None:
        await limiter.aacquire("ada")
        waits, tasks = [next_turn(limiter)], []
        for _ in range(2):
            tasks.append(asyncio.ensure_future(limiter.aacquire("ada")))
            await auntil(lambda: len(held) == len(tasks))
            waits.append(next_turn(limiter))
        left = []
        for task in reversed(tasks):
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            left.append(next_turn(limiter))
        assert left[0] == pytest.approx(waits[1], abs=60), "behind the first, which keeps its turn"
        assert left[1] == pytest.approx(waits[0], abs=60)

    asyncio.run(turns())


def test_turns_of_a_leaky_bucket_stay_apart_when_callers_give_up() -> None:
    """Twelve callers wait under a limit of five a second, and every second one gives up."""
    limiter = RateLimiter("pace", "5/s", algorithm="leaky_bucket", queue=20)

    async def all_of_them() -> list[int]:
        moments: list[int] = []

        async def one() -> None:
            moments.append((await limiter.aacquire("ada")).limits[0].counted_at)

        tasks = [asyncio.ensure_future(one()) for _ in range(12)]
        await asyncio.sleep(0.1)
        for task in tasks[1::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.gather(*tasks)
        return sorted(moments)

    for before, after in itertools.pairwise(asyncio.run(all_of_them())):
        assert after - before >= 200_000


class Stopped(BaseException):
    """What no `except Exception` catches."""


@contextmanager
def interrupted(waits: Callable[[], bool]) -> Iterator[None]:
    """This thread is interrupted when it waits."""

    def stop(*args: Any) -> None:
        raise Stopped

    def interrupt() -> None:
        until(waits, "it has reserved its turn")
        time.sleep(0.1)  # It has heard so, too.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, stop)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Stopped):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)


def test_an_interrupted_turn_is_given_back() -> None:
    """`acquire` is interrupted, for example by Ctrl-C."""
    limiter = RateLimiter("stop", "1/m", algorithm="leaky_bucket", queue=5)
    limiter.acquire("ada")
    with interrupted(lambda: limiter.peek("ada").limits[0].reset_after > 60):
        limiter.acquire("ada")
    assert limiter.peek("ada").limits[0].reset_after <= 60


def test_a_client_that_disconnects_while_held_gives_its_turn_back(settings: Any) -> None:
    """The task of the request is cancelled, in an async view or in the middleware."""
    settings.RATELIMIT_TIMEOUT = 10  # A busy machine must not make the refund late.
    limit: Any = {"rate": "1/m", "algorithm": "leaky_bucket", "queue": 5, "max_wait": 600}
    settings.RATELIMIT_RULES = [{"name": "held", "path": "/", "key": "ip", **limit}]

    @ratelimit("held-view", "ip", **limit)
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    async def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    async def ask(handler: Any, name: str) -> None:
        limiter = RateLimiter(name, "1/m", algorithm="leaky_bucket", queue=5)

        def reset_after() -> float:
            return limiter.peek(("ip", "127.0.0.1")).limits[0].reset_after

        await handler(request())
        for _ in range(3):
            await cancelled(handler(request()), lambda: reset_after() > 60)
            assert reset_after() <= 60

    asyncio.run(ask(view, "held-view:*:ip:1/m"))
    asyncio.run(ask(RateLimitMiddleware(plain), "held"))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, Stopped])
def test_a_view_that_is_interrupted_has_an_outcome(stop: type[BaseException]) -> None:
    """The functions get the exception that stopped the view, and it is raised again."""
    seen: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        raise stop

    options = {
        "count_if": lambda request, outcome: seen.append(outcome) or False,
        "cost_after": lambda request, outcome: 3,
        "reset_if": lambda request, outcome: False,
    }
    with pytest.raises(stop):
        ratelimit("stopped", "ip", "10/h", **options)(view)(request())
    assert [type(one) for one in seen] == [stop]
    assert RateLimiter("stopped:*:ip:10/h", "10/h").peek(("ip", "127.0.0.1")).limits[0].used == 3


def test_an_error_while_settling_does_not_hide_the_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A predicate that supports only responses raises, which is logged."""

    entered = threading.Event()

    @ratelimit("fails", "ip", "10/h", count_if=lambda request, outcome: outcome.status_code != 200)
    async def view(request: HttpRequest) -> HttpResponse:
        entered.set()
        await asyncio.sleep(60)
        return HttpResponse()

    asyncio.run(cancelled(view(request()), entered.is_set))
    assert "its units stay counted" in caplog.text
    assert RateLimiter("fails:*:ip:10/h", "10/h").peek(("ip", "127.0.0.1")).limits[0].used == 1


@pytest.mark.parametrize(
    "algorithm", ["token_bucket", "fixed_window", "sliding_window", "sliding_log"]
)
def test_long_successful_views_are_never_refused(algorithm: str) -> None:
    """196 requests succeed, as many at a time as the limit has."""
    options = {"rate": "50/s", "burst": 4} if algorithm == "token_bucket" else {"rate": "4/m"}

    @ratelimit(
        "long", "ip", algorithm=algorithm, count_if=lambda request, outcome: False, **options
    )
    async def view(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0.03)
        return HttpResponse()

    async def client() -> list[int]:
        return [(await view(request())).status_code for _ in range(49)]

    async def traffic() -> list[list[int]]:
        return await asyncio.gather(*(client() for _ in range(4)))

    assert asyncio.run(traffic()) == [[200] * 49] * 4


class Paced(SimpleRateThrottle):
    """A throttle that makes its clients wait."""

    scope = "paced"
    rate = "5/s"
    algorithm = "leaky_bucket"

    def get_cache_key(self, request: Any, view: Any) -> str:
        """Everybody."""
        return "all"


def test_a_view_is_held_for_five_seconds_at_most(settings: Any) -> None:
    """A longer wait is a 429 with the correct retry time. A `max_wait` has precedence."""
    settings.RATELIMIT_RULES = [
        {"name": "six", "path": "/", "key": "ip", "rate": "6/m", "algorithm": "leaky_bucket"}
    ]
    slow = ratelimit("six-view", "ip", "6/m", algorithm="leaky_bucket")(
        lambda request: HttpResponse()
    )
    middleware = RateLimitMiddleware(lambda request: HttpResponse())

    class View(APIView):
        throttle_classes = (type("Six", (Paced,), {"scope": "six-a-minute", "rate": "6/m"}),)

        def get(self, request: Any) -> Response:
            return Response()

    for handler in (slow, middleware, View.as_view()):
        started = time.monotonic()
        answers = [handler(request()) for _ in range(5)]
        elapsed = time.monotonic() - started
        assert elapsed < 5, "nobody is held"
        assert [answer.status_code for answer in answers] == [200, 429, 429, 429, 429]
        retry_after = int(answers[1]["Retry-After"])
        assert 5 - elapsed <= retry_after <= 6, (
            "ten seconds to its turn, of which five can be waited"
        )
    own = ratelimit("own", "ip", "5/s", algorithm="leaky_bucket", max_wait=0.1)(
        lambda request: HttpResponse()
    )
    assert [own(request()).status_code for _ in range(2)] == [200, 429]


def test_a_throttle_with_a_leaky_bucket_delays_requests() -> None:
    """In DRF, too, the requests are admitted one after another."""

    class View(APIView):
        throttle_classes = (Paced,)

        def get(self, request: Any) -> Response:
            return Response()

    started = time.monotonic()
    assert [View.as_view()(request()).status_code for _ in range(3)] == [200] * 3
    assert time.monotonic() - started >= 0.39


def acquire_all(limiter: RateLimiter, count: int, timeout: float | None) -> list[Decision]:
    """Return the decisions of callers that acquire at once."""

    async def ask() -> list[Decision]:
        return await asyncio.gather(
            *(limiter.aacquire("ada", timeout=timeout) for _ in range(count))
        )

    return asyncio.run(ask())


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_bucket_reserves_turns_until_the_timeout(algorithm: str) -> None:
    """A caller whose turn is later takes nothing, and gets the time that it would have waited."""
    options: dict[str, Any] = {"queue": 20} if algorithm == "leaky_bucket" else {"burst": 1}
    limiter = RateLimiter("turns", "8/s", algorithm=algorithm, **options)
    decisions = acquire_all(limiter, 12, 1)
    waits = [decision.wait for decision in decisions if decision]
    assert len(waits) >= 9
    assert max(waits) <= 1
    assert all(decision.wait > 1 for decision in decisions if not decision)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_callers_that_find_no_turn_try_again(algorithm: str, monkeypatch: Any) -> None:
    """Windows and logs reserve no turn, and the queue of a leaky bucket may be full."""
    trips = []

    def adecide_counted(planner: Any) -> Any:
        trips.append(planner)
        return adecide(planner)

    monkeypatch.setattr("django_ratelimit_lua.engine.holding.adecide", adecide_counted)
    limiter = RateLimiter("again", "20/s", algorithm=algorithm)
    started = time.monotonic()
    assert all(acquire_all(limiter, 60, None))
    assert 1.9 < time.monotonic() - started < 10
    assert len(trips) <= 60 * 12


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_caller_that_cannot_be_admitted_in_time_is_refused_at_once(algorithm: str) -> None:
    """It reports the time that it would have taken."""
    limiter = RateLimiter("late", "1/m", algorithm=algorithm)
    assert limiter.acquire("ada")
    started = time.monotonic()
    refused = limiter.acquire("ada", timeout=30)
    assert time.monotonic() - started < 5
    assert not refused
    assert 50 < refused.wait <= 60


def test_a_cost_that_never_fits_is_not_waited_for() -> None:
    """`acquire` returns the refusal, although it has no timeout."""
    refused = RateLimiter("never", "2/m").acquire("ada", 3)
    assert (refused.allowed, refused.retry_after) == (False, None)


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_callers_whose_turn_is_within_the_timeout_get_it(kind: str) -> None:
    """At four a second, nine turns are within two seconds."""
    limiter = RateLimiter("twelve", "4/s", algorithm="leaky_bucket", queue=11)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(limiter.aacquire("ada", timeout=2) for _ in range(12)))

    if kind == "coroutines":
        decisions = asyncio.run(ask())
    else:
        with ThreadPoolExecutor(12) as pool:
            decisions = list(pool.map(lambda _: limiter.acquire("ada", timeout=2), range(12)))
    waits = sorted(decision.wait for decision in decisions)
    allowed = sorted(decision.wait for decision in decisions if decision)
    assert allowed == [wait for wait in waits if wait <= 2]
    assert len(allowed) >= 9
    turns = sorted(decision.limits[0].counted_at for decision in decisions if decision)
    assert all(later - earlier >= 249_999 for earlier, later in itertools.pairwise(turns))


def test_an_interrupted_process_gives_its_turn_back(prefix: str) -> None:
    """A real process gets a real SIGINT."""
    limiter = RateLimiter("ctrl-c", "1/m", algorithm="leaky_bucket", queue=5)
    limiter.hit("ada")
    code = (
        # Whoever was started in the background of a shell is told to ignore it.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import django; django.setup()\nfrom django.conf import settings\n"
        f"settings.RATELIMIT_CACHE_PREFIX = {prefix!r}\nfrom django_ratelimit_lua import "
        "RateLimiter\n"
        "limiter = RateLimiter('ctrl-c', '1/m', algorithm='leaky_bucket', queue=5)\nprint('ready', "
        "flush=True)\n"
        "limiter.acquire('ada')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: limiter.peek("ada").limits[0].reset_after > 60, "it has reserved its turn")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert limiter.peek("ada").limits[0].reset_after <= 60


@pytest.mark.parametrize("is_steady", [False, True])
@pytest.mark.parametrize("algorithm", ["sliding_window", "sliding_log", "fixed_window"])
def test_a_hundred_waiting_callers_need_few_round_trips(
    algorithm: str, is_steady: bool, direct: redis.Redis, settings: Any
) -> None:
    """An admitted call costs at most 12 round trips."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0
    settings.RATELIMIT_TIMEOUT = 5
    limiter = RateLimiter("hundred", "10/s", algorithm=algorithm)
    for _ in range(10 * is_steady):
        limiter.hit("ada")
        time.sleep(0.1)

    async def ask() -> list[Decision]:
        return await asyncio.gather(*(limiter.aacquire("ada", timeout=60) for _ in range(100)))

    direct.config_resetstat()
    began = time.monotonic()
    decisions = asyncio.run(ask())
    assert all(decisions)
    assert 9 <= time.monotonic() - began < 20
    assert direct.info("commandstats")["cmdstat_evalsha"]["calls"] <= 1200


def test_a_refused_caller_gives_up_at_once_if_no_unit_is_free_in_time() -> None:
    """It reports the time that it would have taken. Nothing is taken."""
    limiter = RateLimiter("full", "1/h")
    limiter.hit("ada")
    began = time.monotonic()
    refused = limiter.acquire("ada", timeout=5)
    assert time.monotonic() - began < 4
    assert not refused
    assert refused.wait == pytest.approx(refused.retry_after, abs=1)
    assert refused.wait > 3590
    assert limiter.peek("ada").limits[0].used == 1
