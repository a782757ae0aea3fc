"""What of a call is decided here; what else it is about is asked of Redis. Together it is all or nothing.

Written as a generator that yields the calls that have to be made and is sent their decisions.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...exceptions import StoreError
from ...limits.call import Call, Charge
from ...limits.decision import Decision, LimitState, Source
from ...store.freshness import fence
from ..counters import counters
from ..deny_cache import deny_cache
from ..fallback import Steps
from ..heartbeat import heartbeat
from .pool import Pool
from .pools import leases

ATTEMPTS = 3
"""How often a hit is decided again because a batch came in that it was refused for."""


def has_local_limits(call: Call) -> bool:
    """Whether anything of a call may be decided here."""
    return any(charge.limit.is_hot for charge in call.charges)


def may_have_more(call: Call) -> bool:
    """Whether units are on their way, so that a refusal says nothing about the next hit."""
    return any(charge.limit.lease is not None and leases.pool(call, charge).may_have_more for charge in call.charges)


@dataclass(slots=True)
class _Here:
    """What is decided here of a call: states by the place of their charge, and what was taken for it."""

    call: Call
    states: dict[int, LimitState] = field(default_factory=dict)
    moments: dict[bytes, int] = field(default_factory=dict)
    splits: Call | None = None
    split: Decision | None = None
    spent: list[tuple[Pool, int, int]] = field(default_factory=list)
    """Pools, the units that were spent from them, and since when these count."""

    @property
    def granted(self) -> list[int]:
        """The units that each part was granted."""
        return [cost for _, cost, _ in self.spent] + ([self.split.granted] if self.split is not None else [])

    def undo(self, keep: int = 0) -> None:
        """Give back what was taken of each limit, but for so many units."""
        for pool, cost, moment in self.spent:
            if cost > keep:
                pool.put_back(cost - keep, moment)
                leases.holds(pool)
        if self.splits is not None and self.split is not None and self.split.granted > keep:
            refund = replace(self.splits, operation="refund", partial=False)
            for charge, state in zip(self.splits.charges, self.split.limits, strict=True):
                back = (self.split.granted if self.call.partial else charge.cost) - keep
                if state.counted_at and back > 0:
                    counters.decide(replace(refund, charges=[replace(charge, cost=back)], hit_at=state.counted_at))


def decide_here(call: Call) -> Steps:
    """Decide a call, here and in Redis. Raises `StoreError` and `StaleRules` where what it yields does."""
    for _ in range(ATTEMPTS):
        decision = yield from _decide_once(call)
        if decision.allowed or call.operation != "hit" or not any(
            not state.allowed and _is_leased(call, charge) and leases.pool(call, charge).has(charge.cost)
            for charge, state in zip(call.charges, decision.limits, strict=True)
        ):  # fmt: skip
            break  # Else somebody took, while Redis was asked, what it said there is no more of.
    return decision


def _decide_once(call: Call) -> Steps:
    here = _Here(call)
    yield from _by_parts(call, here)
    refused = here.split is not None and not here.split.allowed
    asked = replace(call, operation="peek") if refused and call.operation == "hit" else call
    rest: list[int] = []
    redis: Decision | None = None
    try:
        for place, charge in enumerate(call.charges):
            if place not in here.states and not (_is_leased(asked, charge) and (yield from _spend(here, place, asked))):
                rest.append(place)
        if rest:
            redis = yield replace(asked, charges=[_at_most(asked, call.charges[place], here) for place in rest])
            for place, state in zip(rest, redis.limits, strict=True):
                here.states[place] = state
                here.moments[call.charges[place].digest] = redis.counted_at(call.charges[place].digest)
                if _is_leased(call, call.charges[place]):
                    cost = call.charges[place].cost if redis.allowed and call.operation == "hit" else 0
                    leases.pool(call, call.charges[place]).hear(state, cost)
    except BaseException:
        here.undo()
        raise
    return _together(call, here, redis, refused)


def _at_most(call: Call, charge: Charge, here: _Here) -> Charge:
    """Of a partial hit, no more is asked than was granted here."""
    if not call.partial or not here.granted or call.operation != "hit":
        return charge
    return replace(charge, cost=min([charge.cost, *here.granted]))


def _together(call: Call, here: _Here, redis: Decision | None, refused: bool) -> Decision:
    allowed = not refused and (redis is None or redis.allowed)
    grants = here.granted + ([redis.granted] if redis is not None else [])
    granted = (min if call.partial else max)(grants) if allowed and call.operation != "peek" else 0
    if call.operation == "hit" and (not allowed or call.partial):
        here.undo(granted)
    states = tuple(here.states[place] for place in range(len(call.charges)))
    wait = max((state.wait for state in states if state.enforced), default=0.0)
    moments = here.moments
    if redis is not None:
        # What was taken here of a limit that a later one refuses has no turn to wait for; else all go together.
        return replace(redis, allowed=allowed, limits=states, granted=granted, wait=wait, moments=moments,
                       revision=call.revision_number)  # fmt: skip
    source: Source = "lease" if here.spent else "split"
    moment = max(moments.values(), default=time.time_ns() // 1000)
    return Decision(allowed, states, granted, wait, source, moment, call.revision_number, moments or None)


def _by_parts(call: Call, here: _Here) -> Generator[Call, Decision, None]:
    """Decide what is split by this process's part of it."""
    places = [place for place, charge in enumerate(call.charges) if charge.limit.split is not None]
    if not places or call.now is not None:  # A clock of the caller's own is not this process's.
        return
    heartbeat.start()
    if any(heartbeat.part_of(call.charges[place].limit) is None for place in places):
        return  # Not known in the first moments of a process: until then it is one count, in Redis.
    if len(places) == len(call.charges):
        yield from fence.verify(call, _asked, needed=False)
    here.splits = replace(call, charges=[call.charges[place] for place in places])
    here.split = counters.decide(here.splits)
    here.states.update(zip(places, here.split.limits, strict=True))


