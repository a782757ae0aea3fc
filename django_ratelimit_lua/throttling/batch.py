"""One decision about all throttles of a view, although DRF asks them one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine.decide import decide
from ..engine.waiting import hold
from ..identity.request_state import plain, request_state
from ..limits.decision import LimitState
from ..web.holding import hold_slots, watched_method
from ..web.refusal import Refusal, refusal_of
from ..web.responses import attach_decision

if TYPE_CHECKING:
    from .classes import SimpleRateThrottle

States = tuple[LimitState, ...]


class BatchDecision:
    """The answers of one decision for the throttles of a view, until each reads its own; `refusal`: the content of the
    refusal, if any."""

    refusal: Refusal | None

    def __init__(self, request: Any, view: Any, asking: SimpleRateThrottle) -> None:
        throttles = self._together(view, asking)
        planner = asking.planner(throttles, request, view)
        outcome = decide(planner)
        held = hold_slots(request, outcome)
        if held is not None and hasattr(view, name := request.method.lower()):
            # DRF calls it next. An exception becomes a response, but an interruption would skip the throttles.
            setattr(view, name, watched_method(request, held, getattr(view, name)))
        decision = outcome.decision
        if decision.limits:
            attach_decision(plain(request), decision)
        self.refusal = None if decision else refusal_of(plain(request), decision)
        if (
            decision and decision.wait > 0 and planner.options["now"] is None
        ):  # By another clock, it is not known how long that is.
            hold(outcome)
        decided = list(zip(outcome.planned, decision.limits, strict=False))
        self.waiting: list[tuple[type, States]] = []
        for throttle in throttles:
            # A block without a rule has no owner. A throttle that stands for all rules reports it.
            owners = (throttle, None) if throttle.everywhere else (throttle,)
            states = tuple(state for planned, state in decided if planned.owner in owners)
            self.waiting.append((type(throttle), states))

    @staticmethod
    def _together(view: Any, asking: SimpleRateThrottle) -> list[SimpleRateThrottle]:
        """The one that asks, among those of the view that will ask after it.

        One that overrides `allow_request` decides itself whether to ask at all, so it is asked alone.
        """
        if not asking.is_asked_together or not hasattr(view, "get_throttles"):
            return [asking]
        others = [throttle for throttle in view.get_throttles() if getattr(throttle, "is_asked_together", False)]
        places = [place for place, throttle in enumerate(others) if type(throttle) is type(asking)]
        if not places:
            return [asking]
        others[places[0]] = asking
        return others

    def take(self, asking: SimpleRateThrottle) -> tuple[bool, States]:
        """The answer for the next throttle of that class; (False, ()) if all were given."""
        for place, (cls, states) in enumerate(self.waiting):
            if cls is type(asking):
                del self.waiting[place]
                return True, states
        return False, ()


def decision_for(request: Any, view: Any, asking: SimpleRateThrottle) -> States:
    """The answer for a throttle: from the decision that was made for the throttles next to it, or from a new one.

    Empty if it counts nothing.
    """
    state = request_state(request)
    batch: BatchDecision | None = state.throttles
    if batch is not None:
        is_answered, states = batch.take(asking)
        if is_answered:
            return states
    batch = state.throttles = BatchDecision(request, view, asking)
    return batch.take(asking)[1]
