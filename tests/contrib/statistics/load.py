"""Load for one process of a site, with an independent count of the responses."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections import Counter
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
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
POLICY = ("open", "closed")

Counts = Counter[str]
"""By name and result, such as `load.site r`."""
_site = RateLimitMiddleware(lambda request: HttpResponse())


def result(decision: Decision, name: str, policy: str) -> str:
    """Return the letter under which the statistics count a decision for a rule or limiter."""
    states = [state for state in decision.limits if state.name.split(":")[0] == name]
    if decision.source == "fallback" and policy in POLICY:
        return "e"
    allowed = all(state.allowed for state in states)
    if states[0].mode == "shadow":
        return "h" if allowed else "s"
    return "a" if allowed else "r"


def _request(path: str, address: str) -> tuple[HttpRequest, Decision]:
    request = RequestFactory().get(path, REMOTE_ADDR=address)
    request.user = AnonymousUser()
    response = _site(request)
    decision = request.ratelimit
    assert response.status_code == (200 if decision else 429)
    return request, decision


def load(
    seconds: float, seed: int, policy: str = "local", note: Any = None, threads: int = 2
) -> dict[str, int]:
    """Make calls of every kind as a few busy and many other clients, and return their counts."""
    together: Counts = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        dice, counts = random.Random(seed * 100 + number), Counter[str]()
        while time.monotonic() < end:
            who = dice.choice((dice.randrange(4), dice.randrange(100_000)))
            turn = dice.randrange(5)
            if turn < 3:
                limiter = LIMITERS[turn]
                if note:
                    note(limiter.name)
                counts[f"{limiter.name} {result(limiter.hit(who), limiter.name, policy)}"] += 1
                continue
            names, path = (
                (["load.site"], "/") if turn == 3 else (["load.site", "load.quiet"], "/quiet/")
            )
            for name in names if note else ():
                note(name)
            _, decision = _request(path, f"10.{who >> 16}.{who >> 8 & 255}.{who & 255}")
            for name in names:
                counts[f"{name} {result(decision, name, policy)}"] += 1
        with lock:
            together.update(counts)

    workers = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return dict(together)


def load_noting(path: str, seconds: float) -> None:
    """Make calls, and write the time of each to a file before, which outlives the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    load(seconds, 7, note=lambda name: os.write(file, struct.pack("d", time.time())), threads=1)


def noted(path: str) -> list[float]:
    """Return the times that `load_noting` has written."""
    with open(path, "rb") as file:
        return [moment for (moment,) in struct.iter_unpack("d", file.read())]
