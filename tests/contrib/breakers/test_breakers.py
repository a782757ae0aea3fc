"""Circuit breakers in one process: the counted outcomes, the admitted calls, and the results of
stopped calls.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_ratelimit_lua import LimitError
from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen, circuit
from django_ratelimit_lua.contrib.breakers.circuits import circuits
from django_ratelimit_lua.contrib.breakers.signals import (
    circuit_closed,
    circuit_half_open,
    circuit_opened,
)
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.store import flusher
from tests import clusters

PROBLEM = "application/problem+json"


class Service:
    """A callable resource with a result or a failure that the test chooses."""

    def __init__(self) -> None:
        self.called = 0
        self.does: Callable[[], Any] = lambda: "paid"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called += 1
        return self.does()


def fail() -> Any:
    raise ConnectionError("no route to the bank")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """Return the signals of breakers, by name."""
    found: list[Any] = []
    receivers = []
    for name, signal in (
        ("opened", circuit_opened),
        ("half_open", circuit_half_open),
        ("closed", circuit_closed),
    ):

        def hear(sender: Any, name: str = name, **told: Any) -> None:
            found.append((name, told))

        receivers.append((signal, hear))
        signal.connect(hear)
    yield found
    for signal, hear in receivers:
        signal.disconnect(hear)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except CircuitOpen:
        return "open"
    except Exception as error:
        return type(error).__name__


def until(ready: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_breaker_opens_in_the_call_that_fails_too_often(
    service: Service, told: list[Any]
) -> None:
    """It opens in the call itself, not a second later. The resource is not called any more, a
    stopped call contains the retry time, and the signal has the numbers.
    """
    pay = CircuitBreaker("payments", minimum=6, open_for="30s")(service)
    assert [pay() for _ in range(3)] == ["paid"] * 3
    service.does = fail
    assert [outcome(pay) for _ in range(5)] == ["ConnectionError"] * 3 + ["open"] * 2
    assert service.called == 6
    with pytest.raises(CircuitOpen) as caught:
        pay()
    assert (caught.value.breaker, caught.value.reason) == ("payments", "open")
    assert 29 < caught.value.retry_after <= 33
    ((name, numbers),) = told
    assert (name, numbers["breaker"], numbers["calls"], numbers["failures"]) == (
        "opened",
        "payments",
        6,
        3,
    )
    assert (numbers["reason"], numbers["shared"]) == ("failure_ratio", True)


def test_slow_calls_open_a_breaker(service: Service, told: list[Any]) -> None:
    """Slow calls count although they succeed."""
    service.does = lambda: time.sleep(0.02)
    pay = CircuitBreaker("reports", slow="15ms", slow_ratio=0.8, minimum=5, open_for="30s")(service)
    assert [outcome(pay) for _ in range(6)] == [None] * 5 + ["open"]
    assert (told[0][1]["slow"], told[0][1]["reason"]) == (5, "slow_ratio")


class Hanging:
    """A service that does not answer until it is released. `running` and `most`: how many calls run
    now, and ran at the same time at most.
    """

    def __init__(self) -> None:
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.called = self.running = self.most = 0
        self.threads: list[threading.Thread] = []

    def __call__(self) -> str:
        with self.lock:
            self.called += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.released.wait(30)
        with self.lock:
            self.running -= 1
        return "paid"

    def start(self, function: Callable[[], Any]) -> None:
        """Call it through a breaker, in a thread."""
        self.threads.append(threading.Thread(target=outcome, args=(function,)))
        self.threads[-1].start()

    def release(self) -> None:
        """Let all calls end."""
        self.released.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.release()


def numbers_of(name: str) -> tuple[int, int, int]:
    """Calls, failures and slow calls of the window, after all of them are reported."""
    known = circuits.by_name[name]
    known.tell()
    return known.answer.calls, known.answer.failures, known.answer.slow


def test_hanging_calls_open_a_breaker_before_they_end(hanging: Hanging, told: list[Any]) -> None:
    """The next call is stopped as soon as enough calls have lasted `slow`. None of them is
    counted again when it ends.
    """
    pay = CircuitBreaker("payments", slow="0.2s", minimum=5, open_for="30s")(hanging)
    for _ in range(5):
        hanging.start(pay)
    until(lambda: hanging.called == 5)
    time.sleep(0.2)  # So long is `slow`.
    hanging.start(pay)
    until(lambda: bool(told))
    assert hanging.called == 5
    ((name, numbers),) = told
    assert (name, numbers["calls"], numbers["slow"], numbers["reason"]) == (
        "opened",
        5,
        5,
        "slow_ratio",
    )
    hanging.release()
    assert numbers_of("payments") == (0, 0, 0)
    assert hanging.called == 5


def test_hanging_coroutines_open_a_breaker() -> None:
    """Of forty calls at intervals, only those are made that begin before enough calls have
    lasted `slow`. They use a decorator, and a block.
    """
    called = 0

    async def hang() -> None:
        nonlocal called
        called += 1
        await asyncio.sleep(30)

    async def forty(call: Callable[[], Any]) -> list[str]:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.ensure_future(call()))
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        return [type(one).__name__ for one in await asyncio.gather(*tasks, return_exceptions=True)]

    def breaker(name: str) -> CircuitBreaker:
        found = CircuitBreaker(name, slow="50ms", minimum=5, open_for="30s")
        with found.call():  # Its state is read first.
            pass
        return found

    block = breaker("block")

    async def in_a_block() -> None:
        async with block.call():
            await hang()

    for call in (breaker("decorator")(hang), in_a_block):
        called = 0
        came = async_to_sync(forty)(call)
        assert called == came.count("CancelledError")
        assert 5 <= called < 30, called
        assert came.count("CircuitOpen") == 40 - called


def test_a_slow_call_that_fails_counts_once(hanging: Hanging) -> None:
    """It is one call, slow as soon as it has lasted `slow`, and failed when it ends. A slow call
    that succeeds is not counted again.
    """
    breaker = CircuitBreaker("payments", slow="50ms", minimum=1000)

    def late() -> None:
        hanging()
        raise TimeoutError

    for call in (breaker(late), breaker(hanging)):
        hanging.start(call)
    until(lambda: hanging.called == 2)
    until(lambda: numbers_of("payments") == (2, 0, 2), 3)
    hanging.release()
    assert numbers_of("payments") == (2, 1, 2)


def test_ended_calls_leave_no_data_in_the_process(hanging: Hanging) -> None:
    """No data of ended calls is kept, nor of hanging calls that were counted. Without `slow`,
    calls are not recorded.
    """
    timed, plain = CircuitBreaker("timed", slow="50ms"), CircuitBreaker("plain")
    hanging.start(plain(hanging))
    hanging.start(timed(hanging))
    until(lambda: hanging.called == 2)
    assert len(circuits.by_name["plain"].running) == 0
    until(lambda: len(circuits.by_name["timed"].running) == 0, 3)
    until(lambda: numbers_of("timed") == (1, 0, 1), 3)
    for _ in range(100):
        timed(lambda: "paid")()
    assert len(circuits.by_name["timed"].running) == 0


def test_a_probe_that_never_ends_loses_its_slot(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses the slot when it has lasted `open_max`, so the breaker cannot stay half-open
    forever.
    """
    monkeypatch.setattr("django_ratelimit_lua.contrib.breakers.rows.MIN_PROBE_US", 300_000)
    breaker = CircuitBreaker("payments", failures=1, open_for="0.1s", open_max="0.2s", probes=1)
    with pytest.raises(ConnectionError), breaker.call():
        raise ConnectionError
    pay = breaker(hanging)
    until(lambda: hanging.start(pay) or hanging.called == 2, 10)  # type: ignore[func-returns-value]


