"""`health`: whether the gateway can decide limits, for load balancers and monitoring."""

from __future__ import annotations

from ...operations.health import ahealth
from .answer import Answer


async def answer_health() -> Answer:
    """Return 200 if Redis replies within `RATELIMIT_TIMEOUT`, otherwise 503. Counts nothing."""
    if (await ahealth()).ok:
        return Answer.text(200, "ok")
    return Answer.text(503, "Redis is unavailable; fallback policies decide.")
