"""`RateLimiter`: limits for use anywhere."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, Unpack, cast, overload
from weakref import ref

from asgiref.sync import iscoroutinefunction
from django.http import FileResponse, StreamingHttpResponse

from .conf import conf
from .engine.decide import (
    Outcome,
    PlannedCharge,
    adecide,
    banning,
    build_call,
    decide,
    forgetting,
    offending,
    unbanning,
)
from .engine.holding import Held, Seeking
from .engine.run import Wait, arun, run
from .engine.waiting import ahold, hold
from .exceptions import Ratelimited
from .identity import Identity, digest
from .identity.names import own
from .limits.algorithms.token_bucket import most_units
from .limits.call import Call, Charge, Operation, whole_cost
from .limits.decision import Decision
from .limits.limit import Limit
from .limits.options import Options, wait_us
from .limits.rate import SECOND, LimitError, Rate
from .rules.callsite import LIMITER, CallSite, known_call_sites
from .rules.fallbacks import NO_FALLBACK, afall_back, async_mismatch, fall_back
from .rules.provider import current
from .rules.rule import Rule
from .rules.ruleset import Ruleset
from .rules.template import LimitTemplate
from .web.plan import Party, Planner

F = TypeVar("F", bound=Callable[..., Any])
RateConstant = str | tuple[int, float] | Rate


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

    - `name`: what the count is kept under. The rate is not part of it: changing the number keeps the count;
    - `rate`: see `Rate.parse`; or a list of rates that are decided together, all or nothing. Of several, that
      of the longest period counts under the name alone, and the others under the name and their period. A number alone
      is so many slots at once, with `algorithm="concurrency"`, or in a list beside rates: see `slot`;
    - `durable`: keep its statistics of each hour in the database, for `RATELIMIT_HISTORY_DAYS`;
    - the other arguments are those of `Limit`; `algorithm` defaults to `RATELIMIT_ALGORITHM`.

    A rule whose `group` is the name takes the place of the rates and options given here, from the next call on.

    An identity is the client that is counted: text, bytes, a number, a UUID, or a tuple of these. Without one, all
    callers are counted together, as with the key `all`, and no client is banned. Each method has a
    twin for coroutines with an `a` in front of its name. Costs are whole numbers; times are seconds. Raises
    `LimitError` for a limit that cannot be kept; what happens when Redis cannot be asked, `RATELIMIT_ON_STORE_ERROR`
    says.
    """

    def __init__(
        self, name: str, rate: RateConstant | list[RateConstant], *, durable: bool = False, **options: Unpack[Options]
    ) -> None:
        self.name = name
        if options.get("ban_key"):
            raise LimitError(f"RateLimiter {name!r} has no request to read ban_key from: bans are of the identity")
        self._rates = rate if isinstance(rate, list) else [rate]
        self._options = options
        self._made: dict[str, tuple[Limit, ...]] = {}
        # By which rules, without keeping all of them: a limiter that is seldom asked would keep old ones.
        self._known: tuple[ref[Ruleset], Sequence[Limit], Rule | None] | None = None
        # Errors in the limits raise here, not at the first hit.
        if not self._rates or len({limit.rate for limit in self.limits}) < len(self._rates):
            raise LimitError(f"RateLimiter {name!r} needs at least one rate, and each only once")
        if durable:
            known_call_sites.keep_statistics(name)
        caller = sys._getframe(1)
        place = f"{caller.f_globals.get('__name__')}, line {caller.f_lineno}"
        rates = tuple([limit.rate for limit in self.limits])
        known_call_sites.add(name, CallSite(LIMITER, place, rates, limits=self.limits))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are decided together."""
        algorithm = self._options.get("algorithm") or conf.ALGORITHM
        if algorithm not in self._made:
            rates = tuple([Rate.parse(rate) for rate in self._rates])
            options: Options = {**self._options, "algorithm": algorithm}
            # Named like those of a rule in their place, which keeps their counts.
            template = LimitTemplate(None, rates, options=options)
            periods = [rate.period_us for rate in rates]
            self._made[algorithm] = tuple(
                [
                    template.limit(self.name, rate, 1 + periods[:place].count(rate.period_us))
                    for place, rate in enumerate(rates)
                ]
            )
        return self._made[algorithm]

    def _limits_by(self, ruleset: Ruleset) -> tuple[Sequence[Limit], Rule | None]:
        """The limits, or those of the rule that takes their place; and the rule of that name."""
        known = self._known
        if known is not None and known[0]() is ruleset:  # Which are others, too, when settings have changed.
            return known[1:]
        rule, limits = ruleset.by_name.get(self.name), self.limits
        if rule is not None and rule.group == self.name and rule.template is not None:
            template = rule.template.in_place_of(self.limits)
            limits = () if rule.mode == "off" else template.limits(self.name)
        self._known = (ref(ruleset), limits, rule)
        return limits, rule

    def __getstate__(self) -> dict[str, Any]:
        """The arguments for a copy, or for another process, which has its own rules."""
        return {**self.__dict__, "_known": None}

    def _charges(
        self, ruleset: Ruleset | None, identity: Identity, subject: bytes, cost: int = 1
    ) -> list[PlannedCharge]:
        limits, rule = (self.limits, None) if ruleset is None else self._limits_by(ruleset)
        if identity is None:
            limits = [limit.without_bans() for limit in limits]
        name = self.name
        return [PlannedCharge(Charge(limit, subject, cost), name, rule, None, None, b"", identity) for limit in limits]

    def _plan(self, operation: Operation, identity: Identity, cost: int, **options: Any) -> _HitPlanner:
        return _HitPlanner(self, operation, identity, cost, options)

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
        identity: Identity | Callable[..., Any] = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int = 1,
        timeout: float | timedelta | None = 0,
        what: str = "",
    ) -> Any:
        """Hold a slot of a concurrency limit while something runs: `with`, `async with`, or as a decorator of
        functions, plain or `async def`, such as Celery tasks. Each use needs its own `slot()`.

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

        - `identity`: whose slot it is; of a decorator, `key` tells it from the function's arguments, if it is given;
        - `cost`: how many it takes; rates beside it are charged as much;
        - `timeout`: for how many seconds it is waited for (None: as long as it takes), in a queue in the order of
          arrival, which `queue` bounds: ten for each slot by default;
        - `what`: what it is held for, as operators are shown it; of a decorator, by default the function's name.

        Raises `Ratelimited` where it is refused; its decision's `retry_after` is a guess. The slot is renewed until it
        is released, and ends within `RATELIMIT_SLOT_SECONDS` where the process dies. What comes of `with` has
        `decision` and `is_lost`: whether the slot has ended while it was held, which the signal `slot_lost` tells, too.
        """
        if callable(identity):
            return Slot(self, None, key, cost, timeout, what)(identity)
        return Slot(self, identity, key, cost, timeout, what)

    def hit(self, identity: Identity = None, cost: int = 1, *, partial: bool = False) -> Decision:
        """Take `cost` units; with `partial`, as many of them as are available (`granted` is the number)."""
        return decide(self._plan("hit", identity, cost, partial=partial)).decision

    async def ahit(self, identity: Identity = None, cost: int = 1, *, partial: bool = False) -> Decision:
        """`hit`, for coroutines."""
        return (await adecide(self._plan("hit", identity, cost, partial=partial))).decision

    def peek(self, identity: Identity = None, cost: int = 1) -> Decision:
        """The decision about a hit of that cost. Takes nothing."""
        return decide(self._plan("peek", identity, cost)).decision

    async def apeek(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`peek`, for coroutines."""
        return (await adecide(self._plan("peek", identity, cost))).decision

    def refund(self, identity: Identity = None, cost: int = 1) -> Decision:
        """Give units back, the latest first, and never more than are counted."""
        return decide(self._plan("refund", identity, cost)).decision

    async def arefund(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`refund`, for coroutines."""
        return (await adecide(self._plan("refund", identity, cost))).decision

    def charge(self, identity: Identity = None, cost: int = 1) -> Decision:
        """Count units that were already used, even beyond the limit: then others wait until they are worked off."""
        return decide(self._plan("charge", identity, cost)).decision

    async def acharge(self, identity: Identity = None, cost: int = 1) -> Decision:
        """`charge`, for coroutines."""
        return (await adecide(self._plan("charge", identity, cost))).decision

    def reset(self, identity: Identity = None) -> None:
        """Delete the count of an identity, and its bans. Raises `StoreError` if Redis is unavailable."""
        run(forgetting(self._counts(identity), strict=True))

    async def areset(self, identity: Identity = None) -> None:
        """`reset`, for coroutines."""
        await arun(forgetting(self._counts(identity), strict=True))

    def _counts(self, identity: Identity) -> Call:
        subject = digest(identity)
        ruleset = current()
        by_rules = self._limits_by(ruleset)[0] if ruleset is not None else ()
        limits = {limit.key_part: limit for limit in (*self.limits, *by_rules)}
        return build_call([Charge(limit, subject) for limit in limits.values()], "peek")

    def offend(self, identity: Identity, cost: int = 1) -> Decision:
        """Report an offence, or as many as `cost`: see `ban_on`. If that triggers a ban, the identity is refused from
        now on, and so is this decision. Nothing is taken."""
        return run(offending(self._charged(identity), whole_cost(cost)))

    async def aoffend(self, identity: Identity, cost: int = 1) -> Decision:
        """`offend`, for coroutines."""
        return await arun(offending(self._charged(identity), whole_cost(cost)))

    def ban(self, identity: Identity, for_: str | timedelta | None = None, *, why: str = "") -> Decision:
        """Ban by hand, for a duration such as "2h" or a timedelta (None: as long as the next ban would be), and with a
        reason. Raises `LimitError` if the limits do not ban, or for an invalid duration, and `StoreError` if Redis is
        unavailable."""
        return run(banning(self._banning(identity), for_, why))

    async def aban(self, identity: Identity, for_: str | timedelta | None = None, *, why: str = "") -> Decision:
        """`ban`, for coroutines."""
        return await arun(banning(self._banning(identity), for_, why))

    def unban(self, identity: Identity, *, forget: bool = False) -> Decision:
        """Lift a ban now, in all processes; with `forget`, the next one is as short as the first. Raises `StoreError`
        if Redis is unavailable."""
        return run(unbanning(self._banning(identity), forget=forget))

    async def aunban(self, identity: Identity, *, forget: bool = False) -> Decision:
        """`unban`, for coroutines."""
        return await arun(unbanning(self._banning(identity), forget=forget))

    def _charged(self, identity: Identity) -> list[PlannedCharge]:
        if identity is None:
            raise LimitError(f"RateLimiter {self.name!r}: a ban needs an identity; without one, it would ban everybody")
        return self._charges(current(), own(identity), digest(identity))

    def _banning(self, identity: Identity) -> list[PlannedCharge]:
        banning = [planned for planned in self._charged(identity) if planned.charge.limit.ban is not None]
        if not banning:
            raise LimitError(f"RateLimiter {self.name!r} does not ban: say ban_after and ban_for", "ban_after")
        return banning

    def acquire(
        self, identity: Identity = None, cost: int = 1, timeout: float | timedelta | None = None, *, debt: bool = False
    ) -> Decision:
        """Wait for a turn, at most `timeout` seconds (None: without a limit).

        The turn is reserved at once, in one call, and then slept for. If it would come too late, nothing is taken and
        there is no wait: the decision is refused, and its `wait` is the time it would have taken. The timeout replaces
        the limit's `max_wait`. A leaky bucket's `queue` bounds how many wait only if it is given. A caller that is
        interrupted while it waits gives the turn back.

        With `debt`, a token bucket grants any cost as soon as it owes no more than it holds, and callers after that
        wait until the debt is paid. Raises `LimitError` for other algorithms, and for a debt that cannot be represented
        exactly.

        >>> RateLimiter("reports", "10/s", algorithm="token_bucket").acquire("ada", 50, debt=True).wait
        0.0
        """
        outcome = decide(self._acquiring(identity, cost, timeout, debt))
        if outcome.decision and outcome.decision.wait > 0:
            hold(outcome)
        return outcome.decision

    async def aacquire(
        self, identity: Identity = None, cost: int = 1, timeout: float | timedelta | None = None, *, debt: bool = False
    ) -> Decision:
        """`acquire`, for coroutines; one that is cancelled while it waits gives its turn back."""
        outcome = await adecide(self._acquiring(identity, cost, timeout, debt))
        if outcome.decision and outcome.decision.wait > 0:
            await ahold(outcome)
        return outcome.decision

    def _acquiring(self, identity: Identity, cost: int, timeout: float | timedelta | None, debt: bool) -> _HitPlanner:
        for limit in self.limits if debt else ():
            if limit.algorithm != "token_bucket":
                problem = f"debt is for algorithm='token_bucket', and this limit is a {limit.algorithm}"
                raise LimitError(f"RateLimiter {self.name!r}: {problem}", "debt")
            if whole_cost(cost) > (most := most_units(limit.rate)):
                problem = f"cost is {cost}: a debt at {limit.rate} is kept exactly up to a cost of {most}"
                raise LimitError(f"RateLimiter {self.name!r}: {problem}", "cost")
        return self._plan("hit", identity, cost, max_wait_us=_patience(timeout), debt=debt)

    @overload
    def __call__(self, function: F) -> F: ...

    @overload
    def __call__(
        self,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: float | timedelta | None = 0,
        fallback: Any = NO_FALLBACK,
    ) -> Callable[[F], F]: ...

    def __call__(
        self,
        function: F | None = None,
        *,
        key: Callable[..., Identity] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: float | timedelta | None = 0,
        fallback: Any = NO_FALLBACK,
    ) -> Any:
        """Decorate a function, plain or `async def`: it runs if a hit is allowed. A refused call returns the
        `fallback`; without one, `Ratelimited` is raised.

        `key` and `cost`, if callable, are called with the function's arguments; without a key all its calls share one
        count. `timeout`: the maximum number of seconds that a call may wait for its turn (None: without a limit).
        `fallback` is a value, or a callable with the function's arguments.

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
            return functools.partial(RateLimiter.__call__, self, key=key, cost=cost, timeout=timeout, fallback=fallback)
        called = _called_by(function)
        name = getattr(called, "__qualname__", type(called).__qualname__)
        if isinstance(function, type) or not callable(function):
            raise LimitError(f"RateLimiter {self.name!r} decorates functions, and {name} is none")
        if inspect.isasyncgenfunction(called):
            right = "await ahit() or aacquire() inside it"
            raise LimitError(f"RateLimiter {self.name!r}: {name} is an async generator; {right}")
        if problem := async_mismatch(fallback, is_async=_is_async(function)):
            raise LimitError(f"RateLimiter {self.name!r}: fallback {problem}", "fallback")

        def arguments(*args: Any, **kwargs: Any) -> tuple[Identity, int]:
            return key(*args, **kwargs) if key else None, cost(*args, **kwargs) if callable(cost) else cost

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            decision = self.acquire(*arguments(*args, **kwargs), timeout=timeout)
            if not decision:
                return fall_back(fallback, Ratelimited(decision), *args, **kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def alimited(*args: Any, **kwargs: Any) -> Any:
            decision = await self.aacquire(*arguments(*args, **kwargs), timeout=timeout)
            if not decision:
                return await afall_back(fallback, Ratelimited(decision), *args, **kwargs)
            return await function(*args, **kwargs)

        return cast(F, alimited if _is_async(function) else limited)


class Slot:
    """One use of `RateLimiter.slot`."""

    def __init__(
        self,
        limiter: RateLimiter,
        identity: Identity,
        key: Callable[..., Identity] | None,
        cost: int,
        timeout: float | timedelta | None,
        what: str,
    ) -> None:
        self._limiter, self._identity, self._key = limiter, identity, key
        self._cost, self._what = cost, what
        self._timeout = None if timeout is None else wait_us(timeout, "timeout") / SECOND
        self._in_use = threading.Lock()
        self._held: Held | None = None

    def _seeking(self) -> Seeking:
        if not self._in_use.acquire(blocking=False):
            name = self._limiter.name
            raise RuntimeError(f"This slot of {name!r} is in use: each thread, task and `with` needs its own slot()")
        return Seeking(self._ask, self._timeout)

    def _left(self) -> Held | None:
        """Forget what is held, and return it: the next `with` may use this object."""
        held, self._held = self._held, None
        if self._in_use.locked():
            self._in_use.release()
        return held

    def _ask(self, slot: bytes, *, waits: bool) -> _HitPlanner:
        plan = self._limiter._plan("hit", self._identity, self._cost, slot=slot, waits=waits)
        plan.is_hit = not waits  # What comes of waiting is counted once.
        return plan

    def _hold(self, outcome: Outcome) -> Held:
        if not outcome.decision:
            raise Ratelimited(outcome.decision)
        self._held = Held(outcome, self._what)
        return self._held

    def __enter__(self) -> Held:
        seeking = self._seeking()
        try:
            held = self._hold(outcome := seeking.take())
            if outcome.decision.wait > 0:  # A rate with it makes its callers wait.
                hold(outcome)
        except BaseException:
            self.__exit__()
            raise
        return held

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        held = self._left()
        if held is None:
            return
        if kind is GeneratorExit:
            held.release_as_garbage()
        else:
            held.release()

    async def __aenter__(self) -> Held:
        seeking = self._seeking()
        try:
            held = self._hold(outcome := await seeking.atake())
            if outcome.decision.wait > 0:
                await ahold(outcome)
        except BaseException as stopped:
            await self.__aexit__(type(stopped))
            raise
        return held

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        held = self._left()
        if held is None:
            return
        if kind is GeneratorExit:  # The coroutine is closed, and cannot wait for anything more.
            held.release_in_thread()
        else:
            await held.arelease()

    def __call__(self, function: F) -> F:
        """Decorate a function: each of its calls holds its own slot. Raises `LimitError` for a function whose work
        begins after the call has returned, such as a generator function."""
        called = _called_by(function)
        name = getattr(called, "__qualname__", type(called).__qualname__)
        what = self._what or name
        if isinstance(function, type):
            raise self._refusal(name, "a class", "decorate the method that does the work")
        for inner in (inspect.unwrap(called), type(called).__call__):
            if inspect.isgeneratorfunction(inner):
                raise self._refusal(name, "a generator", "write `with limiter.slot(...):` inside it")
            if inspect.isasyncgenfunction(inner):
                raise self._refusal(name, "an async generator", "write `async with limiter.slot(...):` inside it")

        def slot(*args: Any, **kwargs: Any) -> Slot:
            identity = self._key(*args, **kwargs) if self._key is not None else self._identity
            return Slot(self._limiter, identity, None, self._cost, self._timeout, what)

        @functools.wraps(function)
        def holding(*args: Any, **kwargs: Any) -> Any:
            with slot(*args, **kwargs):
                return self._finished(name, function(*args, **kwargs))

        @functools.wraps(function)
        async def aholding(*args: Any, **kwargs: Any) -> Any:
            async with slot(*args, **kwargs):
                return self._finished(name, await function(*args, **kwargs))

        return cast(F, aholding if _is_async(function) else holding)

    def _finished(self, name: str, result: Any) -> Any:
        """The result of a call. Raises `LimitError` if its work begins only after the slot is released."""
        kind = type(result)  # Of a lazy object its own, without evaluating it.
        if issubclass(kind, StreamingHttpResponse) and not issubclass(kind, FileResponse):
            right = '@ratelimit(..., algorithm="concurrency"), which holds it until the response is closed'
            problem = self._refusal(name, "a view whose response is streamed", f"use {right}")
        elif issubclass(kind, (GeneratorType, AsyncGeneratorType)):
            right = "write `with limiter.slot(...):` inside the generator"
            problem = self._refusal(name, "a function that returns a generator", right)
        elif issubclass(kind, Awaitable):
            right = "make it `async def`, and await inside it"
            problem = self._refusal(name, "a function that returns an awaitable", right)
        else:
            return result
        if hasattr(kind, "close"):
            result.close()
        raise problem

    def _refusal(self, name: str, kind: str, right: str) -> LimitError:
        released = "the slot would be released before its work is done"
        return LimitError(f"RateLimiter {self._limiter.name!r}: {name} is {kind}, and {released}: {right}")


def _called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a `functools.partial` finally calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: of a function, or of an object with an async `__call__`."""
    called = _called_by(function)
    return iscoroutinefunction(called) or iscoroutinefunction(type(called).__call__)


class _HitPlanner(Planner):
    """Plans what a limiter charges an identity."""

    def __init__(
        self, limiter: RateLimiter, operation: Operation, identity: Identity, cost: int, options: dict[str, Any]
    ) -> None:
        # Not by super(): every hit comes through here.
        self.is_hit = operation == "hit"
        self.options = options
        self.parties: Sequence[Party] = ()
        self.units = cost if self.is_hit else 0
        self._asked: Operation = operation
        self._limiter = limiter
        self._identity = own(identity)
        self._subject = digest(identity)
        self._cost = cost

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        """See `Planner`."""
        cost = self._cost
        if type(cost) is not int or cost != 1:
            whole_cost(cost, f"Limit {self._limiter.name!r}: cost is")
        self.charges = self._limiter._charges(ruleset, self._identity, self._subject, cost)
        # The call compares the rules. Only if they are current, it is an error.
        self.operation = "peek" if self._is_misplaced() else self._asked
        return ()

    def _is_misplaced(self) -> bool:
        """Whether it would take a slot that no caller could release, or releases none."""
        if self._asked not in ("hit", "charge", "refund") or "slot" in self.options:
            return False
        held = [planned.charge.limit.holds for planned in self.charges]
        return any(held) and (self._asked == "hit" or all(held))

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Raises `LimitError` for what has no meaning for slots."""
        if self.operation != self._asked:
            right = "take and release them with slot()"
            name = self._limiter.name
            raise LimitError(f"RateLimiter {name!r}: {self._asked} takes no slots; {right}", "algorithm")
        return ()


def _patience(timeout: float | timedelta | None) -> int:
    return -1 if timeout is None else wait_us(timeout, "timeout")
