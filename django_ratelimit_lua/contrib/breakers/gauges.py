"""The metrics of breakers: their states, and the states that operators have forced."""

from __future__ import annotations

from ...engine.decide import now_us
from ...extension import Metric
from ...rules import provider
from ...store import Patience, get_store
from .circuit import circuit_key
from .circuits import noted
from .rows import FORCED

MAX_LABELS = 200
SECONDS = 5.0
"""Seconds for which a scrape waits for Redis at most."""
STATES = ("closed", "open", "half_open")


def _states() -> dict[str, str]:
    """Return the state of each breaker that any process has recorded, by name."""
    store = get_store(background=True)
    patience = Patience(SECONDS)
    found = {}
    for name in sorted(noted(patience))[:MAX_LABELS]:
        state = store.execute(b"HGET", circuit_key(name), b"state", patience=patience)
        found[name] = (state or b"closed").decode().replace("-", "_")
    return found


def _read_states() -> dict[tuple[str, ...], float]:
    states = _states().items()
    return {(name, each): float(each == state) for name, state in states for each in STATES}


def _read_forced() -> dict[tuple[str, ...], float]:
    if provider.in_force() is None:
        provider.load()
    provider.compare_with_published(loads=True)
    forced: dict[str, str] = {}
    if ruleset := provider.in_force():
        for name, row in ruleset.parts["breakers"].items():
            if row.is_forced(now_us()):
                forced[name] = row.forced
    names = sorted({*_states(), *forced})[:MAX_LABELS]
    return {(name, how): float(forced.get(name) == how) for name in names for how in FORCED}


METRICS = (
    Metric(
        "breaker_state",
        "1 for the state that a circuit breaker has, 0 for the others.",
        ("breaker", "state"),
        _read_states,
    ),
    Metric(
        "breaker_forced",
        "1 for the state that an operator has forced on a circuit breaker, 0 for the others.",
        ("breaker", "how"),
        _read_forced,
    ),
)