def test_a_coroutine_cancelled_while_requesting_a_probe_returns_it(
    direct: redis.Redis,
) -> None:
    """Redis may have replied by then or not. Another probe is granted soon, long before the slot
    would end.
    """
    breaker = CircuitBreaker("payments", failures=1, open_for="0.1s", probes=1)

    @breaker
    async def pay() -> str:
        return "paid"

    async def cancel_one(after: float) -> None:
        task = asyncio.ensure_future(pay())
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait([task])

    for after in (0.0, 0.0005, 0.05):
        with breaker.call() as call:
            call.fail()
        until(lambda: breaker.state == "open")
        time.sleep(0.15)  # So long is the pause at most.
        if after == 0.05:
            direct.execute_command("CLIENT", "PAUSE", 100, "ALL")
        async_to_sync(cancel_one)(after)
        until(lambda: outcome(async_to_sync(pay)) == "paid", 6)
        until(lambda: outcome(async_to_sync(pay)) == "paid" and breaker.state == "closed", 6)


@pytest.mark.parametrize(
    "cancelled",
    [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit],
    ids=lambda kind: kind.__name__,
)
def test_a_cancelled_call_is_neither_success_nor_failure(
    service: Service, cancelled: type[BaseException]
) -> None:
    """It is not counted. If it is a probe, its slot is released."""

    def stop() -> Any:
        raise cancelled

    breaker = CircuitBreaker("payments", failures=1, open_for="0.2s", probes=1)
    pay = breaker(service)
    service.does = stop
    for _ in range(3):
        with pytest.raises(cancelled):
            pay()
    assert breaker.state == "closed"
    service.does = fail
    outcome(pay)
    service.does = stop
    until(lambda: breaker.state != "open" or _stopped(pay, cancelled))
    service.does = lambda: "paid"
    until(lambda: outcome(pay) == "paid")


