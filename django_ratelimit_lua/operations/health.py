"""A check of whether limits can be decided at the moment, for health endpoints and people."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.decide import build_call
from ..engine.heartbeat import Process, live_processes
from ..exceptions import StoreError
from ..identity import digest
from ..limits.call import Charge
from ..limits.limit import Limit
from ..process import Clock
from ..rules.provider import get_ruleset
from ..rules.status import problems
from ..store import get_store


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a health check.

    - `ok`: whether a decision was made, in how many `seconds`, or the `error`;
    - `revision`: the revision of the rules that this process uses (0: none, or none loaded yet);
    - `is_paused`: whether Redis is not called at the moment, after repeated failures;
    - `problems`: the rules that this process had to leave out, or could not publish, and why;
    - `processes`: the processes that decide limits.
    """

    ok: bool
    seconds: float
    error: str | None
    revision: int
    is_paused: bool
    problems: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()


def health() -> Health:
    """Call Redis for a decision, within `RATELIMIT_TIMEOUT`, without counting anything.

    Raises:
        ImproperlyConfigured: The settings name no usable Redis.

    >>> health().ok
    True
    """
    store = get_store()
    call = build_call([Charge(Limit("health", "1/s"), digest("health"))], "peek")
    error = None
    processes: Sequence[Process] = ()
    started = Clock.monotonic()
    try:
        store.decide(call)
        seconds = Clock.monotonic() - started
        processes = live_processes()
    except StoreError as failure:
        seconds = Clock.monotonic() - started
        error = str(failure)
    ruleset = get_ruleset()
    revision = ruleset.revision.number if ruleset else 0
    return Health(
        ok=error is None,
        seconds=seconds,
        error=error,
        revision=revision,
        is_paused=store.is_paused,
        problems=tuple(problems.collect()),
        processes=tuple(processes),
    )


async def ahealth() -> Health:
    """`health`, without blocking the event loop."""
    return await asyncio.to_thread(health)
