"""`CircuitBreaker`: stops calls of a resource that fails, in any code."""

from __future__ import annotations

import inspect
import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from django.apps import apps
from django.core.exceptions import (
    BadRequest,
    ImproperlyConfigured,
    PermissionDenied,
    RequestAborted,
    SuspiciousOperation,
)
from django.http import Http404, UnreadablePostError
from django.http.multipartparser import MultiPartParserError

from ...engine.run import Waiting, arun, run
from ...engine.waiting import to_the_end
from ...extension import install, is_installed
from ...process.clock import Clock
from ...rules.callsite import why_undecorated
from ...rules.fallbacks import NO_FALLBACK, afall_back, async_mismatch, fall_back
from ...rules.stacks import Mark, register
from .circuits import Ticket, circuits
from .exceptions import CircuitOpen
from .rows import BreakerError, breaker_name, thresholds

logger = logging.getLogger("django_ratelimit_lua")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Time = str | float | timedelta
Failure = object
"""Classes of exceptions, statuses, ranges of statuses, or a callable (answer or exception); or a
tuple of these.
"""
ANSWERED = (Http404, PermissionDenied, SuspiciousOperation, BadRequest, MultiPartParserError)
"""Exceptions of Django that are an answer to a client, below 500: the resource did what it should.
"""
NO_EVIDENCE = (
    CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
    UnreadablePostError,
    RequestAborted,
    CircuitOpen,
)
"""Exceptions that are no evidence about the resource: the call was cancelled, its client has
disconnected, or another breaker did not let it through.
"""
Instead = Literal["503", "fallback", "raises"]
"""The result of a call that is not made."""


def mark(
    guard: Callable[..., object], breaker: CircuitBreaker, fallback: object, instead: Instead
) -> Callable[..., object]:
    """Register that a breaker guards a function, for the inspector.

    Args:
        guard: The function that the decorator made.
        breaker: The breaker.
        fallback: The fallback of the decorator, if there is one.
        instead: The result of a stopped call without a `fallback`.
    """
    if fallback is not NO_FALLBACK:
        instead = "fallback"
    return register(Mark(guard, "breakers", (breaker.name, instead)))


