"""One decision about all throttles of a view, although DRF asks them one by one."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ..engine.decide import decide
from ..engine.waiting import hold
from ..identity.request_state import plain, request_state
from ..limits.decision import LimitState
from ..limits.rate import SECOND
from ..rules.ruleset import Ruleset
from ..web.plan import Place, RequestPlanner
from ..web.refusal import Refusal, refusal_of
from ..web.responses import attach_decision

States = tuple[LimitState, ...]


class Throttle(Protocol):
    """What is asked of a throttle of ours."""

    timer: Any
    everywhere: bool

    @property
    def name(self) -> str:
        """The name of the call site."""

    def place(self, request: Any, view: Any, ruleset: Ruleset) -> Place:
        """What it charges, by the rules in force."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go."""


class BatchDecision:
    """What one decision said to each throttle of a view, until it is asked; `refusal`: what is told of it, where it
    refuses."""

    refusal: Refusal | None

    def __init__(self, request: Any, view: Any, asking: Throttle, kind: type[Throttle]) -> None:
        throttles = self._together(view, asking, kind)
        clocks = [throttle.timer for throttle in throttles if throttle.timer is not time.time]
        planner = RequestPlanner(
            plain(request),
            lambda ruleset: [throttle.place(request, view, ruleset) for throttle in throttles],
            now=round(clocks[0]() * SECOND) if clocks else None,
            has_blocks=any(throttle.everywhere for throttle in throttles),
        )
        outcome = decide(planner)
        decision = outcome.decision
        if decision.limits:
            attach_decision(plain(request), decision)
        self.refusal = None if decision else refusal_of(plain(request), decision)
        if decision and decision.wait > 0 and not clocks:  # By another clock, it is not known how long that is.
            hold(outcome)
        # A block that no rule is needed for is told by a throttle that stands for all rules.
        blocked = () if decision or outcome.planned else decision.limits
        decided = list(zip(outcome.planned, decision.limits, strict=False))
        self.waiting: list[tuple[type, States]] = []
        for throttle in throttles:
            states = tuple(state for planned, state in decided if planned.owner is throttle)
            self.waiting.append((type(throttle), blocked if throttle.everywhere and blocked else states))

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
    state = request_state(request)
    batch: BatchDecision | None = state.throttles
    if batch is not None:
        is_answered, states = batch.take(asking)
        if is_answered:
            return states
    batch = state.throttles = BatchDecision(request, view, asking, kind)
    return batch.take(asking)[1]
