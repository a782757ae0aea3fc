"""Where limits, identities and the store meet: one call, one decision; and `RateLimiter`, for use anywhere."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from .conf import conf
from .exceptions import Ratelimited, StoreError
from .identity import Identity, digest
from .limits.call import Call, Charge, Operation
from .limits.decision import Decision, LimitState
from .limits.limit import Limit, wait_us
from .limits.rate import LimitError, Rate
from .store import get_store

F = TypeVar("F", bound=Callable[..., Any])
RETRY_WHEN_CLOSED = 1.0
"""Seconds a client is told to wait when Redis cannot be asked and `RATELIMIT_ON_STORE_ERROR` is "closed"."""


def describe(
    charges: Sequence[Charge],
    operation: Operation = "hit",
    *,
    partial: bool = False,
    max_wait_us: int | None = None,
) -> Call:
    """The call that decides these charges, with what the settings say about keys and the clock."""
    partial = partial and any(charge.cost for charge in charges)
    now = time.time_ns() // 1000 if conf.CLOCK == "client" else None
    return Call(charges, operation, conf.CACHE_PREFIX, now, max_wait_us, partial)


def check(call: Call) -> Decision:
    """Decide a call: in Redis, or by the failure policy where Redis cannot be asked. Never raises for the latter."""
    if not conf.ENABLE or not call.charges:
        return _unlimited(call)
    try:
        return get_store().run(call)
    except StoreError:
        return _fallback(call)


async def acheck(call: Call) -> Decision:
    """`check`, without blocking the event loop."""
    if not conf.ENABLE or not call.charges:
        return _unlimited(call)
    try:
        return await get_store().arun(call)
    except StoreError:
        return _fallback(call)


def _unlimited(call: Call) -> Decision:
    granted = max((charge.cost for charge in call.charges), default=0)
    return Decision(True, granted=granted if call.operation == "hit" else 0)


def _fallback(call: Call) -> Decision:
    is_open = conf.ON_STORE_ERROR == "open"
    states = tuple(
        LimitState(
            name=charge.limit.name,
            allowed=is_open or charge.limit.mode == "shadow",
            limit=charge.limit.rate.limit,
            used=0,
            remaining=charge.limit.rate.limit if is_open else 0,
            retry_after=0.0 if is_open else RETRY_WHEN_CLOSED,
            reset_after=0.0,
            wait=0.0,
            mode=charge.limit.mode,
        )
        for charge in call.charges
    )
    allowed = all(state.allowed for state in states if state.enforced)
    granted = max((charge.cost for charge in call.charges), default=0) if allowed and call.operation == "hit" else 0
    return Decision(allowed, states, granted, source="fallback")


class RateLimiter:
    """Limits anything, anywhere: a Celery task, a management command, a view.

    >>> mail = RateLimiter("mail", "2/h")
    >>> [mail.hit("ada@example.org").allowed for _ in range(3)]
    [True, True, False]
    >>> mail.peek("ada@example.org").remaining
    0
    >>> mail.refund("ada@example.org").remaining
    1
    >>> mail.reset("ada@example.org")

    - `name`: what the count is kept under. The rate is not part of it: changing the rate keeps the count;
    - `rate`: see `Rate.parse`; or a list of rates that are decided together, all or nothing;
    - the other arguments are those of `Limit`; `algorithm` defaults to `RATELIMIT_ALGORITHM`.

    An identity is whoever is counted: text, bytes, a number, a UUID, None, or a tuple of these. Each method has a
    twin for coroutines with an `a` in front of its name. Costs are whole numbers; times are seconds. Raises
    `LimitError` for a limit that cannot be kept; what happens when Redis cannot be asked, `RATELIMIT_ON_STORE_ERROR`
    says.
    """

    def __init__(self, name: str, rate: Any, *, algorithm: str | None = None, **options: Any) -> None:
        self.name = name
        self._rates = list(rate) if isinstance(rate, (list, set, frozenset)) else [rate]
        self._algorithm = algorithm
        self._options = options
        self._made: dict[str, tuple[Limit, ...]] = {}
        # Whatever is wrong with the limits is said here, not at the first hit.
        if not self._rates or len({limit.name for limit in self.limits}) < len(self._rates):
            raise LimitError(f"RateLimiter {name!r} needs at least one rate, and each only once")

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are decided together."""
        algorithm = self._algorithm or conf.ALGORITHM
        if algorithm not in self._made:
            alone = len(self._rates) == 1
            self._made[algorithm] = tuple(
                Limit(self.name if alone else f"{self.name}:{rate}", rate, algorithm=algorithm, **self._options)
                for rate in map(Rate.parse, self._rates)
            )
        return self._made[algorithm]

    def _call(self, operation: Operation, identity: Identity, cost: int, **options: Any) -> Call:
        who = digest(identity)
        return describe([Charge(limit, who, cost) for limit in self.limits], operation, **options)

    def hit(self, identity: Identity, cost: int = 1, *, partial: bool = False) -> Decision:
        """Take `cost` units; with `partial`, as many of them as there are (`granted` says how many)."""
        return check(self._call("hit", identity, cost, partial=partial))

    async def ahit(self, identity: Identity, cost: int = 1, *, partial: bool = False) -> Decision:
        """`hit`, for coroutines."""
        return await acheck(self._call("hit", identity, cost, partial=partial))

    def peek(self, identity: Identity, cost: int = 1) -> Decision:
        """What a hit of that cost would be told now. Takes nothing."""
        return check(self._call("peek", identity, cost))

    async def apeek(self, identity: Identity, cost: int = 1) -> Decision:
        """`peek`, for coroutines."""
        return await acheck(self._call("peek", identity, cost))

    def refund(self, identity: Identity, cost: int = 1) -> Decision:
        """Give units back, the latest first, and never more than are counted."""
        return check(self._call("refund", identity, cost))

    async def arefund(self, identity: Identity, cost: int = 1) -> Decision:
        """`refund`, for coroutines."""
        return await acheck(self._call("refund", identity, cost))

    def reset(self, identity: Identity) -> None:
        """Forget what is counted for an identity. Raises `StoreError` where Redis cannot be asked."""
        get_store().forget(self._call("refund", identity, 0))

    async def areset(self, identity: Identity) -> None:
        """`reset`, for coroutines."""
        await get_store().aforget(self._call("refund", identity, 0))

    def acquire(self, identity: Identity, cost: int = 1, timeout: float | timedelta | None = None) -> Decision:
        """Wait for one's turn, at most `timeout` seconds (None: as long as it takes).

        The turn is reserved at once, in one call, and then slept for. Where it would come too late, nothing is taken
        and nothing is waited for: the decision is refused, and its `wait` is the time it would have taken.
        """
        decision = check(self._call("hit", identity, cost, max_wait_us=_patience(timeout)))
        if decision.allowed and decision.wait > 0:
            try:
                time.sleep(decision.wait)
            except BaseException:
                self.refund(identity, cost)
                raise
        return decision

    async def aacquire(self, identity: Identity, cost: int = 1, timeout: float | timedelta | None = None) -> Decision:
        """`acquire`, for coroutines; one that is cancelled while it waits gives its turn back."""
        decision = await acheck(self._call("hit", identity, cost, max_wait_us=_patience(timeout)))
        if decision.allowed and decision.wait > 0:
            try:
                await asyncio.sleep(decision.wait)
            except BaseException:
                await self.arefund(identity, cost)
                raise
        return decision

    def __call__(
        self,
        function: F | None = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: float | timedelta | None = 0,
    ) -> Any:
        """Decorate a function, plain or `async def`: it runs if a hit is allowed, else `Ratelimited` is raised.

        `key` and `cost`, where callable, are called with the function's arguments; without a key all its calls
        share one count. `timeout` is how many seconds a call may wait for its turn (None: as long as it takes).

        >>> @RateLimiter("reports", "1/h")
        ... def report():
        ...     return "done"
        >>> report()
        'done'
        >>> report()
        Traceback (most recent call last):
        ...
        django_ratelimit_lua.exceptions.Ratelimited: reports: retry in ... s
        """
        if function is None:
            return functools.partial(RateLimiter.__call__, self, key=key, cost=cost, timeout=timeout)

        def arguments(*args: Any, **kwargs: Any) -> tuple[Identity, int]:
            return key(*args, **kwargs) if key else None, cost(*args, **kwargs) if callable(cost) else cost

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            decision = self.acquire(*arguments(*args, **kwargs), timeout=timeout)
            if not decision:
                raise Ratelimited(decision)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def alimited(*args: Any, **kwargs: Any) -> Any:
            decision = await self.aacquire(*arguments(*args, **kwargs), timeout=timeout)
            if not decision:
                raise Ratelimited(decision)
            return await function(*args, **kwargs)

        return cast(F, alimited if inspect.iscoroutinefunction(function) else limited)


def _patience(timeout: float | timedelta | None) -> int:
    return -1 if timeout is None else wait_us(timeout, "timeout")
