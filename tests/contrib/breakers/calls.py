"""Calls that the processes of `test_breaker_processes.py` make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen
from django_ratelimit_lua.contrib.breakers.models import RateLimitBreaker

_breakers: dict[str, CircuitBreaker] = {}


def pay(result: str = "paid", name: str = "payments", seconds: float = 0.0, **options: Any) -> str:
    """Call the service, which takes `seconds`. Return the result, or "open"."""
    if name not in _breakers:
        _breakers[name] = CircuitBreaker(name, **options)
    try:
        with _breakers[name].call():
            time.sleep(seconds)
            if result != "paid":
                raise OSError(result)
    except CircuitOpen:
        return "open"
    except OSError:
        pass
    return result


def state(name: str = "payments") -> str:
    """Return the state that this process has received last."""
    return _breakers[name].state


def when_state(wanted: str, name: str = "payments") -> float:
    """Return the moment (monotonic) at which this process has received that state."""
    end = time.monotonic() + 20
    while state(name) != wanted:
        assert time.monotonic() < end, state(name)
        time.sleep(0.0005)
    return time.monotonic()


def force(forced: str) -> None:
    """Force the state of the breaker."""
    RateLimitBreaker.objects.update_or_create(name="payments", defaults={"forced": forced})


def times(seconds: float) -> Iterator[None]:
    """Yield every ten milliseconds, until this time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        yield
