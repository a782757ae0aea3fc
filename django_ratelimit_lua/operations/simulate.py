"""Simulates a burst and a steady flow, decided by the script in Redis on a simulated clock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.decide import build_call
from ..identity import digest
from ..limits.call import MAX_COST, Charge
from ..limits.decision import Decision
from ..limits.limit import Limit
from ..limits.rate import SECOND, Rate
from ..store import get_store

MAX_CALLS = 300
START_US = 1_767_225_600 * SECOND
"""2026-01-01 00:00 UTC: every preview begins here, as windows of the calendar do."""
PERIODS = 3


@dataclass(frozen=True, slots=True)
class SimulatedHit:
    """Requests that are sent at the same moment.

    - `at`: seconds since the beginning;
    - `count`: the number of requests;
    - `granted`: the number of allowed requests;
    - `wait`: seconds until they are allowed.
    """

    at: float
    count: int
    granted: int
    wait: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a burst and of the steady flow after it.

    - `seconds`: the simulated time.
    """

    sent: tuple[SimulatedHit, ...]
    burst: int
    burst_granted: int
    flow_sent: int
    flow_granted: int
    seconds: float


def simulate(limits: Sequence[Limit], burst: int, flow: Rate | None, cost: int = 1) -> Simulation:
    """Send a burst at once and then a steady flow to limits that are decided together.

    The flow lasts for three times the longest period of the limits. It ends earlier if it consists
    of more than `MAX_CALLS` requests, but not before three times the shortest period. If there are
    more requests, several are decided in one call. The counts are deleted afterwards.

    Args:
        limits: The limits.
        burst: The number of requests at once.
        flow: The rate of the requests after it.
        cost: Units of one request.

    Raises:
        StoreError: Redis is unavailable.
    """
    periods = [limit.rate.period * PERIODS for limit in limits]
    seconds = max(periods)
    step = max(1, -(-burst // (MAX_CALLS // 3)))
    moments = [(0.0, min(step, burst - done)) for done in range(0, burst, step)]
    in_burst = len(moments)
    if flow is not None and flow.limit:
        pause = flow.period / flow.limit
        seconds = max(min(periods), min(seconds, MAX_CALLS * pause))
        total = int(seconds / pause)
        step = max(1, -(-total // MAX_CALLS))
        moments += [(number * pause, step) for number in range(1, total + 1, step)]
    name = uuid.uuid4().hex
    limits = [limit.renamed(f"preview:{name}:{number}") for number, limit in enumerate(limits)]
    sent = [_send(limits, at, count, cost) for at, count in moments]
    get_store().reset(build_call([Charge(limit, digest("preview")) for limit in limits], "peek"))
    return Simulation(tuple(sent), *_totals(sent[:in_burst]), *_totals(sent[in_burst:]), seconds)


def _totals(sent: Sequence[SimulatedHit]) -> tuple[int, int]:
    """Return the number of sent requests, and the number of allowed ones."""
    return sum(hit.count for hit in sent), sum(hit.granted for hit in sent)


def _send(limits: Sequence[Limit], at: float, count: int, cost: int) -> SimulatedHit:
    # No limit holds as many units as a call can take, so more would be granted no more.
    decision = _decide(limits, at, min(count * cost, MAX_COST), partial=count > 1)
    # In one decision, requests that do not fit are not counted. Here they are, as when they come
    # one by one.
    refused = count * cost - max(decision.granted, 1)
    if limits[0].count_denied and count > 1 and refused > 0:
        _decide(limits, at, min(refused, MAX_COST))
    granted = count * decision.allowed
    if cost:
        granted = decision.granted // cost
    return SimulatedHit(at, count, granted, decision.wait)


def _decide(limits: Sequence[Limit], at: float, units: int, *, partial: bool = False) -> Decision:
    charges = [Charge(limit, digest("preview"), units) for limit in limits]
    call = build_call(charges, partial=partial, now=START_US + round(at * SECOND))
    return get_store().decide(call)
