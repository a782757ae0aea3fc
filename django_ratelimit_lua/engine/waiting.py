"""Waiting for a reserved turn, and giving it back if the caller is stopped.

A turn is taken before the wait. A caller that is cancelled or interrupted gives exactly that turn
back, by the moment from which its units count.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from .decide import Outcome, refunding
from .run import Wait, Waiting, arun, in_thread, run, settled, settling, to_the_end, unmasked

__all__ = ["ahold", "hold", "in_thread", "settled", "to_the_end", "unmasked", "waiting_turn"]


def hold(outcome: Outcome) -> None:
    """Sleep until the turn comes. If the caller is interrupted, give the turn back."""
    run(waiting_turn(outcome))


async def ahold(outcome: Outcome) -> None:
    """`hold`, without blocking the event loop."""
    await arun(waiting_turn(outcome))


def waiting_turn(outcome: Outcome) -> Waiting[None]:
    """Like `hold`, but as a generator for one of the drivers in `engine.run`."""
    seconds = outcome.decision.wait
    try:
        yield Wait(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
    except BaseException as error:
        yield from settling(error, refunding(outcome.charges))
        raise
