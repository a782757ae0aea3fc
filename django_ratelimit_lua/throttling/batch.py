"""One decision about all throttles of a view, although DRF asks them one by one."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol

from ..engine.waiting import hold
from ..identity.wrapped import plain
from ..limits.decision import LimitState
from ..limits.rate import SECOND
from ..rules.ruleset import Ruleset
from ..web.charges import PlannedCharge
from ..web.drivers import run
from ..web.plan import decided
from ..web.responses import attach_decision
from ..web.settlement import give_back

States = tuple[LimitState, ...]


class Throttle(Protocol):
    """What is asked of a throttle of ours."""

    timer: Any
    everywhere: bool

    @property
    def name(self) -> str:
        """The name of the call site."""

    @property
    def is_open(self) -> bool:
        """Whether a rule could have it count the request."""

    def wanted(self, request: Any, view: Any, ruleset: Ruleset) -> Generator[Any, Any, list[PlannedCharge]]:
        """What it wants counted, by the rules in force."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go."""


class BatchDecision:
    """What one decision said to each throttle of a view, until it is asked."""

    def __init__(self, request: Any, view: Any, asking: Throttle, kind: type[Throttle]) -> None:
        throttles = self._together(view, asking, kind)
        clocks = [throttle.timer for throttle in throttles if throttle.timer is not time.time]

        def build(ruleset: Ruleset) -> Generator[Any, Any, list[PlannedCharge]]:
            wanted: list[PlannedCharge] = []
            for throttle in throttles:
                found = yield from throttle.wanted(request, view, ruleset)
                wanted += [replace(one, owner=throttle) for one in found]
            return _apart(wanted)

        kept: list[PlannedCharge] = []
        decision = run(
            decided(
                plain(request),
                build,
                now=round(clocks[0]() * SECOND) if clocks else None,
                kept=kept,
                everywhere=any(throttle.everywhere for throttle in throttles),
                may_change=lambda: any(throttle.is_open for throttle in throttles),
            ),
            plain(request),
        )
        if decision.limits:
            attach_decision(plain(request), decision)
        if decision and decision.wait > 0 and not clocks:  # By another clock, it is not known how long that is.
            hold(decision.wait, lambda: run(give_back(kept, decision), plain(request)))
        told = list(zip(kept, decision.limits, strict=False))
        # Whom a block keeps out that no rule is needed for, a throttle tells that stands for all rules.
        blocked = () if decision or told else decision.limits
        self.waiting: list[tuple[type, States]] = [
            (
                type(throttle),
                blocked if throttle.everywhere and blocked else tuple(s for one, s in told if one.owner is throttle),
            )
            for throttle in throttles
        ]

    @staticmethod
    def _together(view: Any, asking: Throttle, kind: type[Throttle]) -> list[Throttle]:
        """The one that asks, among those of the view that will ask after it.

        One that overrides `allow_request` decides itself whether to ask at all, so it is asked alone.
        """
        ours = kind.allow_request
        if type(asking).allow_request is not ours or not hasattr(view, "get_throttles"):
            return [asking]
        others = [
            throttle
            for throttle in view.get_throttles()
            if isinstance(throttle, kind) and type(throttle).allow_request is ours
        ]
        places = [place for place, throttle in enumerate(others) if type(throttle) is type(asking)]
        if not places:
            return [asking]
        others[places[0]] = asking
        return others

    def take(self, asking: Throttle) -> tuple[bool, States]:
        """The answer for the next throttle of that class; (False, ()) if all were given."""
        for place, (cls, states) in enumerate(self.waiting):
            if cls is type(asking):
                del self.waiting[place]
                return True, states
        return False, ()


def decision_for(request: Any, view: Any, asking: Throttle, kind: type[Throttle]) -> States:
    """The answer for a throttle of that kind: from the decision that was taken for its neighbours, or from a new one.

    Empty where it wants nothing counted.
    """
    # DRF's own tests, and others after them, ask a throttle about an empty dict.
    kept: dict[str, Any] = getattr(plain(request), "__dict__", {})
    answers: BatchDecision | None = kept.get("_ratelimit_throttles")
    if answers is not None:
        answered, states = answers.take(asking)
        if answered:
            return states
    answers = kept["_ratelimit_throttles"] = BatchDecision(request, view, asking, kind)
    return answers.take(asking)[1]


def _apart(wanted: list[PlannedCharge]) -> list[PlannedCharge]:
    """The same, with no counter twice: two throttles of one scope are told apart by their rates."""
    seen: set[tuple[bytes, bytes]] = set()
    apart = []
    for one in wanted:
        charge = one.charge
        limit, number = charge.limit, 1
        while (charge.digest, limit.key_part) in seen:
            limit = charge.limit.renamed(f"{charge.limit.name}:{charge.limit.rate}" + f"*{number}" * (number > 1))
            number += 1
        seen.add((charge.digest, limit.key_part))
        apart.append(replace(one, charge=replace(charge, limit=limit)))
    return apart
