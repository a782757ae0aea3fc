"""What the processes of `test_breaker_processes.py` do: `from tests.contrib.breakers.calls import
*` in a `Worker`.
"""

from __future__ import annotations

import json
import time
from typing import Any

from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen, signals
from django_ratelimit_lua.contrib.breakers.circuits import circuits  # noqa: F401
from django_ratelimit_lua.contrib.breakers.operations import force  # noqa: F401

heard: list[Any] = []


def note(
    sender: Any, signal: Any, breaker: str, calls: int, failures: int, shared: bool, **told: Any
) -> None:
    """Keep what signals of breakers tell."""
    name = next(
        name
        for name in ("opened", "half_open", "closed")
        if getattr(signals, f"circuit_{name}") is signal
    )
    heard.append([name, breaker, calls, failures, shared])


for _signal in (signals.circuit_opened, signals.circuit_half_open, signals.circuit_closed):
    _signal.connect(note)
_breakers: dict[str, CircuitBreaker] = {}


def pay(outcome: str = "paid", name: str = "payments", seconds: float = 0.0, **options: Any) -> str:
    """Ask the payment service through a breaker: what it says, or "open"."""
    given = {"minimum": 10, "open_for": "1s", "probes": 3, **options}
    breaker = (
        _breakers.setdefault(name, CircuitBreaker(name, **given))
        if name not in _breakers
        else _breakers[name]
    )
    try:
        with breaker.call():
            time.sleep(seconds)
            if outcome != "paid":
                raise OSError(outcome)
    except CircuitOpen:
        return "open"
    except OSError:
        pass
    return outcome


def state(name: str = "payments") -> str:
    """What this process knows of the breaker."""
    return _breakers[name].state


def when_state(wanted: str, name: str = "payments", seconds: float = 20.0) -> float:
    """The moment (monotonic) at which this process knows of that state; nothing is asked for it."""
    print(json.dumps([True, "watching"]), flush=True)
    end = time.monotonic() + seconds
    while _breakers[name].state != wanted:
        assert time.monotonic() < end, _breakers[name].state
        time.sleep(0.0005)
    return time.monotonic()