def _stopped(pay: Callable[[], Any], cancelled: type[BaseException]) -> bool:
    try:
        pay()
    except CircuitOpen:
        return False
    except cancelled:
        return True
    return False


@pytest.mark.parametrize(
    ("failure", "does", "is_failure"),
    [
        (None, ValueError(), True),
        (None, Http404(), False),
        (None, PermissionDenied(), False),
        (None, MultiPartParserError(), False),
        (None, UnreadablePostError(), False),
        (None, HttpResponse(status=502), True),
        (None, HttpResponse(status=404), False),
        (ConnectionError, ConnectionResetError(), True),
        (ConnectionError, ValueError(), False),
        ((TimeoutError, 429, range(500, 504)), HttpResponse(status=429), True),
        ((TimeoutError, 429, range(500, 504)), HttpResponse(status=504), False),
        ((TimeoutError, 429, range(500, 504)), TimeoutError(), True),
        (lambda answer: answer == {"ok": False}, {"ok": False}, True),
        (lambda answer: answer == {"ok": False}, ValueError(), False),
        (lambda answer: answer.nothing, 5, False),
    ],
)
def test_failures_are_defined_by_type_status_or_callable(
    service: Service, failure: Any, does: Any, is_failure: bool
) -> None:
    """By default, failures are responses with a status of 500 or more, and exceptions, except
    those with a response for the client.
    """

    def act() -> Any:
        if isinstance(does, Exception):
            raise does
        return does

    service.does = act
    breaker = CircuitBreaker("payments", failures=1, failure=failure, open_for="30s")
    outcome(breaker(service))
    assert breaker.state == ("open" if is_failure else "closed")


def test_breakers_work_for_coroutines(service: Service) -> None:
    """They are decorators, and blocks of `async with`. If many coroutines wait at once, all are
    counted.
    """
    breaker = CircuitBreaker("payments", minimum=20, open_for="30s")

    @breaker
    async def pay() -> Any:
        await asyncio.sleep(0.001)
        return service()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*[pay() for _ in range(20)], return_exceptions=True)

    service.does = fail
    assert {type(one) for one in async_to_sync(all_at_once)()} == {ConnectionError}

    async def after() -> None:
        with pytest.raises(CircuitOpen):
            async with breaker.call():
                raise AssertionError
        with pytest.raises(CircuitOpen):
            await pay()

    async_to_sync(after)()


