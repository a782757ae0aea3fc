"""What limits would do to a burst and to a steady flow: asked of the program that decides, on a
clock of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.decide import build_call
from ..identity import digest
from ..limits.call import MAX_COST, Charge
from ..limits.limit import Limit
from ..limits.rate import SECOND, Rate
from ..store import get_store

MAX_CALLS = 300
START_US = 1_767_225_600 * SECOND
"""2026-01-01 00:00 UTC: the clock of every preview, so that windows of the calendar begin with it.
"""
PERIODS = 3


@dataclass(frozen=True, slots=True)
class SimulatedHit:
    """Some requests that are sent at one moment: seconds since the beginning, how many, how many of
    them may go, and seconds until they do.
    """

    at: float
    count: int
    granted: int
    wait: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a burst and of the steady flow after it; `seconds`: the simulated time."""

    sent: tuple[SimulatedHit, ...]
    burst: int
    burst_granted: int
    flow_sent: int
    flow_granted: int
    seconds: float


def simulate(limits: Sequence[Limit], burst: int, flow: Rate | None, cost: int = 1) -> Simulation:
    """Send a burst at once and then a steady flow to limits that are decided together, for three of
    their longest period, or for as long as the maximum number of requests lasts, but for three of
    the shortest at least.

    `cost`: units of one request. If there are more than some hundred requests, several are decided
    in one call. The counts are deleted afterwards. Raises `StoreError`.
    """
    shortest, longest = (by(limit.rate.period for limit in limits) * PERIODS for by in (min, max))
    one_by_one = MAX_CALLS * flow.period / flow.limit if flow is not None and flow.limit else 0.0
    seconds = max(shortest, min(longest, one_by_one)) if one_by_one else longest
    step = max(1, -(-burst // (MAX_CALLS // 3)))
    moments = [(0.0, min(step, burst - done)) for done in range(0, burst, step)]
    in_burst = len(moments)
    if flow is not None and flow.limit:
        total = int(seconds * flow.limit / flow.period)
        step = max(1, -(-total // MAX_CALLS))
        moments += [
            (number * flow.period / flow.limit, step) for number in range(1, total + 1, step)
        ]
    name = uuid.uuid4().hex
    limits = [limit.renamed(f"preview:{name}:{number}") for number, limit in enumerate(limits)]
    sent = [_send(limits, at, count, cost) for at, count in moments]
    get_store().reset(build_call([Charge(limit, digest("preview")) for limit in limits], "peek"))
    first, rest = sent[:in_burst], sent[in_burst:]
    return Simulation(
        tuple(sent),
        sum(hit.count for hit in first),
        sum(hit.granted for hit in first),
        sum(hit.count for hit in rest),
        sum(hit.granted for hit in rest),
        seconds,
    )


def _send(limits: Sequence[Limit], at: float, count: int, cost: int) -> SimulatedHit:
    now = START_US + round(at * SECOND)
    identity = digest("preview")
    # No limit holds as many units as a call can ask for, so more would be granted no more.
    units = min(count * cost, MAX_COST)
    decision = get_store().decide(
        build_call(
            [Charge(limit, identity, units) for limit in limits], partial=count > 1, now=now
        )._replace(registers=False)
    )
    # In one decision, requests that do not fit are not counted. Here they are, as when they come
    # one by one.
    refused = count * cost - max(decision.granted, 1)
    if limits[0].count_denied and count > 1 and refused > 0:
        more = [Charge(limit, identity, min(refused, MAX_COST)) for limit in limits]
        get_store().decide(build_call(more, now=now)._replace(registers=False))
    granted = decision.granted // cost if cost else count * decision.allowed
    return SimulatedHit(at, count, granted, decision.wait)
