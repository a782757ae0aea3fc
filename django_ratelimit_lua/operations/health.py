"""Whether limits can be decided at the moment, for a health endpoint or a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.decide import build_call
from ..engine.heartbeat import Process, processes
from ..exceptions import StoreError
from ..identity import digest
from ..limits.call import Call, Charge
from ..limits.limit import Limit
from ..rules.problems import problems
from ..rules.provider import current
from ..store import get_store


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a decision was made (`ok`), in how many `seconds`, or the `error`.

    `revision`: of the rules that this process uses (0: none, or none loaded yet); `is_paused`:
    Redis is not called at the moment, after repeated failures; `problems`: the rules that this
    process had to leave out, or could not publish, and why; `processes`: those that decide limits,
    and their parts of split limits;
    """

    ok: bool
    seconds: float
    error: str | None
    revision: int
    is_paused: bool
    problems: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()


def health() -> Health:
    """Ask Redis for a decision, within `RATELIMIT_TIMEOUT`; nothing is counted.

    Raises `ImproperlyConfigured`.

    >>> health().ok
    True
    """
    call, started = _call(), time.monotonic()
    try:
        get_store().decide(call)
        seconds = time.monotonic() - started
        return _found(seconds, found=processes())
    except StoreError as error:
        return _found(time.monotonic() - started, error)


async def ahealth() -> Health:
    """`health`, without blocking the event loop."""
    call, started = _call(), time.monotonic()
    try:
        await get_store().adecide(call)
        seconds = time.monotonic() - started
        return _found(seconds, found=await asyncio.to_thread(processes))
    except StoreError as error:
        return _found(time.monotonic() - started, error)


def _call() -> Call:
    return build_call([Charge(Limit("health", "1/s"), digest("health"))], "peek")


def _found(seconds: float, error: Exception | None = None, found: Sequence[Process] = ()) -> Health:
    ruleset = current()
    revision = 0 if ruleset is None else ruleset.revision.number
    message = None if error is None else str(error)
    return Health(
        error is None,
        seconds,
        message,
        revision,
        get_store().is_paused,
        tuple(problems.found()),
        tuple(found),
    )
