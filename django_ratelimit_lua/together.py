"""One decision about all throttles of a view, although DRF asks them one by one."""

from __future__ import annotations

import time
from typing import Any, Protocol

from .check import check, describe
from .http import note
from .limits.call import Charge
from .limits.decision import Decision, LimitState
from .limits.rate import SECOND


class Throttle(Protocol):
    """What is asked of a throttle of ours."""

    timer: Any

    def prepare(self, request: Any, view: Any) -> Charge | None:
        """What it wants counted."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go."""


class Answers:
    """What one decision said to each throttle of a view, until it is asked."""

    def __init__(self, request: Any, view: Any, asking: Throttle, kind: type[Throttle]) -> None:
        self.waiting: list[tuple[type, LimitState | None]] = []
        throttles = self._together(view, asking, kind)
        wanted = [(throttle, throttle.prepare(request, view)) for throttle in throttles]
        charges = _apart([charge for _, charge in wanted if charge is not None])
        clocks = [throttle.timer for throttle in throttles if throttle.timer is not time.time]
        call = describe(charges, now=round(clocks[0]() * SECOND) if clocks else None)
        decision = note(plain(request), check(call)) if charges else Decision(True)
        states = iter(decision.limits)
        for throttle, charge in wanted:
            self.waiting.append((type(throttle), None if charge is None else next(states, None)))

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

    def take(self, asking: Throttle) -> tuple[bool, LimitState | None]:
        """The answer for the next throttle of that class; (False, None) if all were given."""
        for place, (cls, state) in enumerate(self.waiting):
            if cls is type(asking):
                del self.waiting[place]
                return True, state
        return False, None


def answer(request: Any, view: Any, asking: Throttle, kind: type[Throttle]) -> LimitState | None:
    """The answer for a throttle of that kind: from the decision that was taken for its neighbours, or from a new one.

    None where it wants nothing counted.
    """
    kept = vars(plain(request))
    answers: Answers | None = kept.get("_ratelimit_throttles")
    if answers is not None:
        answered, state = answers.take(asking)
        if answered:
            return state
    answers = kept["_ratelimit_throttles"] = Answers(request, view, asking, kind)
    return answers.take(asking)[1]


def _apart(charges: list[Charge]) -> list[Charge]:
    """The same charges, with no counter twice: two throttles of one scope are told apart by their rates."""
    seen: set[tuple[bytes, bytes]] = set()
    apart = []
    for charge in charges:
        limit, number = charge.limit, 1
        while (charge.digest, limit.key_part) in seen:
            limit = charge.limit.renamed(f"{charge.limit.name}:{charge.limit.rate}" + f"*{number}" * (number > 1))
            number += 1
        seen.add((charge.digest, limit.key_part))
        apart.append(Charge(limit, charge.digest, charge.cost))
    return apart


def plain(request: Any) -> Any:
    """Django's request, inside DRF's."""
    return getattr(request, "_request", request)
