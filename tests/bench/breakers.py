"""The cost of a call through a closed or open breaker, compared with the call alone and a hit."""

from __future__ import annotations

import timeit

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.breakers import CircuitBreaker
from django_ratelimit_lua.engine.listener import listener

CALLS, ROUNDS = 100_000, 5
AIM = 2.0


def breakers() -> None:
    """Print the microseconds of a call, the best of some rounds."""
    closed = CircuitBreaker("bench", slow="1s")
    stopped = CircuitBreaker("bench open", failures=1, open_for="1h", fallback=None)
    limiter = RateLimiter("bench breakers", "1000000000/h")

    def plain() -> int:
        return 1

    @stopped
    def fail() -> None:
        raise OSError

    guarded = closed(plain)

    def block() -> None:
        with closed.call():
            plain()

    guarded()
    try:
        fail()
    except OSError:
        listener.wait_until_listening(5)
    costs = {}
    for name, function, calls in (
        ("the call alone", plain, CALLS),
        ("closed breaker, decorator", guarded, CALLS),
        ("closed breaker, with", block, CALLS),
        ("open breaker, with a fallback", fail, CALLS),
        ("a hit", lambda: limiter.hit("ada"), CALLS // 100),
    ):
        costs[name] = min(timeit.repeat(function, number=calls, repeat=ROUNDS)) / calls * 1e6
        print(f"{name:40}{costs[name]:8.2f} µs")
    extra = costs["closed breaker, decorator"] - costs["the call alone"]
    print(
        f"a closed breaker: {extra:.2f} µs a call (aim: {AIM:g}), {extra / costs['a hit']:.1%} of "
        "a hit\n"
    )
