"""Circuit breakers in one process: the calls that are made, their failures and their results."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import pytest
import redis
from asgiref.sync import async_to_sync, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, JsonResponse
from django.test import RequestFactory
from django.views import View

from django_ratelimit_lua import LimitError
from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen, shared_state
from django_ratelimit_lua.contrib.breakers.shared_state import (
    read_states,
    register_name,
    state_key,
    tag_of,
)
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.store import Deadline, flusher
from tests.acceptance.rules.test_push import until
from tests.support import clusters


class Service:
    """A resource that is called through a breaker, with a result that the test chooses."""

    def __init__(self) -> None:
        self.called = 0
        self.error: BaseException | None = None
        self.seconds = 0.0

    def __call__(self, *args: object) -> str:
        self.called += 1
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return "paid"


@pytest.fixture
def service() -> Service:
    return Service()


def outcome(function: Callable[..., Any], *args: object) -> Any:
    try:
        return function(*args)
    except BaseException as error:
        return type(error).__name__


def test_failures_in_a_row_open_a_breaker(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """The next call is stopped and knows when to try again."""
    breaker = CircuitBreaker("payments", failures=3, failure_ratio=None, open_for="30s")
    pay = breaker(service)
    for error in (OSError(), OSError(), None, OSError(), OSError(), OSError()):
        service.error = error
        outcome(pay)
    assert (breaker.state, outcome(pay), service.called) == ("open", "CircuitOpen", 6)
    with pytest.raises(CircuitOpen) as caught:
        pay()
    assert caught.value.breaker == "payments"
    assert 29 < caught.value.retry_after <= 30
    assert caplog.text.count("The breaker 'payments' is open") == 1


def test_a_ratio_of_failures_opens_a_breaker_within_a_second(service: Service) -> None:
    """It opens if half of at least six calls failed, and not before."""
    breaker = CircuitBreaker("payments", minimum=6, open_for="30s")
    pay = breaker(service)
    for error in (None, None, None, OSError(), OSError()):
        service.error = error
        outcome(pay)
    time.sleep(1.5)  # They are reported.
    assert breaker.state == "closed"
    service.error = OSError()
    outcome(pay)
    until(lambda: breaker.state == "open", 2)
    assert outcome(pay) == "CircuitOpen"


def test_probes_close_a_breaker_or_open_it_again(service: Service) -> None:
    """One failed probe opens it for `open_for`. It closes when all probes have succeeded."""
    breaker = CircuitBreaker("payments", failures=1, open_for="0.3s", probes=2)
    pay = breaker(service)
    service.error = OSError()
    outcome(pay)
    until(lambda: outcome(pay) == "OSError")
    assert (breaker.state, service.called) == ("open", 2)
    service.error = None
    until(lambda: outcome(pay) == "paid")
    assert breaker.state == "half-open"
    assert (pay(), breaker.state, service.called) == ("paid", "closed", 4)


@pytest.mark.parametrize(
    ("error", "ignore", "fails", "fails_if_slow"),
    [
        (None, (), False, True),
        (ValueError(), (), True, True),
        (TimeoutError(), (), True, True),
        (Http404(), (Http404, KeyError), False, True),
        (ConnectionResetError(), ConnectionError, False, True),
        (KeyError(), [Http404, KeyError], False, True),
        (CircuitOpen("another", 1.0), (), False, False),
        (asyncio.CancelledError(), (), False, True),
        (KeyboardInterrupt(), (), False, False),
        (SystemExit(), (), False, False),
        (GeneratorExit(), (), False, False),
    ],
)
def test_a_failure_is_slow_or_an_exception_that_is_not_ignored(
    service: Service, error: BaseException | None, ignore: Any, fails: bool, fails_if_slow: bool
) -> None:
    """The end of a process, and the state of another breaker, is no result of the resource."""
    service.error = error
    for slow, is_failure in (("1m", fails), ("0.1s", fails_if_slow)):
        breaker = CircuitBreaker(slow, failures=1, slow=slow, ignore=ignore, open_for="30s")
        service.seconds = 0.15 if slow == "0.1s" else 0.0
        assert outcome(breaker(service)) == ("paid" if error is None else type(error).__name__)
        assert breaker.state == ("open" if is_failure else "closed")


def test_a_timeout_around_a_call_opens_a_breaker() -> None:
    """The call is cancelled when it is slow."""
    breaker = CircuitBreaker("payments", failures=1, slow="0.1s", open_for="30s")

    @breaker
    async def hang() -> None:
        await asyncio.sleep(60)

    async def pay() -> None:
        await asyncio.wait_for(hang(), 1)

    assert (outcome(lambda: asyncio.run(pay())), breaker.state) == ("TimeoutError", "open")


class AsyncCall(View):
    """A view with an async handler, and an object with an async `__call__`."""

    async def get(self, request: Any) -> None:
        raise OSError

    __call__ = get


def fail(request: Any) -> None:
    raise OSError


marked = markcoroutinefunction(lambda request: AsyncCall()(request))
ASYNC_CALLABLES = {"view": AsyncCall.as_view(), "object": AsyncCall(), "marked": marked}
ASYNC_CALLABLES["sync_to_async"] = sync_to_async(fail)


@pytest.mark.parametrize("kind", ASYNC_CALLABLES)
def test_all_kinds_of_async_callables_are_protected(kind: str) -> None:
    """The breaker awaits the result."""
    function = ASYNC_CALLABLES[kind]
    breaker = CircuitBreaker("payments", failures=1, open_for="30s")
    with pytest.raises(OSError):  # noqa: PT011 - it has no text
        asyncio.run(breaker(function)(RequestFactory().get("/")))
    assert breaker.state == "open"


@pytest.mark.parametrize(("seconds", "expected"), [(1.1, "CircuitOpen"), (2.2, "paid")])
def test_a_lost_state_is_restored(
    service: Service,
    direct: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    expected: str,
) -> None:
    """The breaker stays open. A process without news for twice `open_for` allows a probe."""
    for task in (flusher, listener.task):
        monkeypatch.setattr(task, "start", lambda: False)
    pay = CircuitBreaker("payments", failures=1, open_for="1s")(service)
    service.error = OSError()
    outcome(pay)
    service.error = None
    assert direct.delete(state_key(tag_of("payments")))
    time.sleep(seconds)
    assert outcome(pay) == expected


def test_a_lost_name_is_registered_again(
    service: Service, direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that uses the breaker registers it every minute; here twice a second."""
    assert shared_state.REGISTER_SECONDS == 60
    monkeypatch.setattr(shared_state, "REGISTER_SECONDS", 0.5)
    pay = CircuitBreaker("payments")(service)
    pay()
    until(lambda: "payments" in read_states())
    assert direct.delete(f"{prefix}{{breakers}}")
    until(lambda: "payments" in read_states())


