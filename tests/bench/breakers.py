"""What a closed breaker costs a call, beside the call alone and a hit; and what the failure costs
that opens it.
"""

from __future__ import annotations

import time
import timeit

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.breakers import CircuitBreaker
from django_ratelimit_lua.contrib.breakers.circuits import circuits
from django_ratelimit_lua.engine.listener import listener

CALLS, ROUNDS = 100_000, 5
AIM = 2.0


def breakers() -> None:
    """Microseconds of a call, the best of some rounds; and of a call that an open one does not
    make.
    """
    breaker = CircuitBreaker("bench", failures=1, open_for="1h")
    slow = CircuitBreaker("bench slow", slow="1s")
    limiter = RateLimiter("bench breakers", "1000000000/h")

    def plain() -> int:
        return 1

    guarded, timed = breaker(plain), slow(plain)

    def block() -> None:
        with slow.call():
            plain()

    for function in (guarded, timed, block):
        function()
    listener.wait(5)
    costs = {}
    for name, function, calls in (
        ("the call alone", plain, CALLS),
        ("closed breaker, decorator", guarded, CALLS),
        ("closed breaker that times, decorator", timed, CALLS),
        ("closed breaker, with", block, CALLS // 10),
        ("a hit", lambda: limiter.hit("ada"), CALLS // 100),
    ):
        costs[name] = min(timeit.repeat(function, number=calls, repeat=ROUNDS)) / calls * 1e6
    began = time.perf_counter()
    with breaker.call() as call:
        call.fail()
    told = (time.perf_counter() - began) * 1e6
    answered = CircuitBreaker("bench", failures=1, open_for="1h", fallback=None)(plain)
    costs["open breaker, with a fallback"] = (
        min(timeit.repeat(answered, number=CALLS // 100, repeat=ROUNDS)) / (CALLS // 100) * 1e6
    )
    for name, cost in costs.items():
        print(f"{name:40}{cost:8.2f} µs")
    print(f"{'the failure that opens it':40}{told:8.0f} µs, once")
    extra = costs["closed breaker, decorator"] - costs["the call alone"]
    print(
        f"a closed breaker: {extra:.2f} µs a call (aim: {AIM:g}), {extra / costs['a hit']:.1%} of "
        "a hit\n"
    )
    for name in ("bench", "bench slow"):
        circuits.by_name.pop(name)
