"""`CircuitBreaker`: leaves a sick resource alone, for use anywhere."""

from __future__ import annotations

import functools
import inspect
import logging
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType
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
from ...rules.fallbacks import NO_FALLBACK, afall_back, async_mismatch, fall_back
from ...rules.stacks import Mark, register
from .circuits import WORDS, Ticket, circuits
from .exceptions import CircuitOpen
from .rows import BreakerError, breaker_name, thresholds

logger = logging.getLogger("django_ratelimit_lua")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Time = str | float | timedelta
Failure = Any
"""Classes of exceptions, statuses, ranges of statuses, or a callable (answer or exception); or a
tuple of these.
"""
ANSWERED = (Http404, PermissionDenied, SuspiciousOperation, BadRequest, MultiPartParserError)
"""Exceptions of Django that are an answer to a client, below 500: the resource did what it should.
"""
CANCELLED = (CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
HUNG_UP = (UnreadablePostError, RequestAborted)
"""A client that has disconnected is no evidence about the resource."""


Instead = Literal["503", "fallback", "raises"]
"""What comes of a call that is not made."""


def instead_of(fallback: Any, otherwise: Instead) -> Instead:
    """What comes of a call that is not made; `otherwise`: without a fallback."""
    return otherwise if fallback is NO_FALLBACK else "fallback"


def mark(
    guard: Callable[..., Any], breaker: CircuitBreaker, instead: Instead
) -> Callable[..., Any]:
    """Leave on a function that a breaker guards it, for the inspector."""
    return register(Mark(guard, "breakers", (breaker.name, instead)))


class CircuitBreaker:
    """Calls a resource while it is well, and leaves it alone while it is not: the state is that of
    all processes.

    >>> payments = CircuitBreaker("payments", failure_ratio=0.5, slow="2s", fallback="later")
    >>> @payments
    ... def pay(amount):
    ...     return f"paid {amount}"
    >>> pay(5), payments.state
    ('paid 5', 'closed')

    Closed, all calls are made. It opens when, of at least `minimum` calls in the last `window`,
    `failure_ratio` failed, or `slow_ratio` took `slow` or longer; or when `failures` of them
    failed, however many there were. A call counts as slow once it has lasted `slow`, whether it has
    ended or not. Open, none is made for `open_for`; then `probes` at a time are, each in a slot
    that it keeps until it ends, for `open_max` at most. Where all of them succeed, a tenth of the
    calls is let through, then a quarter, half, and all; where one fails, or is slow, it opens for
    twice as long as before, at most `open_max`. A tenth more or less of each pause is left to
    chance.

    - `name`: by which all processes share the state, and a row of the admin retunes it;
    - `failure`: what is a failure: classes of exceptions, statuses (`503`, `range(500, 600)`), a
      callable (answer or exception), or a tuple of these. By default any exception but those that
      answer a client (Http404, PermissionDenied, and others with a `status_code` below 500), and an
      answer whose `status_code` is 500 or more. A call that is cancelled is neither a failure nor a
      success, but slow if it had lasted `slow`;
    - `fallback`: what a call returns that is not made: a value, or a callable with the same
      arguments; else `CircuitOpen` is raised;

    Times are text such as "30s", seconds, or a timedelta. Raises `LimitError` for what cannot be
    understood, and `ImproperlyConfigured` if the app is not installed.
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
        fallback: Any = NO_FALLBACK,
    ) -> None:
        if apps.ready and not is_installed("breakers"):
            raise ImproperlyConfigured(f"{install('breakers')}, to use circuit breakers.")
        self.name = breaker_name(name)
        given: dict[str, Any] = {
            "failure_ratio": failure_ratio,
            "failures": failures,
            "slow": slow,
            "slow_ratio": slow_ratio,
            "minimum": minimum,
            "window": window,
            "open_for": open_for,
            "probes": probes,
        }
        if open_max is not None:
            given["open_max"] = open_max
        self.fallback = fallback
        self.is_failure = _judge(name, failure)
        self._circuit = circuits.get(name, thresholds(name, given))

    def __repr__(self) -> str:
        forced = f", forced {self.forced}" if self.forced else ""
        return f"<CircuitBreaker {self.name!r}: {self.state}{forced}>"

    @property
    def state(self) -> str:
        """Its own state: closed, open, half-open or ramp, as far as this process knows.

        Also while it is `forced`.
        """
        return WORDS[self._circuit.state]

    @property
    def forced(self) -> str:
        """What an operator has forced and still holds: open or closed, as far as this process
        knows; empty: nothing.

        >>> CircuitBreaker("maps").forced
        ''
        """
        force = self._circuit.force()
        return "" if force is None else force.how

    @overload
    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, /) -> Call: ...

    def call(self, function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function through the breaker, with these arguments, as if it were decorated: of a
        coroutine function, await the result.

        Without a function, return one call as a context manager, `with` or `async with`. Raises
        `CircuitOpen` if the call is not to be made.

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
        if isinstance(function, type) or not callable(function):
            raise BreakerError(self.name, "", f"decorates functions, and {function!r} is none")
        inner = inspect.unwrap(function)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            problem = (
                f"cannot judge {inner.__qualname__}, a generator: decorate what it calls, "
                "or use `with breaker.call():`"
            )
            raise BreakerError(self.name, "", problem)

        def instead(error: CircuitOpen, *args: Any, **kwargs: Any) -> Any:
            return fall_back(self.fallback, error, *args, **kwargs)

        async def ainstead(error: CircuitOpen, *args: Any, **kwargs: Any) -> Any:
            return await afall_back(self.fallback, error, *args, **kwargs)

        if problem := async_mismatch(self.fallback, is_async=inspect.iscoroutinefunction(function)):
            raise BreakerError(self.name, "fallback", problem)
        if inspect.iscoroutinefunction(function):
            guard = self.aguarded(function, ainstead)
        else:
            guard = self.guarded(function, instead)
        return cast(F, mark(guard, self, instead_of(self.fallback, "raises")))

    def guarded(
        self, function: Callable[..., Any], instead: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The function, called through the breaker. `instead` answers a call that is not made."""

        @functools.wraps(function)
        def guard(*args: Any, **kwargs: Any) -> Any:
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
        self, function: Callable[..., Awaitable[Any]], instead: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """`guarded`, for coroutine functions."""

        @functools.wraps(function)
        async def guard(*args: Any, **kwargs: Any) -> Any:
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
    """One call of a resource: what happens inside `with` is judged when it ends."""

    __slots__ = (
        "_began",
        "_circuit",
        "_failed",
        "_is_failure",
        "_number",
        "_ticket",
        "is_admitted",
    )

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._circuit = breaker._circuit
        self._is_failure = breaker.is_failure
        self._failed: bool | None = False
        self.is_admitted = False

    def judge(self, answer: Any) -> None:
        """Judge an answer by what the breaker takes for a failure: a response, or whatever its
        callable knows.
        """
        self._failed = self._is_failure(answer)

    def fail(self) -> None:
        """It has failed, whatever comes of the rest."""
        self._failed = True

    def __enter__(self) -> Call:
        ticket = self._circuit.calm_ticket()
        return self._begin(run(self._circuit.admitting()) if ticket is None else ticket)

    async def __aenter__(self) -> Call:
        ticket = self._circuit.calm_ticket()
        return self._begin(await arun(self._circuit.admitting()) if ticket is None else ticket)

    def _begin(self, ticket: Ticket) -> Call:
        self._ticket, self.is_admitted = ticket, True
        self._began = time.monotonic()
        is_noted = self._circuit.slow_seconds is not None or ticket.probe
        self._number = self._circuit.begin(ticket, self._began) if is_noted else 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        waiting = self._end(error)
        if waiting is not None:
            run(waiting)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        waiting = self._end(error)
        if waiting is not None:
            await to_the_end(arun(waiting))

    def _end(self, error: BaseException | None) -> Waiting[Any] | None:
        """Count what came of it; return what is to be done at once, if anything is."""
        failed = self._failed if error is None or self._failed else self._is_failure(error)
        return self._circuit.end(self._ticket, self._number, self._began, failed)


def _judge(name: str, failure: Failure) -> Callable[[Any], bool | None]:
    """A function that returns whether an answer, or an exception, is a failure.

    None: it is no evidence about the resource.
    """
    if failure is None:
        return _by_default
    parts = failure if isinstance(failure, (tuple, list, set, frozenset)) else (failure,)
    kinds: list[type[BaseException]] = []
    statuses: list[int | range] = []
    functions: list[Callable[[Any], Any]] = []
    for part in parts:
        if isinstance(part, type) and issubclass(part, BaseException):
            kinds.append(part)
        elif isinstance(part, range) or (
            isinstance(part, int) and not isinstance(part, bool) and 100 <= part <= 599
        ):
            statuses.append(part)
        elif callable(part) and not isinstance(part, type):
            functions.append(part)
        else:
            right = (
                "classes of exceptions, statuses from 100 to 599, ranges of these, or a callable"
            )
            raise BreakerError(name, "failure", f"is {part!r}: must be {right}")
    if not parts:
        raise BreakerError(name, "failure", "is empty: nothing would be a failure")
    exceptions = tuple(kinds)

    def judge(answer: Any) -> bool | None:
        if isinstance(answer, BaseException):
            if exceptions and isinstance(answer, exceptions):
                return True
            if isinstance(answer, (*CANCELLED, CircuitOpen)):
                return None
        else:
            status = getattr(answer, "status_code", answer)
            if statuses and type(status) is int and any(_is_in(status, one) for one in statuses):
                return True
        for function in functions:
            try:
                if function(answer):
                    return True
            except Exception:
                logger.exception(
                    "The breaker %r: its `failure` cannot judge %.200r, which counts as none",
                    name,
                    answer,
                )
        return False

    return judge


def _is_in(status: int, which: int | range) -> bool:
    return status in which if isinstance(which, range) else status == which


def _by_default(answer: Any) -> bool | None:
    status = getattr(answer, "status_code", None)
    if status is None and not isinstance(answer, BaseException):
        return False
    if isinstance(answer, BaseException):
        if not isinstance(answer, Exception) or isinstance(answer, (CircuitOpen, *HUNG_UP)):
            return None
        if isinstance(answer, ANSWERED):
            return False
        return not isinstance(status, int) or status >= 500
    return isinstance(status, int) and status >= 500
