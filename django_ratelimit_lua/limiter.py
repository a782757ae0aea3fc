"""`RateLimiter`: limits for use anywhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, Unpack, cast

from .conf import conf
from .engine.decide import (
    adecide,
    adecide_by_current_rules,
    aforget,
    build_call,
    decide,
    decide_by_current_rules,
    forget,
)
from .engine.waiting import ahold, hold, refunds
from .exceptions import Ratelimited
from .identity import Identity, digest
from .limits.call import Call, Charge, Operation
from .limits.decision import Decision
from .limits.limit import Limit
from .limits.options import Options, wait_us
from .limits.rate import LimitError, Rate
from .rules.callsite import known_call_sites
from .rules.provider import current
from .rules.ruleset import Ruleset
from .stats.refusals import refusal_counter

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

    - `name`: what the count is kept under. The rate is not part of it: changing the rate keeps the count;
    - `rate`: see `Rate.parse`; or a list of rates that are decided together, all or nothing;
    - the other arguments are those of `Limit`; `algorithm` defaults to `RATELIMIT_ALGORITHM`.

    A rule whose `group` is the name takes the place of the rates and options given here, from the next call on.

    An identity is whoever is counted: text, bytes, a number, a UUID, None, or a tuple of these. Each method has a
    twin for coroutines with an `a` in front of its name. Costs are whole numbers; times are seconds. Raises
    `LimitError` for a limit that cannot be kept; what happens when Redis cannot be asked, `RATELIMIT_ON_STORE_ERROR`
    says.
    """

    def __init__(self, name: str, rate: RateConstant | list[RateConstant], **options: Unpack[Options]) -> None:
        self.name = name
        known_call_sites.add(name)
        self._rates = rate if isinstance(rate, list) else [rate]
        self._options = options
        self._made: dict[str, tuple[Limit, ...]] = {}
        # Whatever is wrong with the limits is said here, not at the first hit.
        if not self._rates or len({limit.name for limit in self.limits}) < len(self._rates):
            raise LimitError(f"RateLimiter {name!r} needs at least one rate, and each only once")

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are decided together."""
        algorithm = self._options.get("algorithm") or conf.ALGORITHM
        if algorithm not in self._made:
            alone = len(self._rates) == 1
            options: Options = {**self._options, "algorithm": algorithm}
            self._made[algorithm] = tuple(
                Limit(self.name if alone else f"{self.name}:{rate}", rate, **options)
                for rate in map(Rate.parse, self._rates)
            )
        return self._made[algorithm]

    def _by(
        self, operation: Operation, identity: Identity, cost: int, kept: list[Charge] | None = None, **options: Any
    ) -> Callable[[Ruleset | None], Call]:
        who = digest(identity)

        def call(ruleset: Ruleset | None) -> Call:
            charges = [Charge(limit, who, cost) for limit in self._limits_by(ruleset)]
            if kept is not None:
                kept[:] = charges
            return build_call(charges, operation, ruleset=ruleset, **options)

        return call

    def _counts(self, identity: Identity) -> Call:
        who = digest(identity)
        counted = {limit.key_part: limit for limit in (*self.limits, *self._limits_by(current()))}
        return build_call([Charge(limit, who) for limit in counted.values()], "refund")

    def _limits_by(self, ruleset: Ruleset | None) -> tuple[Limit, ...]:
        """The limits, or those of the rule that takes their place."""
        rule = ruleset.by_name.get(self.name) if ruleset is not None else None
        if rule is None or rule.group != self.name or rule.template is None:
            return self.limits
        if rule.mode == "off":
            return ()
        return tuple(rule.template.limit(self.name, rate) for rate in rule.template.rates if isinstance(rate, Rate))

    def _tallied(self, decision: Decision) -> Decision:
        """Note what a rule refused, or would have."""
        ruleset = current()
        if ruleset is not None and decision.source != "fallback" and self.name in ruleset.by_name:
            for state in decision.limits:
                if not state.allowed:
                    refusal_counter.add(self.name, state.mode)
        return decision

    def hit(self, identity: Identity, cost: int = 1, *, partial: bool = False) -> Decision:
        """Take `cost` units; with `partial`, as many of them as there are (`granted` says how many)."""
        return self._tallied(decide_by_current_rules(self._by("hit", identity, cost, partial=partial)))

    async def ahit(self, identity: Identity, cost: int = 1, *, partial: bool = False) -> Decision:
        """`hit`, for coroutines."""
        return self._tallied(await adecide_by_current_rules(self._by("hit", identity, cost, partial=partial)))

    def peek(self, identity: Identity, cost: int = 1) -> Decision:
        """What a hit of that cost would be told now. Takes nothing."""
        return decide_by_current_rules(self._by("peek", identity, cost))

    async def apeek(self, identity: Identity, cost: int = 1) -> Decision:
        """`peek`, for coroutines."""
        return await adecide_by_current_rules(self._by("peek", identity, cost))

    def refund(self, identity: Identity, cost: int = 1) -> Decision:
        """Give units back, the latest first, and never more than are counted."""
        return decide_by_current_rules(self._by("refund", identity, cost))

    async def arefund(self, identity: Identity, cost: int = 1) -> Decision:
        """`refund`, for coroutines."""
        return await adecide_by_current_rules(self._by("refund", identity, cost))

    def charge(self, identity: Identity, cost: int = 1) -> Decision:
        """Count units that were already used, even beyond the limit: then others wait until they are worked off."""
        return decide_by_current_rules(self._by("charge", identity, cost))

    async def acharge(self, identity: Identity, cost: int = 1) -> Decision:
        """`charge`, for coroutines."""
        return await adecide_by_current_rules(self._by("charge", identity, cost))

    def reset(self, identity: Identity) -> None:
        """Forget what is counted for an identity. Raises `StoreError` where Redis cannot be asked."""
        forget(self._counts(identity), strict=True)

    async def areset(self, identity: Identity) -> None:
        """`reset`, for coroutines."""
        await aforget(self._counts(identity), strict=True)

    def acquire(self, identity: Identity, cost: int = 1, timeout: float | timedelta | None = None) -> Decision:
        """Wait for one's turn, at most `timeout` seconds (None: as long as it takes).

        The turn is reserved at once, in one call, and then slept for. Where it would come too late, nothing is taken
        and nothing is waited for: the decision is refused, and its `wait` is the time it would have taken. The timeout
        takes the place of the limit's `max_wait`; a leaky bucket's `queue` bounds how many wait only where it is given.
        Who is interrupted while waiting gives the turn back.
        """
        kept: list[Charge] = []
        by = self._by("hit", identity, cost, kept, max_wait_us=_patience(timeout))
        decision = self._tallied(decide_by_current_rules(by))
        if decision.allowed and decision.wait > 0:
            hold(decision.wait, lambda: self._give_back(decision, kept))
        return decision

    async def aacquire(self, identity: Identity, cost: int = 1, timeout: float | timedelta | None = None) -> Decision:
        """`acquire`, for coroutines; one that is cancelled while it waits gives its turn back."""
        kept: list[Charge] = []
        by = self._by("hit", identity, cost, kept, max_wait_us=_patience(timeout))
        decision = self._tallied(await adecide_by_current_rules(by))
        if decision.allowed and decision.wait > 0:
            await ahold(
                decision.wait, lambda: self._agive_back(decision, kept), lambda: self._give_back(decision, kept)
            )
        return decision

    def _give_back(self, decision: Decision, kept: list[Charge]) -> None:
        for call in _returned(decision, kept):
            decide(call)

    async def _agive_back(self, decision: Decision, kept: list[Charge]) -> None:
        for call in _returned(decision, kept):
            await adecide(call)

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


def _returned(decision: Decision, kept: list[Charge]) -> list[Call]:
    """The calls that give back what a decision took, if it was Redis that counted it."""
    if decision.source == "fallback":
        return []
    states = zip(kept, decision.limits, strict=True)
    return refunds(decision, [(charge, state.counted_at) for charge, state in states if state.allowed])


def _patience(timeout: float | timedelta | None) -> int:
    return -1 if timeout is None else wait_us(timeout, "timeout")
