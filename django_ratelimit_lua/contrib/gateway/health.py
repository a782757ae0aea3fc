"""`health`: whether the gateway can decide limits, for load balancers and monitoring."""

from __future__ import annotations

from ...engine.decide import build_call
from ...exceptions import StoreError
from ...identity import digest
from ...limits.call import Charge
from ...limits.limit import Limit
from ...store import get_store
from .answer import Answer


async def answer_health() -> Answer:
    """Return 200 if Redis replies within `RATELIMIT_TIMEOUT`, otherwise 503. Counts nothing."""
    try:
        await get_store().adecide(
            build_call([Charge(Limit("health", "1/s"), digest("health"))], "peek")
        )
    except StoreError:
        return Answer.text(503, "Redis is unavailable; fallback policies decide.")
    return Answer.text(200, "ok")