def test_different_options_of_one_name_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the options of both."""
    breakers = [CircuitBreaker("two", minimum=minimum) for minimum in (20, 20, 30, 30)]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'minimum': 20" in record.message
    assert "'minimum': 30" in record.message
    assert len(breakers) == 4


def test_a_call_begins_once(service: Service) -> None:
    """A call that is used twice, or ends without a beginning, is an error of the code."""
    breaker = CircuitBreaker("payments")
    with breaker.call() as call:
        service()
    with pytest.raises(RuntimeError, match="only once"):
        call.__enter__()
    with pytest.raises(RuntimeError, match="has not begun"):
        breaker.call().__exit__(None, None, None)


def test_breakers_work_for_coroutines_and_blocks(service: Service) -> None:
    """Decorated coroutine functions, `async with` and `with` share the breaker."""
    breaker = CircuitBreaker("payments", failures=3, open_for="0.3s", probes=3)

    @breaker
    async def pay() -> str:
        await asyncio.sleep(0.001)
        return service()

    async def pay_in_a_block() -> str:
        async with breaker.call():
            return service()

    def pay_in_a_plain_block() -> str:
        with breaker.call():
            return service()

    async def all_of_them() -> list[Any]:
        tasks = [pay(), pay_in_a_block(), asyncio.to_thread(pay_in_a_plain_block)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [type(each).__name__ for each in results]

    assert async_to_sync(all_of_them)() == ["str"] * 3
    service.error = OSError()
    assert async_to_sync(all_of_them)() == ["OSError"] * 3
    assert async_to_sync(all_of_them)() == ["CircuitOpen"] * 3
    service.error = None
    until(lambda: async_to_sync(all_of_them)() == ["str"] * 3)
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("later", "later"), (None, None), (lambda amount: f"owed {amount}", "owed 5")],
)
def test_a_fallback_replaces_the_call(service: Service, fallback: object, expected: object) -> None:
    """It is a value, which may be None, or a callable with the arguments of the call."""
    breaker = CircuitBreaker("payments", failures=1, fallback=fallback, open_for="30s")
    pay = breaker(service)

    @breaker
    async def apay(amount: int) -> str:
        return service()

    service.error = CircuitOpen("another", 1.0)
    with pytest.raises(CircuitOpen, match="another"):
        pay(5)
    service.error = OSError()
    outcome(pay, 5)
    assert (pay(5), asyncio.run(apay(5)), service.called) == (expected, expected, 2)


def test_an_open_breaker_in_a_view_becomes_a_503() -> None:
    """The middleware, and the exception handler of DRF, convert the exception."""
    from rest_framework.views import APIView

    class Pay(APIView):
        authentication_classes = ()
        permission_classes = ()

        def get(self, request: Any) -> None:
            raise CircuitOpen("payments", 2.5)

    response = Pay.as_view()(RequestFactory().get("/"))
    assert (response.status_code, response["Retry-After"]) == (503, "3")
    middleware = RateLimitMiddleware(lambda request: JsonResponse({}))
    for accept, text in (
        ("text/html", b"<h1>Not available</h1>"),
        ("*/*", b"Try again in 3 seconds"),
    ):
        request = RequestFactory(headers={"Accept": accept}).get("/")
        answer = middleware.process_exception(request, CircuitOpen("payments", 2.5))
        assert (answer.status_code, answer["Retry-After"]) == (503, "3")
        assert text in answer.content
    forced = middleware.process_exception(RequestFactory().get("/"), CircuitOpen("payments"))
    assert (forced.status_code, forced.has_header("Retry-After")) == (503, False)


def evaluated(direct: redis.Redis) -> int:
    """Return how often the script was called since the statistics of commands were reset."""
    return int(direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def test_a_breaker_makes_no_round_trip(service: Service, direct: redis.Redis, quiet: None) -> None:
    """Thousands of calls make none."""
    closed = CircuitBreaker("payments")(service)
    stopped = CircuitBreaker("mail", failures=1, open_for="30s", fallback="later")(service)
    closed()
    service.error = OSError()
    outcome(stopped)
    service.error = None
    direct.config_resetstat()
    assert {(closed(), stopped()) for _ in range(1000)} == {("paid", "later")}
    assert evaluated(direct) <= 1  # More than three seconds have passed, on a busy machine.


def test_a_used_breaker_is_reported_once_a_second(service: Service, direct: redis.Redis) -> None:
    """All calls of the second are one report."""
    pay = CircuitBreaker("payments")(service)
    pay()
    direct.config_resetstat()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pay()
    assert 1 <= evaluated(direct) <= 6


def test_without_threads_calls_report(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """They request the state when it is some seconds old."""
    monkeypatch.setattr("django_ratelimit_lua.process.tasks._start_thread", lambda *args: None)
    breaker = CircuitBreaker("payments", minimum=3, open_for="0.5s", probes=1)
    pay = breaker(service)
    assert (pay(), flusher.is_running) == ("paid", False)
    service.error = OSError()
    until(lambda: outcome(pay) == "CircuitOpen")
    service.error = None
    until(lambda: outcome(pay) == "paid")
    assert breaker.state == "closed"


def test_a_disabled_site_has_no_breakers(service: Service, settings: Any) -> None:
    """A failing resource is still called."""
    settings.RATELIMIT_ENABLE = False
    breaker = CircuitBreaker("payments", failures=1)
    service.error = OSError()
    assert {outcome(breaker(service)) for _ in range(50)} == {"OSError"}
    assert breaker.state == "closed"


def test_a_cluster_keeps_breakers_on_all_nodes(service: Service, settings: Any) -> None:
    """They open and close as on a single server, and are listed together."""
    with clusters.cluster() as found:
        settings.CACHES = found.cache()
        breakers = [
            CircuitBreaker(f"payments {number}", failures=1, open_for="0.5s", probes=1)
            for number in range(6)
        ]
        pays = [breaker(service) for breaker in breakers]
        assert [pay() for pay in pays] == ["paid"] * 6
        service.error = OSError()
        assert [outcome(pay) for pay in pays] == ["OSError"] * 6
        until(lambda: list(read_states().values()) == ["open"] * 6)
        service.error = None
        until(lambda: [outcome(pay) for pay in pays] == ["paid"] * 6)
        assert list(read_states().values()) == ["closed"] * 6


def test_the_last_thousand_names_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are made at run time do not fill Redis."""
    monkeypatch.setattr("django_ratelimit_lua.contrib.breakers.shared_state.MAX_NAMES", 5)
    assert all(register_name(f"shop {number}", Deadline(5.0)) for number in range(20))
    assert len(read_states()) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failure_ratio": 0}, "from 0.000001 to 1"),
        ({"failure_ratio": "0.5"}, "failure_ratio is '0.5'"),
        ({"failure_ratio": float("nan")}, "failure_ratio is nan"),
        ({"ignore": "OSError"}, "ignore is 'OSError': must be an exception class"),
        ({"ignore": (OSError, 404)}, "ignore is "),
        ({"ignore": OSError()}, "ignore is "),
        ({"failure_ratio": None}, "would never open"),
        ({"minimum": 0}, "minimum is 0"),
        ({"failures": 0}, "failures is 0"),
        ({"probes": True}, "probes is True"),
        ({"window": "soon"}, "window: 'soon' is not a time"),
        ({"open_for": "1ms"}, "open_for is '1ms': must be from 100ms"),
    ],
)
def test_an_invalid_declaration_is_an_error(options: dict[str, Any], words: str) -> None:
    """The error contains the name of the breaker and the argument."""
    with pytest.raises(LimitError, match=f"^Breaker 'odd': .*{words}"):
        CircuitBreaker("odd", **options)


