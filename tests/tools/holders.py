"""`make faults`: the effect of faults of a holder or of the server on slots, in one table.

Two processes hold both slots, and a third process waits for one. The fault of the first process or
of the server ends when the third process has got a slot. The number of slots that the server counts
as held is recorded all the time. A process runs with its slot until it dies.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis

from django_ratelimit_lua.testing.server import Server
from tests.support import clusters
from tests.support.processes import Worker
from tests.tools import faults
from tests.tools.faults import Wire

SLOTS, SLOT_SECONDS, WAIT = 2, 2.0, 15
_COUNT = """local time = redis.call('TIME')
local now = string.format('(%.0f', time[1] * 1000000 + time[2])
local most = 0
for _, key in ipairs(redis.call('KEYS', '*:exports:c')) do
  most = math.max(most, redis.call('ZCOUNT', key, now, '+inf'))
end
return most"""
_BEGIN = f"""
from django_ratelimit_lua.signals import slot_lost
exports = RateLimiter("exports", "{SLOTS}", algorithm="concurrency")
lost = []
def receive(what, **more):
    lost.append(what)
slot_lost.connect(receive)
def hold():
    began = time.monotonic()
    global held
    held = exports.slot("ada", timeout={WAIT})
    held.__enter__()
    return began, time.monotonic()
"""


@dataclass
class Hurt:
    """The beginning and the end of a fault of the first holder or its server.

    `url` is the URL of Redis for the first holder.
    """

    server: Server
    url: str
    inject: Callable[[Worker], Any]
    heal: Callable[[Worker], Any] = lambda worker: None
    survives: bool = True
    """Whether the first holder runs afterwards."""


def _kill(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def _signal(number: int) -> Callable[[Worker], None]:
    return lambda worker: os.kill(worker.pid, number)


@contextmanager
def killed() -> Iterator[Hurt]:
    with Server() as server:
        yield Hurt(server, server.url, _kill, survives=False)


@contextmanager
def stopped() -> Iterator[Hurt]:
    with Server() as server:
        yield Hurt(server, server.url, _signal(signal.SIGSTOP), _signal(signal.SIGCONT))


@contextmanager
def cut_off() -> Iterator[Hurt]:
    with Server() as server, Wire(server.port) as wire:

        def cut(is_cut: bool) -> Callable[[Worker], None]:
            return lambda worker: setattr(wire, "is_cut", is_cut)

        yield Hurt(server, f"redis://127.0.0.1:{wire.port}/0", cut(True), cut(False))


@contextmanager
def emptied() -> Iterator[Hurt]:
    """Redis loses its slots, and gives one of them to the third process."""
    with Server() as server:

        def empty(worker: Worker) -> None:
            with clusters.client(server.port) as direct:
                direct.flushall()

        yield Hurt(server, server.url, empty)


@contextmanager
def stepped(hours: int) -> Iterator[Hurt]:
    with faults.stepped(hours) as hurt:
        url = hurt.caches["default"]["LOCATION"]
        server = Server(port=int(url.rpartition(":")[2].partition("/")[0]))

        def inject(worker: Worker) -> None:
            _kill(worker)
            hurt.inject()

        yield Hurt(server, url, inject, survives=False)


FAULTS: dict[str, Callable[[], Any]] = {
    "holder killed (-9)": killed,
    "holder stopped, goes on": stopped,
    "holder cut off, comes back": cut_off,
    "FLUSHALL": emptied,
    "holder killed, server's clock + 1 h": lambda: stepped(1),
    "holder killed, server's clock - 1 h": lambda: stepped(-1),
}


@dataclass
class Outcome:
    """The result of a fault."""

    held: int
    """The maximum of the slots held at the same time."""
    running: int
    """The maximum of the processes that ran with a slot at the same time."""
    seconds: float
    """The time until the third process got a slot."""
    lost: list[str] | None
    """The purposes of the slots that the first process lost. None: it was killed."""


def run(name: str) -> Outcome:
    """Run the processes during a fault."""
    with FAULTS[name]() as hurt:
        settings: dict[str, Any] = {"RATELIMIT_SLOT_SECONDS": SLOT_SECONDS, "RATELIMIT_TIMEOUT": 2}
        workers = [
            Worker("rl:", {}, at=at, **settings)
            for at in (hurt.url, hurt.server.url, hurt.server.url)
        ]
        with workers[0] as first, workers[1] as second, workers[2] as third:
            for worker in workers:
                worker(f"exec({_BEGIN!r}, globals())")
            since = [first("hold()")[1], second("hold()")[1]]
            over, most = threading.Event(), [0]

            def count() -> None:
                with clusters.client(hurt.server.port) as direct:
                    while not over.wait(0.005):
                        with suppress(redis.RedisError):
                            most[0] = max(most[0], direct.eval(_COUNT, 0))

            counting = threading.Thread(target=count)
            counting.start()
            began = time.monotonic()
            hurt.inject(first)
            hurt_at = time.monotonic()
            asked_at, got_at = third("hold()")
            seconds = max(got_at - asked_at, time.monotonic() - began)
            hurt.heal(first)
            time.sleep(SLOT_SECONDS)
            lost = first("lost") if hurt.survives else None
            over.set()
            counting.join()
    ends = [math.inf if hurt.survives else hurt_at, math.inf, math.inf]
    runs = list(zip([*since, got_at], ends, strict=True))
    running = max(sum(start <= moment < end for start, end in runs) for moment, _ in runs)
    return Outcome(most[0], running, seconds, lost)


def table(outcomes: dict[str, Outcome]) -> str:
    """Return the outcomes as a table of reStructuredText."""
    words = {None: "", ("",): "lost", (): ""}
    rows = [("Fault", "Held at most", "Really running", "Next one after, s", "Reported")]
    for name, outcome in outcomes.items():
        lost = None if outcome.lost is None else tuple(outcome.lost)
        row = (name, f"{outcome.held} of {SLOTS}", f"{outcome.running}", f"{outcome.seconds:.1f}")
        rows.append((*row, words.get(lost, str(lost))))
    return faults.aligned(rows)
