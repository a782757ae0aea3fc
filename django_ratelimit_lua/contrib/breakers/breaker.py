"""`CircuitBreaker`: stops the calls of a resource that fails, in all processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from ...engine.run import arun, run
from ...extension import install_hint, is_installed
from ...limits.rate import SECOND, LimitError, time_us
from ...process import Clock
from ...views.fallback import NO_FALLBACK, afall_back, async_mismatch, fall_back
from .exceptions import CircuitOpen
from .shared_state import NAME, SharedState, Thresholds, Ticket

F = TypeVar("F", bound=Callable[..., Any])
Time = str | float | timedelta
Ignored = type[Exception] | Sequence[type[Exception]]
PARTS = 10
"""The parts of a window. The calls of the oldest part expire together."""
MILLION = 1_000_000
MAX_NUMBER = 1_000_000
NO_RESULT = (CircuitOpen, KeyboardInterrupt, SystemExit, GeneratorExit)
"""The state of another breaker and the end of a process are no results of the resource."""
MIN_TIME_US, MAX_TIME_US = SECOND // 10, 86_400 * SECOND


class CircuitBreaker:
    """Stops the calls of a resource that fails, in all processes.

    >>> payments = CircuitBreaker("payments", failures=5, slow="2s", fallback="later")
    >>> @payments
    ... def pay(amount):
    ...     return f"paid {amount}"
    >>> pay(5)
    'paid 5'
    >>> with payments.call():
    ...     pass

    A call fails if it raises an exception, or lasts longer than `slow`. A closed breaker allows all
    calls. It opens if at least `minimum` calls have ended within `window` and the ratio of failures
    is at least `failure_ratio`, or after `failures` in a row in one process. An open breaker stops
    all calls for `open_for`. Then it is half-open and allows `probes` calls: it closes when that
    many have succeeded, and opens when one has failed. If they do not end, it allows others after
    `open_for`.

    All calls are allowed if Redis is unavailable.

    Args:
        name: The name by which all processes share the state: 1 to 200 characters.
        failure_ratio: The ratio, from 0 to 1. None: the ratio does not matter.
        minimum: Minimum number of calls before the ratio is evaluated.
        window: Text such as "30s", seconds, or a timedelta, like all times.
        failures: The number of failures in a row. None: it does not matter.
        slow: The maximum duration of a successful call. None: the duration does not matter.
        ignore: Exceptions that are not failures, unless the call was slow. A cancelled call that
            was not slow is neither a failure nor a success.
        open_for: How long all calls are stopped.
        probes: The number of calls that must succeed before the breaker closes.
        fallback: The result of a stopped call of a decorated function: a value, or a callable with
            the same arguments. Without it, `CircuitOpen` is raised.

    Raises:
        LimitError: An argument is invalid.
        ImproperlyConfigured: The app is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        failure_ratio: float | None = 0.5,
        minimum: int = 20,
        window: Time = "30s",
        failures: int | None = None,
        slow: Time | None = None,
        ignore: Ignored = (),
        open_for: Time = "10s",
        probes: int = 3,
        fallback: object = NO_FALLBACK,
    ) -> None:
        """Check the arguments. Breakers with the same name share their state."""
        if apps.ready and not is_installed("breakers"):
            raise ImproperlyConfigured(f"{install_hint('breakers')}, to use circuit breakers.")
        self.name = name
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self._error("the name must be 1 to 200 characters, without control characters")
        self.fallback = fallback
        self.ignore = self._read_exceptions(ignore)
        self.slow = float("inf")
        if slow is not None:
            self.slow = self._read_time("slow", slow) / SECOND
        if failures is not None:
            self._read_number("failures", failures)
        elif failure_ratio is None:
            raise self._error("would never open: set failure_ratio or failures")
        thresholds = Thresholds(
            width_us=self._read_time("window", window) // PARTS,
            minimum=self._read_number("minimum", minimum),
            ratio_ppm=self._read_ratio(failure_ratio),
            open_us=self._read_time("open_for", open_for),
            probes=self._read_number("probes", probes),
        )
        self._shared = SharedState(name, thresholds, failures)

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.name!r}: {self.forced or self.state}>"

    def _error(self, text: str) -> LimitError:
        """Return an error that names the breaker."""
        return LimitError(f"Breaker {self.name!r}: {text}")

    def _read_ratio(self, ratio: float | None) -> int:
        """Return the failure ratio in parts per million; 0 if it does not matter."""
        if ratio is None:
            return 0
        if type(ratio) not in (int, float) or not 1 / MILLION <= ratio <= 1:
            raise self._error(f"failure_ratio is {ratio!r}: must be from 0.000001 to 1")
        return round(ratio * MILLION)

    def _read_time(self, option: str, value: Time) -> int:
        """Return a time in microseconds. Raises `LimitError` if it is invalid."""
        try:
            time = time_us(value)
        except LimitError as error:
            raise self._error(f"{option}: {error}") from None
        if not MIN_TIME_US <= time <= MAX_TIME_US:
            raise self._error(f"{option} is {value!r}: must be from 100ms to 1d")
        return time

    def _read_number(self, option: str, value: int) -> int:
        """Return a whole number. Raises `LimitError` if it is invalid."""
        if type(value) is not int or not 1 <= value <= MAX_NUMBER:
            raise self._error(f"{option} is {value!r}: must be from 1 to {MAX_NUMBER}")
        return value

    def _read_exceptions(self, ignore: Ignored) -> tuple[type[Exception], ...]:
        """Return exception classes. Raises `LimitError` if one is not."""
        kinds = tuple(ignore) if isinstance(ignore, (list, tuple)) else (ignore,)
        for kind in kinds:
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                raise self._error(f"ignore is {ignore!r}: must be an exception class, or several")
        return kinds

    @property
    def state(self) -> str:
        """Return the breaker's own state, as this process has received it last.

        It is closed, open or half-open.
        """
        return self._shared.state

    @property
    def forced(self) -> str:
        """Return open or closed if an operator has forced that state, else an empty string."""
        return self._shared.forced

    def call(self) -> Call:
        """Return a context manager for one call, for `with` or `async with`.

        It raises `CircuitOpen` if the call is stopped, also if there is a fallback.
        """
        return Call(self, self._shared)

    def __call__(self, function: F) -> F:
        """Decorate a function, plain or `async def`."""
        inner = inspect.unwrap(function)
        is_generator = inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
        if isinstance(function, (type, staticmethod)) or not callable(function) or is_generator:
            raise self._error(f"decorate the function that calls the resource, not {function!r}")
        is_async = iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
        if problem := async_mismatch(self.fallback, is_async=is_async):
            raise self._error(f"fallback {problem}")

        @wraps(function)
        def guarded(*args: object, **kwargs: object) -> object:
            call = self.call()
            try:
                with call:
                    return function(*args, **kwargs)
            except CircuitOpen as error:
                if call.is_allowed:
                    raise  # Another breaker has stopped a call that the function makes.
                return fall_back(self.fallback, error, *args, **kwargs)

        @wraps(function)
        async def aguarded(*args: object, **kwargs: object) -> object:
            call = self.call()
            try:
                async with call:
                    return await function(*args, **kwargs)
            except CircuitOpen as error:
                if call.is_allowed:
                    raise
                return await afall_back(self.fallback, error, *args, **kwargs)

        return cast(F, aguarded if is_async else guarded)


