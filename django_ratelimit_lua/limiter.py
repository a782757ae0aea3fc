"""`RateLimiter`: limits for use outside of requests."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from types import AsyncGeneratorType, GeneratorType
from typing import Any, NamedTuple, TypeVar, Unpack, cast, overload
from weakref import ref

from asgiref.sync import iscoroutinefunction
from django.http import FileResponse, StreamingHttpResponse

from .conf import conf
from .engine import DecidedCharge
from .engine.decide import (
    adecide,
    banning,
    build_call,
    decide,
    forgetting,
    rules_in_use,
    unbanning,
)
from .engine.holding import Held, LastAttempt, await_turn, trying, wait_turn
from .engine.run import Wait, Waiting, arun, run
from .exceptions import Ratelimited
from .identity import Identity, digest
from .identity.names import supplied_identity
from .limits.algorithms.concurrency import new_slot
from .limits.algorithms.token_bucket import max_debt
from .limits.call import Charge, Operation, whole_cost
from .limits.decision import Decision
from .limits.limit import Limit
from .limits.options import Options, wait_us
from .limits.rate import SECOND, LimitError, Rate
from .rules.rule import Rule
from .rules.ruleset import Ruleset
from .rules.template import LimitTemplate, as_rates
from .views.call_sites import LIMITER, CallSite, known_call_sites
from .views.fallback import NO_FALLBACK, afall_back, async_mismatch, fall_back
from .views.inspection import decoration_problem, strip_partials
from .web.plan import Party, Planner

F = TypeVar("F", bound=Callable[..., Any])
RateConstant = str | tuple[int, float] | Rate

_DEFERRED = (AsyncGeneratorType, Awaitable, GeneratorType, StreamingHttpResponse)
"""Results of functions that return before their work is done."""


class _LimitsInForce(NamedTuple):
    """The limits of a limiter by one ruleset, and the rule of its name, or None.

    The reference is weak, so that a limiter that is rarely used keeps no old rules in memory.
    """

    ruleset: ref[Ruleset]
    limits: Sequence[Limit]
    rule: Rule | None


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

    A rule whose `group` is the name replaces the rates given here, from the next call on. Options
    that the rule omits stay as given here if they fit the rule.

    An identity is the client that is counted: text, bytes, a number, a UUID, or a tuple of these.
    Without one, all callers are counted together, as with the key `all`, and no client is banned.
    Each method has a twin for coroutines with an `a` in front of its name. Costs are whole numbers,
    and times are seconds. `RATELIMIT_ON_STORE_ERROR` defines the decision while Redis is
    unavailable.

    Args:
        name: The name of the count. The rate is not part of it, so a changed rate keeps the count.
        rate: See `Rate.parse`. A list of rates is decided together, all or nothing: the rate with
            the longest period counts under the name alone, the others under the name and their
            period. A plain number is a number of slots; see `slot`.
        durable: Keep hourly statistics in the database, for `RATELIMIT_HISTORY_DAYS`.
        **options: The options of `Limit`. `algorithm` defaults to `RATELIMIT_ALGORITHM`.

    Raises:
        LimitError: The rate or an option is invalid.
    """

    def __init__(
        self,
        name: str,
        rate: RateConstant | list[RateConstant],
        *,
        durable: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.name = name
        rates = tuple([Rate.parse(each) for each in as_rates(rate)])
        # Its limits are named like those of a rule that replaces them, which keeps their counts.
        self._template = LimitTemplate(None, rates, options=options)
        self._rates = rates
        self._in_force: _LimitsInForce | None = None
        # Errors in the limits raise here, not at the first hit.
        if not self.limits or len(set(rates)) < len(rates):
            raise LimitError(f"RateLimiter {name!r} needs at least one rate, and each only once")
        if durable:
            known_call_sites.mark_durable(name)
        caller = sys._getframe(1)
        place = f"{caller.f_globals.get('__name__')}, line {caller.f_lineno}"
        known_call_sites.add(name, CallSite(LIMITER, place, rates, limits=self.limits))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Return the limits given here, which are decided together."""
        limits: list[Limit] = []
        periods: list[int] = []
        for rate in self._rates:
            periods.append(rate.period_us)
            # The ordinal among the rates of that period, which is part of the name.
            ordinal = periods.count(rate.period_us)
            limits.append(self._template.limit(self.name, rate, ordinal))
        return tuple(limits)

    def _find_limits(self, ruleset: Ruleset) -> _LimitsInForce:
        """Return the limits by a ruleset, which are computed once for each.

        They are those of the rule of this limiter's name, if that replaces its own.
        """
        in_force = self._in_force
        if in_force is not None and in_force.ruleset() is ruleset:
            return in_force
        limits: Sequence[Limit] = self.limits
        rule = ruleset.by_name.get(self.name)
        if rule is not None and rule.group == self.name and rule.template is not None:
            limits = ()
            if rule.mode != "off":
                limits = rule.template.replacing(self.limits).limits(self.name)
        in_force = _LimitsInForce(ref(ruleset), limits, rule)
        self._in_force = in_force
        return in_force

    def __getstate__(self) -> dict[str, object]:
        """Leave out the rules: another process has its own."""
        return {**self.__dict__, "_in_force": None}

    def _charges(
        self, ruleset: Ruleset | None, identity: Identity, subject: bytes, cost: int = 1
    ) -> list[DecidedCharge]:
        """Return the charges for an identity, whose digest is `subject`.

        `ruleset` has the rules in force; None: limits are disabled, and no rules are loaded.
        """
        limits: Sequence[Limit] = self.limits if ruleset is None else ()
        rule = None
        if ruleset is not None:
            in_force = self._find_limits(ruleset)
            limits = in_force.limits
            rule = in_force.rule
        if identity is None:
            limits = [limit.without_bans() for limit in limits]
        name = self.name
        return [
            DecidedCharge(Charge(limit, subject, cost), name, rule, None, identity)
            for limit in limits
        ]

    @overload
    def slot(self, identity: F) -> F: ...

    @overload
    def slot(
        self,
        identity: Identity = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int = 1,
        timeout: float | timedelta | None = 0,
        what: str = "",
    ) -> Slot: ...

    def slot(
        self,
        identity: Identity | Callable[..., object] = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int = 1,
        timeout: float | timedelta | None = 0,
        what: str = "",
    ) -> Any:
        """Hold a slot of a concurrency limit while a block or a function runs.

        Use it with `with`, with `async with`, or as a decorator of functions, plain or `async def`,
        such as Celery tasks. Each `with` needs its own `slot()`. The slot is renewed until it is
        released. If the process dies, it expires within `RATELIMIT_SLOT_SECONDS`.

        >>> exports = RateLimiter("exports", "1", algorithm="concurrency")
        >>> with exports.slot("ada", what="/exports/7/") as held:
        ...     exports.peek("ada").remaining
        0
        >>> exports.peek("ada").remaining
        1
        >>> @exports.slot(key=lambda user: user)
        ... def export(user):
        ...     return exports.peek(user).remaining
        >>> export("ada")
        0

        Args:
            identity: The client that holds the slot.
            key: For a decorator: a function that returns the identity from the arguments of a call.
            cost: The number of slots. Rates in the same limiter are charged as much.
            timeout: The maximum number of seconds to wait for a slot (None: no maximum). A waiting
                caller tries again and again, at first after 20 ms, then up to every 250 ms; no
                order is promised.
            what: A description of the work for the log and `slot_lost`. For a decorator, the
                default is the name of the function.

        Returns:
            A context manager, or a decorator. `with` returns an object with the `decision` and
                `is_lost`: whether the slot expired while it was held, which the signal `slot_lost`
                reports as well.

        Raises:
            Ratelimited: No slot is free; `retry_after` of its decision is an estimate.
        """
        if callable(identity):
            return self.slot(key=key, cost=cost, timeout=timeout, what=what)(identity)
        return Slot(self, identity, key, cost, _timeout_seconds(timeout), what)

    def hit(self, identity: Identity = None, cost: int = 1, *, partial: bool = False) -> Decision:
        """Take `cost` units.

        With `partial`, take as many of them as are available. The decision's `granted` is their
        number.
        """
        return decide(_HitPlanner(self, "hit", identity, cost, partial=partial))

    async def ahit(
        self, identity: Identity = None, cost: int = 1, *, partial: bool = False
    ) -> Decision:
        """`hit`, for coroutines."""
        return await adecide(_HitPlanner(self, "hit", identity, cost, partial=partial))

    def peek(self, identity: Identity = None, cost: int = 1) -> Decision:
        """Return the decision that a hit of this cost would get, without taking units."""
        return decide(_HitPlanner(self, "peek", identity, cost))

    async def apeek(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`peek`, for coroutines."""
        return await adecide(_HitPlanner(self, "peek", identity, cost))

    def refund(self, identity: Identity = None, cost: int = 1) -> Decision:
        """Give units back, the latest first, and never more than are counted."""
        return decide(_HitPlanner(self, "refund", identity, cost))

    async def arefund(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`refund`, for coroutines."""
        return await adecide(_HitPlanner(self, "refund", identity, cost))

    def charge(self, identity: Identity = None, cost: int = 1) -> Decision:
        """Count units that were already used, even beyond the limit."""
        return decide(_HitPlanner(self, "charge", identity, cost))

    async def acharge(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`charge`, for coroutines."""
        return await adecide(_HitPlanner(self, "charge", identity, cost))

    def reset(self, identity: Identity = None) -> None:
        """Delete the count of an identity, and lift its bans.

        Raises `StoreError` if Redis is unavailable.
        """
        run(self._forgetting(identity))

    async def areset(self, identity: Identity = None) -> None:
        """`reset`, for coroutines."""
        await arun(self._forgetting(identity))

    def _forgetting(self, identity: Identity) -> Waiting[None]:
        """Delete the counts under this limiter's own limits and those in force. See `reset`."""
        subject = digest(identity)
        ruleset = yield from rules_in_use()
        limits = {limit.key_part: limit for limit in self.limits}
        if ruleset is not None:
            limits |= {limit.key_part: limit for limit in self._find_limits(ruleset).limits}
        charges = [Charge(limit, subject) for limit in limits.values()]
        yield from forgetting(build_call(charges, "peek"), strict=True)

    def ban(
        self, identity: Identity, for_: str | timedelta | None = None, *, why: str = ""
    ) -> Decision:
        """Ban an identity.

        Args:
            identity: The client to ban.
            for_: A duration such as "2h", or a timedelta. None: as long as the next ban would be.
            why: The reason, for operators.

        Raises:
            LimitError: The limits do not ban, or the duration is invalid.
            StoreError: Redis is unavailable.
        """
        return run(self._banning(identity, functools.partial(banning, length=for_, why=why)))

    async def aban(
        self, identity: Identity, for_: str | timedelta | None = None, *, why: str = ""
    ) -> Decision:
        """`ban`, for coroutines."""
        return await arun(self._banning(identity, functools.partial(banning, length=for_, why=why)))

    def unban(self, identity: Identity, *, forget: bool = False) -> Decision:
        """Lift a ban in all processes. With `forget`, the next ban is as short as a first one.

        Raises `StoreError` if Redis is unavailable.
        """
        return run(self._banning(identity, functools.partial(unbanning, forget=forget)))

    async def aunban(self, identity: Identity, *, forget: bool = False) -> Decision:
        """`unban`, for coroutines."""
        return await arun(self._banning(identity, functools.partial(unbanning, forget=forget)))

    def _banning(
        self, identity: Identity, change: Callable[[Sequence[DecidedCharge]], Waiting[Decision]]
    ) -> Waiting[Decision]:
        """Ban or unban an identity under the limits that ban."""
        if identity is None:
            raise LimitError(f"RateLimiter {self.name!r}: a ban needs an identity")
        ruleset = yield from rules_in_use()
        charges = self._charges(ruleset, supplied_identity(identity), digest(identity))
        banning_charges = [planned for planned in charges if planned.charge.limit.ban is not None]
        if not banning_charges:
            raise LimitError(
                f"RateLimiter {self.name!r} does not ban; set ban_after and ban_for", "ban_after"
            )
        return (yield from change(banning_charges))

    def acquire(
        self,
        identity: Identity = None,
        cost: int = 1,
        timeout: float | timedelta | None = None,
        *,
        debt: bool = False,
    ) -> Decision:
        """Wait until a hit is allowed.

        A token bucket and a leaky bucket reserve a turn at once, in one call, before the wait. A
        caller that is interrupted while it waits gives the turn back. With any other algorithm, a
        refused caller sleeps until `retry_after` and tries again; no order is promised, and the
        refusals are neither counted nor offences.

        Args:
            identity: The client that is counted.
            cost: The number of units.
            timeout: The maximum number of seconds to wait (None: no maximum). It replaces the
                option `max_wait`. If the hit would be allowed later, nothing is taken, and the
                decision is a refusal whose `wait` is the time that it would have taken. The `queue`
                of a leaky bucket bounds the number of waiting callers only if it is set.
            debt: For a token bucket: grant any cost as soon as earlier debts are paid. Later
                callers wait until this debt is paid.

        Raises:
            LimitError: `debt` is used with another algorithm, or with a cost that cannot be
                represented exactly.

        >>> reports = RateLimiter("reports", "10/s", algorithm="token_bucket")
        >>> reports.acquire("ada", 50, debt=True).wait
        0.0
        """
        acquiring = self._acquiring(identity, cost, _timeout_seconds(timeout), debt)
        decision, charges = run(acquiring)
        if decision and decision.wait > 0:
            wait_turn(decision.wait, charges)
        return decision

    async def aacquire(
        self,
        identity: Identity = None,
        cost: int = 1,
        timeout: float | timedelta | None = None,
        *,
        debt: bool = False,
    ) -> Decision:
        """`acquire`, for coroutines."""
        acquiring = self._acquiring(identity, cost, _timeout_seconds(timeout), debt)
        decision, charges = await arun(acquiring)
        if decision and decision.wait > 0:
            await await_turn(decision.wait, charges)
        return decision

    def _acquiring(
        self, identity: Identity, cost: int, timeout: float, debt: bool
    ) -> Waiting[LastAttempt]:
        """Hit until it is allowed, or the timeout is over. Raises `LimitError` for `debt`."""
        if debt:
            self._raise_unless_debt_allowed(whole_cost(cost))

        def attempt(seconds_left: float) -> _HitPlanner:
            max_wait_us = -1 if seconds_left == math.inf else round(seconds_left * SECOND)
            return _HitPlanner(
                self,
                "hit",
                identity,
                cost,
                max_wait_us=max_wait_us,
                debt=debt,
                tries_again=timeout > 0,
            )

        return trying(attempt, timeout)

    def _raise_unless_debt_allowed(self, cost: int) -> None:
        """Raise `LimitError` if the limits do not allow a debt of this cost."""
        for limit in self.limits:
            if not limit.kind.allows_debt:
                problem = f"debt needs algorithm='token_bucket', not {limit.algorithm!r}"
                raise LimitError(f"RateLimiter {self.name!r}: {problem}", "debt")
            maximum = max_debt(limit)
            if cost > maximum:
                problem = f"cost is {cost}; the maximum with debt at {limit.rate} is {maximum}"
                raise LimitError(f"RateLimiter {self.name!r}: {problem}", "cost")

    @overload
    def __call__(self, function: F) -> F: ...

    @overload
    def __call__(
        self,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: float | timedelta | None = 0,
        fallback: object = NO_FALLBACK,
    ) -> Callable[[F], F]: ...

    def __call__(
        self,
        function: F | None = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: float | timedelta | None = 0,
        fallback: object = NO_FALLBACK,
    ) -> Any:
        """Decorate a function, plain or `async def`, so that it runs only if a hit is allowed.

        Args:
            function: The function.
            key: A function that returns the identity from the arguments of a call. Without it, all
                calls share one count.
            cost: The number of units, or a function that returns it from the arguments of a call.
            timeout: The maximum number of seconds that a call waits for its turn (None: no
                maximum).
            fallback: The result of a refused call, or a function that returns it from the arguments
                of the call. Without it, a refused call raises `Ratelimited`.

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
            return functools.partial(
                RateLimiter.__call__, self, key=key, cost=cost, timeout=timeout, fallback=fallback
            )
        self._raise_if_undecoratable(function, fallback)

        def read_options(*args: object, **kwargs: object) -> dict[str, Any]:
            """Return the arguments of `acquire` for a call of the function."""
            identity = None if key is None else key(*args, **kwargs)
            units = cost(*args, **kwargs) if callable(cost) else cost
            return {"identity": identity, "cost": units, "timeout": timeout}

        @functools.wraps(function)
        def limited(*args: object, **kwargs: object) -> object:
            decision = self.acquire(**read_options(*args, **kwargs))
            if not decision:
                return fall_back(fallback, Ratelimited(decision), *args, **kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def alimited(*args: object, **kwargs: object) -> object:
            decision = await self.aacquire(**read_options(*args, **kwargs))
            if not decision:
                return await afall_back(fallback, Ratelimited(decision), *args, **kwargs)
            return await function(*args, **kwargs)

        if _is_async(function):
            return cast(F, alimited)
        return cast(F, limited)

    def _raise_if_undecoratable(self, function: Callable[..., object], fallback: object) -> None:
        """Raise `LimitError` if a function, or its fallback, cannot be decorated."""
        called = strip_partials(function)
        name = _name_of(called)
        if isinstance(function, type):
            raise LimitError(f"RateLimiter {self.name!r}: {name} is not a function")
        if problem := decoration_problem(function):
            raise LimitError(f"RateLimiter {self.name!r} {problem}")
        if inspect.isasyncgenfunction(called):
            remedy = "await ahit() or aacquire() inside it"
            raise LimitError(f"RateLimiter {self.name!r}: {name} is an async generator; {remedy}")
        if problem := async_mismatch(fallback, is_async=_is_async(function)):
            raise LimitError(f"RateLimiter {self.name!r}: fallback {problem}", "fallback")


class Slot:
    """A context manager and decorator: see `RateLimiter.slot`."""

    def __init__(
        self,
        limiter: RateLimiter,
        identity: Identity,
        key: Callable[..., Identity] | None,
        cost: int,
        timeout: float,
        what: str,
    ) -> None:
        self._limiter = limiter
        self._identity = identity
        self._key = key
        self._cost = cost
        self._timeout = timeout
        self._what = what
        self._in_use = threading.Lock()
        self._held: Held | None = None

    def _acquiring(self) -> Waiting[LastAttempt]:
        """Hit until a slot is free, or the timeout is over. Raises `RuntimeError` if in use."""
        if not self._in_use.acquire(blocking=False):
            name = self._limiter.name
            raise RuntimeError(
                f"RateLimiter {name!r}: slot is in use; each `with` needs its own slot()"
            )
        return trying(self._attempt, self._timeout)

    def _take_held(self) -> Held | None:
        """Remove and return the held slot, if any, and let the next `with` use this object."""
        held = self._held
        self._held = None
        if self._in_use.locked():
            self._in_use.release()
        return held

    def _attempt(self, seconds_left: float) -> _HitPlanner:
        """Return the planner of one hit, which does not wait on the server: see `trying`."""
        slot = new_slot(conf.SLOT_SECONDS)
        tries_again = self._timeout > 0
        return _HitPlanner(
            self._limiter, "hit", self._identity, self._cost, slot=slot, tries_again=tries_again
        )

    def _hold(self, decision: Decision, charges: Sequence[DecidedCharge]) -> Held:
        """Hold the slot of a decision. Raises `Ratelimited` if it refuses."""
        if not decision:
            raise Ratelimited(decision)
        self._held = Held(decision, charges, self._what)
        return self._held

    def __enter__(self) -> Held:
        acquiring = self._acquiring()
        try:
            decision, charges = run(acquiring)
            held = self._hold(decision, charges)
            if decision.wait > 0:  # Because of a rate in the same limiter.
                wait_turn(decision.wait, charges)
        except BaseException:
            self.__exit__()
            raise
        return held

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        held = self._take_held()
        if held is None:
            return
        if kind is GeneratorExit:
            held.release_as_garbage()
        else:
            held.release()

    async def __aenter__(self) -> Held:
        acquiring = self._acquiring()
        try:
            decision, charges = await arun(acquiring)
            held = self._hold(decision, charges)
            if decision.wait > 0:
                await await_turn(decision.wait, charges)
        except BaseException as stopped:
            await self.__aexit__(type(stopped))
            raise
        return held

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        held = self._take_held()
        if held is None:
            return
        if kind is GeneratorExit:  # A closed coroutine cannot await.
            held.release_as_garbage()
        else:
            await held.arelease()

    def __call__(self, function: F) -> F:
        """Decorate a function: each of its calls holds its own slot.

        Raises `LimitError` for a function whose work begins after the call has returned, such as a
        generator.
        """
        self._raise_if_undecoratable(function)
        name = _name_of(strip_partials(function))
        what = self._what or name

        def make_slot(*args: object, **kwargs: object) -> Slot:
            identity = self._identity
            if self._key is not None:
                identity = self._key(*args, **kwargs)
            return Slot(self._limiter, identity, None, self._cost, self._timeout, what)

        @functools.wraps(function)
        def holding(*args: object, **kwargs: object) -> object:
            with make_slot(*args, **kwargs):
                return self._check_result(name, function(*args, **kwargs))

        @functools.wraps(function)
        async def aholding(*args: object, **kwargs: object) -> object:
            async with make_slot(*args, **kwargs):
                return self._check_result(name, await function(*args, **kwargs))

        if _is_async(function):
            return cast(F, aholding)
        return cast(F, holding)

    def _raise_if_undecoratable(self, function: Callable[..., object]) -> None:
        """Raise `LimitError` if a function cannot hold a slot until its work is done."""
        called = strip_partials(function)
        if isinstance(function, type):
            raise self._early_return_error(_name_of(called))
        if problem := decoration_problem(function):
            raise LimitError(f"RateLimiter {self._limiter.name!r} {problem}")
        for inner in (inspect.unwrap(called), type(called).__call__):
            if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
                raise self._early_return_error(_name_of(called))

    def _check_result(self, name: str, result: Any) -> object:
        """Return the result of a call.

        Raises `LimitError` if its work begins only after the slot is released.
        """
        kind = type(result)  # `isinstance` would evaluate a lazy object.
        if not issubclass(kind, _DEFERRED) or issubclass(kind, FileResponse):
            return result
        if hasattr(kind, "close"):
            result.close()
        raise self._early_return_error(name)

    def _early_return_error(self, name: str) -> LimitError:
        """Return the error for a function whose work is not done when it returns."""
        remedy = (
            "use `with limiter.slot(...)` inside it, or for a view @ratelimit(..., "
            'algorithm="concurrency")'
        )
        problem = f"{name} returns before its work is done, so its slot would be released too early"
        return LimitError(f"RateLimiter {self._limiter.name!r}: {problem}; {remedy}")


def _timeout_seconds(timeout: float | timedelta | None) -> float:
    """Return the seconds of a timeout. None is infinite."""
    return math.inf if timeout is None else wait_us(timeout, "timeout") / SECOND


def _name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, or of the class of another callable."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _is_async(function: Callable[..., object]) -> bool:
    """Return whether a call returns a coroutine; also for an object with an async `__call__`."""
    called = strip_partials(function)
    return iscoroutinefunction(called) or iscoroutinefunction(type(called).__call__)


class _HitPlanner(Planner):
    """Plans the charges of a limiter for an identity."""

    _is_unsupported: bool
    """Whether concurrency limits do not support the requested operation; set by `gather`."""

    def __init__(
        self,
        limiter: RateLimiter,
        operation: Operation,
        identity: Identity,
        cost: int,
        **options: object,
    ) -> None:
        # Without super(), which costs time in every hit.
        self.is_hit = operation == "hit"
        self.options = options
        self.parties: Sequence[Party] = ()
        self.units = cost if self.is_hit else 0
        self._requested: Operation = operation
        self._limiter = limiter
        self._identity = supplied_identity(identity)
        self._subject = digest(identity)
        self._cost = cost

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        """Set the charges by the rules in force. An unsupported operation only reads the counts.

        Raises `LimitError` for an invalid cost.
        """
        cost = self._cost
        if type(cost) is not int or cost != 1:
            whole_cost(cost, f"Limit {self._limiter.name!r}: cost is")
        self.gathered = self._limiter._charges(ruleset, self._identity, self._subject, cost)
        # `finish` raises the error, when the call has shown that the rules are current.
        self._is_unsupported = self._changes_slots()
        self.operation = "peek" if self._is_unsupported else self._requested
        return ()

    def _changes_slots(self) -> bool:
        """Return whether the operation would take or release slots, which only `slot` does.

        A charge and a refund change the other limits, if there are any.
        """
        if self._requested not in ("hit", "charge", "refund") or "slot" in self.options:
            return False
        limits = [planned.charge.limit for planned in self.gathered]
        slot_limits = [limit for limit in limits if limit.holds]
        if not slot_limits:
            return False
        return self._requested == "hit" or len(slot_limits) == len(limits)

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Raise `LimitError` for an operation that concurrency limits do not support."""
        if self._is_unsupported:
            problem = f"{self._requested} is not supported by concurrency limits; use slot()"
            raise LimitError(f"RateLimiter {self._limiter.name!r}: {problem}", "algorithm")
        return ()
