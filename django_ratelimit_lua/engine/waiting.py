"""Waiting for a turn that was reserved, and giving it back where the one who waits is stopped.

A turn is taken before it is waited for. Whoever is cancelled or interrupted meanwhile owes it to the others: exactly
that turn, by the moment from which it counts, and whatever else happens to the one who gives it back.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from .decide import Outcome, refunding
from .run import Wait, Waiting, arun, in_thread, run, settled, settling, to_the_end, unmasked

__all__ = ["ahold", "hold", "in_thread", "settled", "to_the_end", "unmasked"]


def hold(outcome: Outcome) -> None:
    """Sleep until it is one's turn; who is interrupted meanwhile gives it back."""
    run(_holding(outcome))


async def ahold(outcome: Outcome) -> None:
    await arun(_holding(outcome))


def _holding(outcome: Outcome) -> Waiting[None]:
    seconds = outcome.decision.wait
    try:
        yield Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
    except BaseException as error:
        yield from settling(error, refunding(outcome.charges))
        raise