def test_a_block_of_code_can_be_a_call() -> None:
    """A `with` block is judged by its exception, or by a response that is passed to it. Nested
    calls are distinguished.
    """
    breaker = CircuitBreaker("payments", failures=3, open_for="30s")
    with breaker.call(), breaker.call() as call:
        call.judge(HttpResponse(status=503))
    with pytest.raises(ValueError), breaker.call():  # noqa: PT011
        raise ValueError
    assert breaker.state == "closed"
    with breaker.call() as call:
        call.fail()
    assert breaker.state == "open"
    with pytest.raises(CircuitOpen), breaker.call():
        pass


def test_a_function_is_called_through_a_breaker(service: Service) -> None:
    """It is called with its arguments as if it were decorated. It may be plain or a coroutine
    function, is judged, and is not called while the breaker is open.
    """
    breaker = CircuitBreaker("payments", failures=2, open_for="30s")

    async def apay(amount: int, *, by: str) -> Any:
        return service()

    assert breaker.call(lambda amount, *, by: (service(), amount, by), 5, by="ada") == (
        "paid",
        5,
        "ada",
    )
    assert asyncio.run(breaker.call(apay, 5, by="ada")) == "paid"
    with breaker.call():
        pass
    service.does = fail
    with pytest.raises(ConnectionError):
        breaker.call(service, 5, by="ada")
    with pytest.raises(ConnectionError):
        asyncio.run(breaker.call(apay, 5, by="ada"))
    assert breaker.state == "open"
    with pytest.raises(CircuitOpen):
        breaker.call(service, 5, by="bob")
    with pytest.raises(CircuitOpen):
        asyncio.run(breaker.call(apay, 5, by="bob"))
    assert service.called == 4
    breaker.fallback = lambda amount, *, by: f"owed {amount}"
    assert breaker.call(service, 5, by="ada") == "owed 5"
    with pytest.raises(LimitError):
        breaker.call(iter([1]).__class__, 5)


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("later", "later"), (None, None), (lambda amount: f"owed {amount}", "owed 5")],
)
def test_a_fallback_replaces_a_stopped_call(service: Service, fallback: Any, expected: Any) -> None:
    """The fallback is a value, which may be None, or a callable that gets the arguments of the
    call.
    """
    service.does = fail
    pay = CircuitBreaker("payments", failures=1, fallback=fallback, open_for="30s")(service)
    outcome(pay, 5)
    assert pay(5) == expected


def test_interleaved_generators_are_counted_separately() -> None:
    """Generators alternate inside their blocks. An exception or a judged response is counted for
    the call of its own block.
    """
    breaker = CircuitBreaker("generators")

    def parts() -> Iterator[Any]:
        with breaker.call() as call:
            yield call

    first, second = parts(), parts()
    next(first)
    next(second).fail()
    with pytest.raises(StopIteration):
        next(first)
    assert numbers_of("generators") == (1, 0, 0)
    with pytest.raises(StopIteration):
        next(second)
    assert numbers_of("generators") == (2, 1, 0)


def test_unused_breakers_with_names_made_at_run_time_are_dropped(
    direct: redis.Redis, prefix: str, monkeypatch: Any
) -> None:
    """The process drops breakers that the code no longer refers to, except the latest ones. Redis
    lists those that were recorded last. A breaker that the code refers to is kept.
    """
    monkeypatch.setattr("django_ratelimit_lua.contrib.breakers.circuits.MAX_HELD", 20)
    monkeypatch.setattr("django_ratelimit_lua.contrib.breakers.circuits.MAX_LISTED", 30)
    payments = CircuitBreaker("payments")(lambda: "paid")

    def shops() -> int:
        gc.collect()
        return sum(name.startswith("shop ") for name in circuits.by_name)

    for number in range(100):
        assert CircuitBreaker(f"shop {number}")(lambda: "sold")() == "sold"
        if number % 20 == 0:
            circuits.flush()
    assert (payments(), shops()) == ("paid", 20)
    circuits.flush()
    assert circuits.by_name["payments"].noted_at > 0
    assert circuits.by_name["shop 99"].noted_at > 0
    assert direct.zcard(f"{prefix}{{circuits}}") == 30
    assert payments() == "paid"


