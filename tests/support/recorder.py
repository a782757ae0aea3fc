"""Records the hits of one process of a history. What it has written outlives the process."""

from __future__ import annotations

import json
import os
import random
import threading
import time

from django_ratelimit_lua import Decision, RateLimiter

NAME = "history"


def numbers(decision: Decision) -> list[object]:
    """Return what a history keeps of a decision, with times in microseconds."""

    def microseconds(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1e6)

    (state,) = decision.limits
    return [
        decision.moment if decision.source == "redis" else 0,
        state.limit,
        decision.allowed,
        decision.granted,
        microseconds(decision.wait),
        state.used,
        state.remaining,
        microseconds(state.retry_after),
        microseconds(state.reset_after),
        microseconds(state.wait),
        state.counted_at,
    ]


def record(path: str, rate: str, algorithm: str, threads: int, hits: int, start: int) -> None:
    """Hit one identity in several threads, from a moment of the monotonic clock on.

    Each thread writes a line when a hit begins, and another with the response when it ends.
    """
    limiter = RateLimiter(NAME, rate, algorithm=algorithm)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process = os.getpid()

    def note(*event: object) -> None:
        os.write(file, json.dumps([process, *event]).encode() + b"\n")

    def hit(thread: int) -> None:
        dice = random.Random(start + process * 100 + thread)
        time.sleep(max(start - time.monotonic_ns(), 0) / 1e9)
        for number in range(hits // threads):
            cost = dice.choice((1, 1, 1, 2, 3))
            note(thread, number, cost, time.monotonic_ns())
            decision = limiter.hit("everyone", cost=cost)
            note(thread, number, time.monotonic_ns(), numbers(decision))

    workers = [threading.Thread(target=hit, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(file)
