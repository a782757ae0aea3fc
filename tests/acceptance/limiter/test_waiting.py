"""Callers wait for a turn, or try again, for at most their timeout. A caller that is stopped gives
its turn back.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
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


def is_stopped(request: HttpRequest, outcome: Any) -> bool:
    return isinstance(outcome, BaseException)


def is_finished(request: HttpRequest, outcome: Any) -> bool:
    return not is_stopped(request, outcome)


async def ais_stopped(request: HttpRequest, outcome: Any) -> bool:
    await asyncio.sleep(0.01)
    return is_stopped(request, outcome)


@pytest.mark.parametrize(
    ("option", "function", "units"),
    [
        ("cost_after", lambda request, outcome: 30, 31),
        ("count_if", is_stopped, 1),
        ("count_if", ais_stopped, 1),
        ("count_if", is_finished, 0),
        ("reset_if", is_stopped, 0),
        ("reset_if", is_finished, 1),
    ],
)
def test_a_view_whose_client_disconnects_has_an_outcome(
    option: str, function: Any, units: int
) -> None:
    """An async view ends with the cancellation, by which units are kept, refunded or reset once."""
    entered = threading.Event()

    @ratelimit("hung up", "ip", "100/h", **{option: function})
    async def view(request: HttpRequest) -> HttpResponse:
        entered.set()
        await asyncio.sleep(60)
        return HttpResponse()

    asyncio.run(cancelled(view(request()), entered.is_set))
    limiter = RateLimiter("hung up:*:ip:100/h", "100/h")
    assert limiter.peek(("ip", "127.0.0.1")).limits[0].used == units


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
