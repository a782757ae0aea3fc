"""`make faults`: what happens to slots whose holders are hurt, or whose server is, in one table.

Two processes hold the two slots there are, and a third one waits for one. Then something is done to
the first process, or to the server; when the third has got a slot, it is undone. Meanwhile it is
counted all the time how many are held by what the server says, and each process tells since when it
runs with a slot: what it does goes on until it dies.
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
def hear(what, **more):
    lost.append(what)
slot_lost.connect(hear)
def hold():
    began = time.monotonic()
    global held
    held = exports.slot("ada", timeout={WAIT})
    held.__enter__()
    return began, time.monotonic()
"""


@dataclass
class Hurt:
    """What to do to the first holder or its server, and how to undo it. `url`: where the first
    holder finds Redis.
    """

    server: Server
    url: str
    inject: Callable[[Worker], Any]
    heal: Callable[[Worker], Any] = lambda worker: None
    survives: bool = True
    """Whether the first holder can be asked afterwards."""


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
    """Redis forgets who holds slots, and gives the third one of theirs."""
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
    """What came of one fault: the most slots that were held at once, the most processes that were
    really running with one, after how many seconds the third process got one, and what the first
    was told: the purpose of each slot that it lost (None: it is gone).
    """

    most: int
    running: int
    seconds: float
    told: list[str] | None


def run(name: str) -> Outcome:
    """Hurt the first holder, or its server."""
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
            told = first("lost") if hurt.survives else None
            over.set()
            counting.join()
    ends = [math.inf if hurt.survives else hurt_at, math.inf, math.inf]
    runs = list(zip([*since, got_at], ends, strict=True))
    running = max(sum(start <= moment < end for start, end in runs) for moment, _ in runs)
    return Outcome(most[0], running, seconds, told)


def table(outcomes: dict[str, Outcome]) -> str:
    """The outcomes as a table of reStructuredText."""
    words = {None: "", ("",): "lost", (): ""}
    rows = [("Fault", "Held at most", "Really running", "Next one after, s", "Its holder is told")]
    for name, outcome in outcomes.items():
        told = None if outcome.told is None else tuple(outcome.told)
        row = (name, f"{outcome.most} of {SLOTS}", f"{outcome.running}", f"{outcome.seconds:.1f}")
        rows.append((*row, words.get(told, str(told))))
    return faults.aligned(rows)
