"""`@circuit`, a circuit breaker around a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from django.http import HttpRequest

from ...decorators import in_thread, is_async
from ...engine.run import arun, run
from ...identity.request_state import plain
from ...rules.fallbacks import NO_FALLBACK, async_mismatch
from ...web.responses import compose
from .breaker import CircuitBreaker, mark
from .exceptions import CircuitOpen
from .responses import ReducedCapacity
from .rows import BreakerError

View = TypeVar("View", bound=Callable[..., Any])


def circuit(
    breaker: str | CircuitBreaker, *, fallback: object = NO_FALLBACK, **options: Any
) -> Callable[[View], View]:
    """Respond with 503, or the fallback, instead of a view while its breaker is open.

    >>> @circuit("reports", slow="5s", fallback=lambda request: HttpResponse("yesterday's report"))
    ... def report(request):
    ...     return HttpResponse("today's report")

    It is for function views, methods of class-based views (`method_decorator`) and `async def`
    views.

    Args:
        breaker: A name, or a `CircuitBreaker`.
        fallback: A view. Without it, the response is 503 with `Retry-After`; for clients that
            accept JSON, a problem document of the type *temporary-reduced-capacity*.
        options: The options of `CircuitBreaker`.

    Raises:
        LimitError: An argument is invalid.
    """
    found = breaker
    if isinstance(found, str):
        found = CircuitBreaker(found, **options)
    elif options:
        raise BreakerError(
            found.name, "", f"set {', '.join(options)} on the CircuitBreaker, not on @circuit"
        )
    of_view: Any = fallback
    if of_view is NO_FALLBACK:
        of_view = found.fallback
    if of_view is not NO_FALLBACK and not callable(of_view):
        raise BreakerError(found.name, "fallback", f"is {of_view!r}: must be a view")

    def instead(
        error: CircuitOpen, request: HttpRequest, *args: object, **kwargs: object
    ) -> object:
        if of_view is NO_FALLBACK:
            return run(compose(plain(request), ReducedCapacity(error)))
        return of_view(request, *args, **kwargs)

    async def ainstead(
        error: CircuitOpen, request: HttpRequest, *args: object, **kwargs: object
    ) -> object:
        if of_view is NO_FALLBACK:
            return await arun(compose(plain(request), ReducedCapacity(error)))
        return await in_thread(of_view)(request, *args, **kwargs)

    def decorate(view: View) -> View:
        if isinstance(view, type):
            right = f"@method_decorator(circuit(...), name='dispatch') on {view.__name__}"
            raise BreakerError(
                found.name,
                "",
                f"@circuit is for functions, and {view.__qualname__} is a class: use {right}",
            )
        if problem := async_mismatch(of_view, is_async=is_async(view)):
            raise BreakerError(found.name, "fallback", problem)
        if is_async(view):
            guard: Callable[..., object] = found.aguarded(view, ainstead)
        else:
            guard = found.guarded(view, instead)
        return cast(View, mark(guard, found, of_view, "503"))

    return decorate