def asked(accept: str = "", path: str = "/report", **options: Any) -> HttpRequest:
    return RequestFactory(headers={"Accept": accept} if accept else {}).get(path, **options)


def broken(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=500)


def test_a_view_responds_with_503_and_the_time_of_the_next_try() -> None:
    """The response is a problem document of the registered type, a page or text, as the client
    accepts.
    """
    view = circuit("reports", failures=1, open_for="30s")(broken)
    assert view(asked()).status_code == 500
    text, page, problem = view(asked()), view(asked("text/html")), view(asked("application/json"))
    for response in (text, page, problem):
        assert response.status_code == 503
        assert 29 <= int(response["Retry-After"]) <= 33
        assert response["Cache-Control"] == "no-store"
    assert b"not available at the moment. Try again in" in text.content
    assert b"<h1>Not available</h1>" in page.content
    assert problem["Content-Type"] == PROBLEM
    body = json.loads(problem.content)
    assert (
        body["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    )
    assert (body["status"], str(body["retry_after"])) == (503, problem["Retry-After"])


def test_breakers_work_on_all_kinds_of_views() -> None:
    """Views are coroutines, or class-based with `method_decorator`. A shared breaker opens for
    both.
    """
    breaker = CircuitBreaker("reports", failures=1, open_for="30s")

    @method_decorator(circuit(breaker), name="dispatch")
    class Report(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return broken(request)

    @circuit(breaker)
    async def areport(request: HttpRequest) -> HttpResponse:
        return HttpResponse("today's")

    assert async_to_sync(areport)(asked()).status_code == 200
    assert Report.as_view()(asked()).status_code == 500
    assert (
        Report.as_view()(asked()).status_code == async_to_sync(areport)(asked()).status_code == 503
    )


def test_another_view_can_be_the_fallback() -> None:
    """It is plain or a coroutine function, and gets the arguments of the first view."""

    def yesterdays(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(f"yesterday's {number}")

    @circuit("reports", failures=1, open_for="30s", fallback=yesterdays)
    def report(request: HttpRequest, number: int) -> HttpResponse:
        return broken(request)

    @circuit("reports", failures=1, open_for="30s", fallback=yesterdays)
    async def areport(request: HttpRequest, number: int) -> HttpResponse:
        return broken(request)

    assert report(asked(), 7).status_code == 500
    assert (
        report(asked(), 7).content == async_to_sync(areport)(asked(), 7).content == b"yesterday's 7"
    )


def test_an_open_breaker_inside_a_view_becomes_a_503() -> None:
    """The middleware, and the exception handler of DRF, convert the exception."""
    from rest_framework.response import Response
    from rest_framework.views import APIView

    breaker = CircuitBreaker("payments", failures=1, open_for="30s")

    class Pay(APIView):
        authentication_classes = ()
        permission_classes = ()

        def get(self, request: Any) -> Response:
            with breaker.call():
                raise ConnectionError

    with pytest.raises(ConnectionError):
        Pay.as_view()(asked())
    response = Pay.as_view()(asked())
    assert (response.status_code, response.data["type"].rpartition("#")[2]) == (
        503,
        "temporary-reduced-capacity",
    )
    assert 29 <= int(response["Retry-After"]) <= 33
    middleware = RateLimitMiddleware(lambda request: JsonResponse({}))
    answer = middleware.process_exception(asked(), CircuitOpen("payments", 2.5))
    assert (answer.status_code, answer["Retry-After"]) == (503, "3")


def test_a_closed_breaker_makes_no_call_to_redis(
    service: Service, direct: redis.Redis, quiet: None
) -> None:
    """Any number of calls between two flushes makes no call, and a flush is one script a second."""
    pay = CircuitBreaker("payments")(service)
    pay()
    direct.config_resetstat()
    for _ in range(1000):
        pay()
    commands = {name: told["calls"] for name, told in direct.info("commandstats").items()}
    assert commands.get("cmdstat_evalsha", 0) <= 3
    until(lambda: circuits.by_name["payments"].answer.calls == 1001)


def test_a_disabled_site_has_no_breakers(service: Service, settings: Any) -> None:
    """A failing resource is still called, and nothing is counted."""
    breaker = CircuitBreaker("payments")
    breaker(service)()
    until(lambda: circuits.by_name["payments"].answer.calls == 1)
    settings.RATELIMIT_ENABLE = False
    service.does = fail
    for _ in range(50):
        assert outcome(breaker(service)) == "ConnectionError"
    assert breaker.state == "closed"


def test_without_threads_calls_report_the_outcomes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They report once a second, and immediately if the breaker may open."""
    monkeypatch.setattr("django_ratelimit_lua.process.tasks._start_thread", lambda *args: None)
    breaker = CircuitBreaker("payments", failures=1, open_for="0.3s", probes=1)
    pay = breaker(service)
    assert pay() == "paid"
    assert (flusher.is_running, listener.task.is_running) == (False, False)
    until(lambda: pay() == "paid" and circuits.by_name["payments"].answer.calls > 0)
    service.does = fail
    assert [outcome(pay), outcome(pay)] == ["ConnectionError", "open"]
    service.does = lambda: "paid"
    until(lambda: outcome(pay) == "paid" and breaker.state == "closed")


def test_a_cluster_keeps_each_breaker_in_one_hash_slot(service: Service, settings: Any) -> None:
    """Breakers on all nodes open and close as on a single server."""
    with clusters.cluster() as found:
        settings.CACHES = found.cache()
        named = [
            CircuitBreaker(f"payments{number}", failures=1, open_for="0.3s", probes=1)
            for number in range(6)
        ]
        pays = [breaker(service) for breaker in named]
        assert [pay() for pay in pays] == ["paid"] * 6
        service.does = fail
        assert [outcome(pay) for pay in pays] == ["ConnectionError"] * 6
        assert [outcome(pay) for pay in pays] == ["open"] * 6
        assert {circuits.by_name[breaker.name].lone for breaker in named} == {None}
        service.does = lambda: "paid"
        until(
            lambda: (
                [outcome(pay) for pay in pays] == ["paid"] * 6
                and {one.state for one in named} == {"closed"}
            )
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failure_ratio": 0}, "above 0"),
        ({"failure_ratio": None}, "would never open"),
        ({"minimum": 0}, "whole number"),
        ({"window": "soon"}, "Enter a time"),
        ({"window": "1s"}, "from 10s"),
        ({"open_for": "1m", "open_max": "1s"}, "not shorter than"),
        ({"probes": True}, "whole number"),
        ({"failure": "OSError"}, "exception classes"),
        ({"failure": ()}, "no call would be"),
    ],
)
def test_an_invalid_declaration_is_an_error_immediately(
    options: dict[str, Any], words: str
) -> None:
    """The error contains the name of the breaker and the argument."""
    with pytest.raises(LimitError, match=f"^Breaker 'odd'.*{words}"):
        CircuitBreaker("odd", **options)


def test_functions_with_unsuitable_results_cannot_be_decorated() -> None:
    """They are generators, classes, and views with a fallback that is not a view."""

    def rows() -> Iterator[int]:
        yield 1

    for wrong in (rows, View):
        with pytest.raises(LimitError):
            CircuitBreaker("odd")(wrong)
    with pytest.raises(LimitError):
        circuit("odd")(View)
    with pytest.raises(LimitError, match="must be a view"):
        circuit("odd", fallback="text")(broken)
    with pytest.raises(LimitError, match="on the CircuitBreaker, not on @circuit"):
        circuit(CircuitBreaker("odd"), minimum=5)