def _asked(call: Call) -> Generator[Call, Decision, None]:
    yield call


def _is_leased(call: Call, charge: Charge) -> bool:
    # A clock of the caller's own is not the one that leases lapse by; a wait of one's own is for Redis to plan.
    return (
        charge.limit.lease is not None
        and call.operation in ("hit", "peek")
        and call.now is None
        and call.max_wait_us is None
    )


def _spend(here: _Here, place: int, call: Call) -> Generator[Call, Decision, bool]:
    """Spend a charge from its pool, for which a batch is asked if that pays; whether it could be."""
    charge = call.charges[place]
    pool = leases.pool(call, charge)
    if call.operation == "peek":
        found = pool.look(max(charge.cost, 1))
    else:
        charge = _at_most(call, charge, here)
        found = pool.spend(charge.cost)
        size = pool.wanted(charge.cost)
        if size:
            if found is not None:
                here.spent.append((pool, charge.cost, found[1]))
            yield from _ask(call, charge, pool, size, needed=found is None)
            if found is not None:
                here.spent.pop()
            else:
                found = pool.spend(charge.cost)
        if found is None:
            for refund in leases.refunds(pool, charge.cost):  # Too few: see what there is of them all.
                with suppress(StoreError):
                    yield refund
                deny_cache.forget([charge.digest])
    if found is None:
        return False
    here.states[place], here.moments[charge.digest] = found
    if call.operation == "hit":
        here.spent.append((pool, charge.cost, found[1]))
    return True


def _ask(call: Call, charge: Charge, pool: Pool, size: int, *, needed: bool) -> Generator[Call, Decision, None]:
    """Ask for a batch; raises `StoreError` only if it is `needed` now."""
    asked_at = time.monotonic()
    try:
        decision = yield replace(call, charges=[replace(charge, cost=size)], partial=True)
    except StoreError:
        pool.failed()
        if needed:
            raise
    except BaseException:
        pool.failed()
        raise
    else:
        pool.receive(decision, asked_at)
        leases.holds(pool)