class Call:
    """One call: a context manager."""

    __slots__ = ("_began", "_breaker", "_shared", "_ticket", "is_allowed")

    def __init__(self, breaker: CircuitBreaker, shared: SharedState) -> None:
        self._breaker = breaker
        self._shared = shared
        self.is_allowed = False

    def __enter__(self) -> Call:
        ticket = self._find_ticket()
        if ticket is None:
            ticket = run(self._shared.request_ticket())
        return self._begin(ticket)

    async def __aenter__(self) -> Call:
        ticket = self._find_ticket()
        if ticket is None:
            ticket = await arun(self._shared.request_ticket())
        return self._begin(ticket)

    def _find_ticket(self) -> Ticket | None:
        """Return the ticket by the received state; None if the state must be requested."""
        if self.is_allowed:
            raise RuntimeError("A call can begin only once: use `with breaker.call()` for each.")
        return self._shared.allow_by_received_state()

    def _begin(self, ticket: Ticket) -> Call:
        """Begin the call that a ticket allows."""
        self._ticket = ticket
        self._began = Clock.monotonic()
        self.is_allowed = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        result = self._count_end(error)
        if result:
            run(self._shared.report(self._ticket.version, result))

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        result = self._count_end(error)
        if result:
            await arun(self._shared.report(self._ticket.version, result))

    def _count_end(self, error: BaseException | None) -> bytes:
        """Count the call. Return the result to report at once, or an empty string."""
        if not self.is_allowed:
            raise RuntimeError("This call has not begun: use `with breaker.call()`.")
        if isinstance(error, NO_RESULT):
            return b""
        was_slow = Clock.monotonic() - self._began > self._breaker.slow
        is_expected = error is None or isinstance(error, self._breaker.ignore)
        was_cancelled = not is_expected and not isinstance(error, Exception)
        if was_cancelled and not was_slow:
            return b""
        return self._shared.count_call(self._ticket, was_slow or not is_expected)