@pytest.mark.parametrize("name", ["", "n" * 201, "two\nlines", "\0", "\ud800", "\x85", None, 5])
def test_an_invalid_name_is_an_error(name: Any) -> None:
    """A name is text that every database stores, in one line."""
    with pytest.raises(LimitError, match="the name must be 1 to 200 characters"):
        CircuitBreaker(name)


def test_functions_with_unsuitable_results_cannot_be_decorated() -> None:
    """They are generators, classes, other objects, and functions with an async fallback."""

    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> AsyncIterator[int]:
        yield 1

    async def later() -> None:
        pass

    for wrong in (rows, arows, View, 5, None, classmethod(rows), staticmethod(len)):
        with pytest.raises(LimitError, match="decorate the function that calls the resource"):
            CircuitBreaker("odd")(wrong)
    with pytest.raises(LimitError, match="fallback is a coroutine function"):
        CircuitBreaker("odd", fallback=later)(len)


def test_a_decorated_function_keeps_its_type() -> None:
    """Type checkers see the arguments and the result."""

    @CircuitBreaker("typed")
    def call(number: int) -> str:
        return str(number)

    assert assert_type(call(number=1), str) == "1"


@pytest.mark.parametrize("error", [CircuitOpen("payments", 2.5), CircuitOpen("payments")], ids=str)
def test_an_exception_can_be_pickled(error: CircuitOpen) -> None:
    """Task queues send it to other processes."""
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_without_the_app_a_breaker_names_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """The declaration raises an error."""
    monkeypatch.setattr("django_ratelimit_lua.extension.extensions", [])
    with pytest.raises(ImproperlyConfigured, match="to INSTALLED_APPS, to use circuit breakers"):
        CircuitBreaker("payments")
