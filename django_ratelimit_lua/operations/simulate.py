"""Simulates a burst and then a steady stream. The script in Redis decides on a simulated clock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ..engine.decide import build_call
from ..identity import digest
from ..limits.call import MAX_COST, Charge
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..store import get_store

MAX_CALLS = 60
"""Maximum number of decisions about the stream; those about the burst are half as many."""
MAX_BURST = 1000
START_US = 1_767_225_600 * SECOND
"""2026-01-01 00:00 UTC: every simulation begins here, as windows of the calendar do."""


class Hit(NamedTuple):
    """Requests that are sent at the same moment.

    - `at`: when they are sent, in seconds;
    - `sent`: their number;
    - `turn`: when the allowed ones have their turn;
    - `allowed`: how many are allowed.
    """

    at: float
    sent: int
    turn: float
    allowed: int


class Simulation(NamedTuple):
    """A burst at 0, and the stream after it; `seconds` is the simulated time."""

    seconds: float
    hits: list[Hit]


def simulate(limits: Sequence[Limit], cost: int = 1) -> Simulation:
    """Send twice the first limit at once, then twice its rate, for two of its periods.

    The limits are decided together. Their counts are deleted afterwards.

    Raises:
        StoreError: Redis is unavailable.
    """
    rate = limits[0].rate
    burst = min(2 * limits[0].capacity, MAX_BURST)
    step = -(-burst // (MAX_CALLS // 2)) or 1
    sent = [(0.0, min(step, burst - done)) for done in range(0, burst, step)]
    stream = 4 * rate.limit
    step = -(-stream // MAX_CALLS) or 1
    pause = rate.period / 2 / (rate.limit or 1)
    sent += [(done * pause, step) for done in range(step, stream + 1, step)]
    name = uuid.uuid4().hex
    own = [limit.renamed(f"preview:{name}:{number}") for number, limit in enumerate(limits)]
    hits = [_decide(own, at, number, cost) for at, number in sent]
    get_store().reset(build_call([Charge(limit, digest("preview")) for limit in own], "peek"))
    return Simulation(2 * rate.period, hits)


def _decide(limits: Sequence[Limit], at: float, number: int, cost: int) -> Hit:
    # No limit holds as many units as a call can take.
    units = min(number * cost, MAX_COST)
    charges = [Charge(limit, digest("preview"), units) for limit in limits]
    now = START_US + round(at * SECOND)
    decision = get_store().decide(build_call(charges, partial=number > 1, now=now))
    allowed = number * decision.allowed
    if cost:
        allowed = decision.granted // cost
    return Hit(at, number, at + decision.wait, allowed)
