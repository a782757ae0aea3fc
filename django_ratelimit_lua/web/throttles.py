"""What the throttles of a view of Django REST framework charge, in one plan.

A throttle is known by what it has: that framework need not be installed to ask here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from ..identity.request_state import plain
from ..limits.call import Operation
from ..limits.rate import SECOND
from ..rules.ruleset import Ruleset
from .plan import OnError, Place, RequestPlanner


class Throttle(Protocol):
    """What is asked of a throttle of ours. `everywhere`: it stands for all rules; `is_asked_together`: it leaves to us
    whether it is asked, so its neighbours are decided with it."""

    timer: Any
    everywhere: bool

    @property
    def is_asked_together(self) -> bool:
        """Whether `allow_request` is ours."""

    @property
    def name(self) -> str:
        """The name of the call site."""

    def place(self, request: Any, view: Any, ruleset: Ruleset) -> Place:
        """What it charges, by the rules in force."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go."""


def own_clock(throttles: Sequence[Throttle]) -> int | None:
    """Microseconds since 1970 by the clock that one of them brings along; None: they go by ours."""
    clocks = [throttle.timer for throttle in throttles if throttle.timer is not time.time]
    return round(clocks[0]() * SECOND) if clocks else None


def throttle_planner(
    request: Any,
    view: Any,
    throttles: Sequence[Throttle],
    operation: Operation = "hit",
    *,
    now: int | None = None,
    on_error: OnError | None = None,
) -> RequestPlanner:
    """Plans what these throttles of a view charge for a request of DRF's. `on_error`: see `RequestPlanner`."""

    def places(ruleset: Ruleset) -> list[Place]:
        found = []
        for throttle in throttles:
            try:
                found.append(throttle.place(request, view, ruleset))
            except Exception as error:
                if on_error is None:
                    raise
                on_error(throttle.name, error)
        return found

    return RequestPlanner(
        plain(request), places, operation=operation, now=now, on_error=on_error,
        has_blocks=any(throttle.everywhere for throttle in throttles),
    )  # fmt: skip
