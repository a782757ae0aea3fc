"""The metrics of breakers: their states, and what operators have forced."""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.decide import now_us
from ...extension import Metric
from ...rules import provider
from ...store import Patience, get_store
from .circuit import circuit_key
from .circuits import noted
from .rows import FORCED, BreakerRow, Forced

MAX_LABELS = 200
SECONDS = 5.0
"""Seconds for which a scrape waits for Redis at most."""
STATES = {b"closed": "closed", b"open": "open", b"half": "half_open", b"ramp": "ramp"}
"""States as their keys have them, and as labels."""


def states() -> dict[str, str]:
    """The state of each breaker that any process has noted, by name. Raises `StoreError`."""
    store, patience = get_store(background=True), Patience(SECONDS)
    found = {}
    for name in sorted(noted(patience))[:MAX_LABELS]:
        state = store.execute(b"HGET", circuit_key(name), b"state", patience=patience)
        found[name] = STATES[state or b"closed"]
    return found


def read_states() -> dict[tuple[str, ...], float]:
    """For each breaker and state, whether it has it. Raises `StoreError`."""
    return {
        (name, each): float(each == state)
        for name, state in states().items()
        for each in STATES.values()
    }


def forced() -> dict[str, Forced]:
    """What operators have forced that lasts, by the names of breakers, as it is published now.

    Raises `StoreError`.
    """
    if provider.in_force() is None:
        provider.load()
    provider.compare_with_published(loads=True)
    ruleset, now = provider.in_force(), now_us()
    rows: Mapping[str, BreakerRow] = {} if ruleset is None else ruleset.parts["breakers"]
    return {
        name: row.force.how
        for name, row in rows.items()
        if row.force is not None and row.force.lasts(now)
    }


def read_forced() -> dict[tuple[str, ...], float]:
    """For each breaker, whether it is forced open, or closed. Raises `StoreError`."""
    is_forced = forced()
    names = sorted({*states(), *is_forced})[:MAX_LABELS]
    return {(name, how): float(is_forced.get(name) == how) for name in names for how in FORCED}


METRICS = (
    Metric(
        "breaker_state",
        "1 for the state that a circuit breaker has, 0 for the others.",
        ("breaker", "state"),
        read_states,
    ),
    Metric(
        "breaker_forced",
        "1 for what an operator has forced a circuit breaker to, as long as it lasts, 0 for the "
        "others.",
        ("breaker", "how"),
        read_forced,
    ),
)
