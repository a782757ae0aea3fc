"""Load for one process of a site, with an independent count of the responses."""

from __future__ import annotations

import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import Decision, RateLimiter
from django_ratelimit_lua.middleware import RateLimitMiddleware

RULES = [
    {"name": "load.site", "path": "/", "key": "ip", "rate": "40/s"},
    {"name": "load.quiet", "path": "/quiet/", "key": "ip", "rate": "5/s", "mode": "shadow"},
]
NAMES = ("load.site", "load.quiet", "load.bucket", "load.window", "load.two")
LIMITERS = [
    RateLimiter("load.bucket", "30/s", algorithm="token_bucket"),
    RateLimiter("load.window", "20/s", algorithm="fixed_window"),
    RateLimiter("load.two", ["15/s", "100000/h"]),
]

_site = RateLimitMiddleware(lambda request: HttpResponse())


def result(decision: Decision, name: str) -> str:
    """Return the letter under which the statistics count a decision for a rule or limiter."""
    states = [state for state in decision.limits if state.name.split(":")[0] == name]
    allowed = all(state.allowed for state in states)
    if states[0].mode == "shadow":
        return "h" if allowed else "s"
    return "a" if allowed else "r"


def _visit(path: str, who: int) -> Decision:
    address = f"10.{who >> 16}.{who >> 8 & 255}.{who & 255}"
    request = RequestFactory().get(path, REMOTE_ADDR=address)
    request.user = AnonymousUser()
    response = _site(request)
    assert response.status_code == (200 if request.ratelimit else 429)
    return request.ratelimit


CALLS: list[tuple[tuple[str, ...], Callable[[int], Decision]]] = [
    *(((limiter.name,), limiter.hit) for limiter in LIMITERS),
    (("load.site",), partial(_visit, "/")),
    (("load.site", "load.quiet"), partial(_visit, "/quiet/")),
]
"""The names under which each call counts, and the call of a client."""


def load(seconds: float, seed: int, note: Any = None, threads: int = 2) -> dict[str, int]:
    """Make calls of a few busy and many other clients. `note` is called before each is counted."""
    end = time.monotonic() + seconds

    def ask(number: int) -> Counter[str]:
        dice, counts = random.Random(seed * 100 + number), Counter[str]()
        while time.monotonic() < end:
            who = dice.choice((dice.randrange(4), dice.randrange(100_000)))
            names, call = dice.choice(CALLS)
            for name in names if note else ():
                note(name)
            decision = call(who)
            counts.update([f"{name} {result(decision, name)}" for name in names])
        return counts

    with ThreadPoolExecutor(threads) as pool:
        return dict(sum(pool.map(ask, range(threads)), Counter[str]()))


def load_noting(path: str, seconds: float) -> None:
    """Make calls, and write the time of each to a file before, which outlives the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    load(seconds, 7, lambda name: os.write(file, struct.pack("d", time.time())), threads=1)


def noted(path: str) -> list[float]:
    """Return the times that `load_noting` has written."""
    with open(path, "rb") as file:
        return [moment for (moment,) in struct.iter_unpack("d", file.read())]
