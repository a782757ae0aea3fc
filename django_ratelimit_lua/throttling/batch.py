"""One decision for all throttles of a view, although DRF calls them one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.decide import decide
from ..engine.waiting import hold
from ..identity.request_state import plain, request_state
from ..limits.decision import LimitState
from ..web.holding import hold_slots, watched_method
from ..web.refusal import Refusal, refusal_of
from ..web.responses import attach_decision

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

    from .classes import SimpleRateThrottle

States = tuple[LimitState, ...]


class BatchDecision:
    """The states of one decision, until each throttle of the view takes its own.

    - `refusal`: the content of the refusal, if there is one.
    """

    refusal: Refusal | None

    def __init__(self, request: Request, view: APIView, caller: SimpleRateThrottle) -> None:
        throttles = self._together(view, caller)
        planner = caller.planner(throttles, request, view)
        decision = decide(planner)
        held = hold_slots(request, decision, planner.charges)
        if held is not None and hasattr(view, name := request.method.lower()):
            # DRF calls it next. It converts exceptions, but an interruption would leave the slot
            # held.
            setattr(view, name, watched_method(request, held, getattr(view, name)))
        if decision.limits:
            attach_decision(plain(request), decision)
        self.refusal = None
        if not decision:
            self.refusal = refusal_of(plain(request), decision)
        # With another clock, the wait is not in real seconds.
        if decision and decision.wait > 0 and planner.options["now"] is None:
            hold(decision.wait, planner.charges)
        self._states: list[tuple[type, States]] = []
        for throttle in throttles:
            owners: list[object] = [throttle]
            # A block without a rule has no owner. A throttle that applies all rules reports it.
            if throttle.everywhere:
                owners.append(None)
            states = tuple(decided.state for decided in planner.charges if decided.owner in owners)
            self._states.append((type(throttle), states))

    @staticmethod
    def _together(view: APIView, caller: SimpleRateThrottle) -> list[SimpleRateThrottle]:
        """Return the throttles of the view that are decided together, including the caller."""
        if not caller.is_decided_together or not hasattr(view, "get_throttles"):
            return [caller]
        throttles = [
            each for each in view.get_throttles() if getattr(each, "is_decided_together", False)
        ]
        for place, throttle in enumerate(throttles):
            if type(throttle) is type(caller):
                throttles[place] = caller
                return throttles
        return [caller]

    def take(self, caller: SimpleRateThrottle) -> States | None:
        """Return the states for the next throttle of this class, or None if none are left."""
        for place, (cls, states) in enumerate(self._states):
            if cls is type(caller):
                del self._states[place]
                return states
        return None


def decision_for(request: Request, view: APIView, caller: SimpleRateThrottle) -> States:
    """Return the states for a throttle, from an earlier decision or from a new one.

    There are none if the throttle counts nothing.
    """
    state = request_state(request)
    batch: BatchDecision | None = state.throttles
    states = None
    if batch is not None:
        states = batch.take(caller)
    if states is None:
        batch = state.throttles = BatchDecision(request, view, caller)
        states = batch.take(caller)
    return states or ()