class CircuitBreaker:
    """Calls a resource while it works, and stops calls while it fails.

    All processes share the state.

    >>> payments = CircuitBreaker("payments", failure_ratio=0.5, slow="2s", fallback="later")
    >>> @payments
    ... def pay(amount):
    ...     return f"paid {amount}"
    >>> pay(5), payments.state
    ('paid 5', 'closed')

    A closed breaker lets all calls through. It opens if, of at least `minimum` calls in the last
    `window`, `failure_ratio` failed, or `slow_ratio` took `slow` or longer; or if `failures` of
    them failed, whatever the number of calls. A call counts as slow as soon as it has lasted
    `slow`, even before it ends.

    An open breaker lets no call through for `open_for`. Then it lets `probes` calls through at a
    time; each occupies a slot until it ends, for at most `open_max`. If all of them succeed, it
    closes. If one fails or is slow, it opens for twice as long as before, at most `open_max`. Each
    pause is extended by a random amount of up to a tenth.

    Times are text such as "30s", seconds, or a timedelta.

    Args:
        name: The name, by which all processes share the state, and by which a row of the admin
            changes the thresholds.
        failure: What counts as a failure: classes of exceptions, statuses (`503`,
            `range(500, 600)`), a callable (answer or exception), or a tuple of these. By default,
            a failure is any exception except those that respond to a client (Http404,
            PermissionDenied, and others with a `status_code` below 500), and an answer whose
            `status_code` is 500 or more. A cancelled call is neither a failure nor a success, but
            it is slow if it has lasted `slow`.
        fallback: The result of a stopped call: a value, or a callable with the same arguments.
            Without it, `CircuitOpen` is raised.

    Raises:
        LimitError: An argument is invalid.
        ImproperlyConfigured: The app is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        failure_ratio: float | None = 0.5,
        failures: int | None = None,
        slow: Time | None = None,
        slow_ratio: float | None = 0.8,
        minimum: int = 20,
        window: Time = "30s",
        open_for: Time = "10s",
        open_max: Time | None = None,
        probes: int = 3,
        failure: Failure = None,
        fallback: object = NO_FALLBACK,
    ) -> None:
        if apps.ready and not is_installed("breakers"):
            raise ImproperlyConfigured(f"{install('breakers')}, to use circuit breakers.")
        self.name = breaker_name(name)
        self.fallback = fallback
        self.is_failure = _judge(name, failure)
        given = {
            "failure_ratio": failure_ratio,
            "failures": failures,
            "slow": slow,
            "slow_ratio": slow_ratio,
            "minimum": minimum,
            "window": window,
            "open_for": open_for,
            "open_max": open_max,
            "probes": probes,
        }
        self._circuit = circuits.get(name, thresholds(name, given))

    def __repr__(self) -> str:
        state = self.state
        if self.forced:
            state += f", forced {self.forced}"
        return f"<CircuitBreaker {self.name!r}: {state}>"

    @property
    def state(self) -> str:
        """Return the breaker's own state, even if another one is `forced`.

        It is closed, open or half-open, as this process has received it last.
        """
        return self._circuit.state

    @property
    def forced(self) -> str:
        """Return the state that an operator has forced: open, closed, or empty for no forced state.

        >>> CircuitBreaker("maps").forced
        ''
        """
        row = self._circuit.forced_by()
        if row is None:
            return ""
        return row.forced

    @overload
    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, /) -> Call: ...

    def call(
        self, function: Callable[..., object] | None = None, /, *args: object, **kwargs: object
    ) -> Any:
        """Call a function through the breaker, with these arguments, as if it were decorated.

        The result of a coroutine function is awaited by the caller. Without a function, return a
        context manager for one call, for `with` or `async with`.

        Raises:
            CircuitOpen: The call is stopped, and there is no fallback.

        >>> CircuitBreaker("stock").call(max, 3, 5)
        5
        >>> with CircuitBreaker("mail").call() as call:
        ...     call.judge(200)
        """
        if function is None:
            return Call(self)
        return self(function)(*args, **kwargs)

    def __call__(self, function: F) -> F:
        """Decorate a function, plain or `async def`."""
        if isinstance(function, type):
            raise BreakerError(self.name, "", f"must decorate a function, not {function!r}")
        if problem := why_undecorated(function):
            raise BreakerError(self.name, "", problem)
        inner = inspect.unwrap(function)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            problem = (
                f"cannot decorate the generator {inner.__qualname__}: decorate the "
                "functions that it calls, or use `with breaker.call():`"
            )
            raise BreakerError(self.name, "", problem)

        is_async = inspect.iscoroutinefunction(function)
        if problem := async_mismatch(self.fallback, is_async=is_async):
            raise BreakerError(self.name, "fallback", problem)
        if is_async:
            guard: Callable[..., object] = self.aguarded(
                function, partial(afall_back, self.fallback)
            )
        else:
            guard = self.guarded(function, partial(fall_back, self.fallback))
        return cast(F, mark(guard, self, self.fallback, "raises"))

    def guarded(
        self, function: Callable[..., object], instead: Callable[..., object]
    ) -> Callable[..., object]:
        """Return a function that calls `function` through the breaker.

        Args:
            function: The function.
            instead: A function that returns the result of a stopped call.
        """

        @wraps(function)
        def guard(*args: object, **kwargs: object) -> object:
            call = Call(self)
            try:
                with call:
                    answer = function(*args, **kwargs)
                    call.judge(answer)
                    return answer
            except CircuitOpen as error:
                if call.is_admitted:
                    raise  # It is of another breaker.
                return instead(error, *args, **kwargs)

        return guard

    def aguarded(
        self, function: Callable[..., Awaitable[object]], instead: Callable[..., Awaitable[object]]
    ) -> Callable[..., Awaitable[object]]:
        """Return `guarded` for a coroutine function."""

        @wraps(function)
        async def guard(*args: object, **kwargs: object) -> object:
            call = Call(self)
            try:
                async with call:
                    answer = await function(*args, **kwargs)
                    call.judge(answer)
                    return answer
            except CircuitOpen as error:
                if call.is_admitted:
                    raise  # It is of another breaker.
                return await instead(error, *args, **kwargs)

        return guard


class Call:
    """One call of a resource: a `with` block. The result is counted when the block ends."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._circuit = breaker._circuit
        self._is_failure = breaker.is_failure
        self._failed: bool | None = False
        self.is_admitted = False

    def judge(self, answer: object) -> None:
        """Judge an answer, such as a response, by the breaker's `failure`."""
        self._failed = self._is_failure(answer)

    def fail(self) -> None:
        """Count the call as failed, even if the block ends without an exception."""
        self._failed = True

    def __enter__(self) -> Call:
        ticket = self._circuit.calm_ticket()
        if ticket is None:
            ticket = run(self._circuit.admitting())
        return self._begin(ticket)

    async def __aenter__(self) -> Call:
        ticket = self._circuit.calm_ticket()
        if ticket is None:
            ticket = await arun(self._circuit.admitting())
        return self._begin(ticket)

    def _begin(self, ticket: Ticket) -> Call:
        self._ticket = ticket
        self.is_admitted = True
        self._began = Clock.monotonic()
        self._number = self._circuit.begin(ticket, self._began)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        waiting = self._end(error)
        if waiting is not None:
            run(waiting)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        waiting = self._end(error)
        if waiting is not None:
            await to_the_end(arun(waiting))

    def _end(self, error: BaseException | None) -> Waiting[object] | None:
        """Count the result. Return the steps to perform immediately, or None."""
        failed = self._failed
        if error is not None and not failed:
            failed = self._is_failure(error)
        return self._circuit.end(self._ticket, self._number, self._began, failed)


def _judge(name: str, failure: Failure) -> Callable[[object], bool | None]:
    """Return a function that returns whether an answer, or an exception, is a failure.

    The function returns None if the call says nothing about the resource.
    """
    if failure is None:
        return _by_default
    parts = failure if isinstance(failure, tuple) else (failure,)
    if not parts:
        raise BreakerError(
            name, "failure", "is empty, so no call would be a failure; remove it for the default"
        )
    kinds: tuple[type[BaseException], ...] = ()
    statuses: list[range] = []
    functions: list[Callable[[object], object]] = []
    for part in parts:
        if isinstance(part, type) and issubclass(part, BaseException):
            kinds += (part,)
        elif isinstance(part, range):
            statuses.append(part)
        elif isinstance(part, int) and 100 <= part <= 599:
            statuses.append(range(part, part + 1))
        elif callable(part) and not isinstance(part, type):
            functions.append(part)
        else:
            right = "exception classes, statuses from 100 to 599, ranges of these, or a callable"
            raise BreakerError(name, "failure", f"is {part!r}: must be {right}")

    def judge(answer: object) -> bool | None:
        if isinstance(answer, kinds):
            return True
        if isinstance(answer, NO_EVIDENCE):
            return None
        if not isinstance(answer, BaseException):
            status = getattr(answer, "status_code", answer)
            if type(status) is int and any(status in one for one in statuses):
                return True
        try:
            return any(function(answer) for function in functions)
        except Exception:
            logger.exception(
                "The `failure` of the breaker %r raised an exception for %.200r, which "
                "does not count as a failure",
                name,
                answer,
            )
            return False

    return judge


def _by_default(answer: object) -> bool | None:
    if isinstance(answer, NO_EVIDENCE):
        return None
    if isinstance(answer, ANSWERED):
        return False
    status = getattr(answer, "status_code", None)
    if isinstance(status, int):
        return status >= 500
    return isinstance(answer, BaseException)
