"""`make faults`: what happens to an open circuit breaker when its prober is hurt, or its server is,
in one table.

Two processes share a breaker. The first one's call fails, and it is open. Then something is done to
the first process or to the server, while the second one calls all the time, and its calls succeed
when they are made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from django_ratelimit_lua.testing.server import Server
from tests import clusters, faults
from tests.worker import Worker

OPEN_SECONDS, PROBE_SECONDS, AWAY_SECONDS = 1.0, 2.0, 1.0
OPTIONS = f"failures=1, open_for={OPEN_SECONDS}, probes=1"
_BEGIN = f"""
from django_ratelimit_lua.contrib.breakers import rows as breakers
breakers.MIN_PROBE_US = {PROBE_SECONDS * 1e6:.0f}
def go_on():
    began, first, wrong = time.monotonic(), None, 0
    while True:
        try:
            came = pay()
        except Exception:
            came, wrong = "", wrong + 1
        seconds = time.monotonic() - began
        assert seconds < 60, state()
        if came == "paid" and first is None:
            first = seconds
        if came == "paid" and state() == "closed":
            return [first, seconds, wrong]
        time.sleep(0.01)
"""


@dataclass
class Hurt:
    """What to do to the first process or the server when the breaker is open (`is_probing`: when
    the first one probes), and how to undo it `AWAY_SECONDS` later. `at`: where Redis is;
    `settings`: of both processes.
    """

    at: str
    inject: Callable[[Worker], Any]
    heal: Callable[[], Any] = lambda: None
    is_probing: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@contextmanager
def nothing() -> Iterator[Hurt]:
    with Server() as server:
        yield Hurt(server.url, lambda worker: None)


@contextmanager
def killed() -> Iterator[Hurt]:
    with Server() as server:
        yield Hurt(server.url, lambda worker: worker.kill(), is_probing=True)


@contextmanager
def restarted() -> Iterator[Hurt]:
    """Redis is away, and empty when it is back."""
    with ExitStack() as stack:
        server = stack.enter_context(Server())

        def start() -> None:
            stack.enter_context(Server(server.binary, *server.options, port=server.port))

        yield Hurt(server.url, lambda worker: clusters.kill(server), start)


@contextmanager
def emptied() -> Iterator[Hurt]:
    with Server() as server:

        def empty(worker: Worker) -> None:
            with clusters.client(server.port) as direct:
                direct.flushall()

        yield Hurt(server.url, empty)


@contextmanager
def stepped(hours: int) -> Iterator[Hurt]:
    with faults.stepped(hours) as hurt:
        yield Hurt(hurt.caches["default"]["LOCATION"], lambda worker: hurt.inject())


@contextmanager
def failed_over() -> Iterator[Hurt]:
    """The replicas have heard that it is open."""
    with clusters.watched() as found:

        def fail_over(worker: Worker) -> None:
            with clusters.client(found.master().port) as master:
                master.set("last", "written")
                master.wait(2, 5000)
            clusters.kill(found.master())

        settings = {
            "CACHES": found.cache(),
            "DJANGO_REDIS_CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        }
        yield Hurt("", fail_over, settings=settings)


FAULTS: dict[str, Callable[[], Any]] = {
    "nothing": nothing,
    "prober killed (-9)": killed,
    "Redis killed, back empty": restarted,
    "FLUSHALL": emptied,
    "server's clock + 1 h": lambda: stepped(1),
    "server's clock - 1 h": lambda: stepped(-1),
    "Sentinel: master killed": failed_over,
}


@dataclass
class Outcome:
    """What came of one fault: seconds until a call was made again, and until all were; calls that
    raised something else than `CircuitOpen`; how often each change was signalled, by processes that
    live.
    """

    first: float
    closed: float
    wrong: int
    told: Counter[str]


def run(name: str) -> Outcome:
    """Hurt the prober, or the server."""
    with FAULTS[name]() as hurt:
        settings = {"RATELIMIT_TIMEOUT": 0.5, **hurt.settings}
        workers = [
            Worker("rl:", {}, at=hurt.at, annexes=["breakers"], **settings) for _ in range(2)
        ]
        with workers[0] as first, workers[1] as second:
            for worker in workers:
                worker("from tests.contrib.breakers.calls import *")
                worker(f"exec({_BEGIN!r}, globals())")
                worker(f"pay({OPTIONS})")
            first("pay('failed')")
            clusters.until(lambda: second("pay() and state()") == "open", "it is open", 20)
            if hurt.is_probing:
                first.send("[time.sleep(0.01) for _ in iter(lambda: pay(seconds=60), 'paid')]")
                told = "circuits.by_name['payments'].tell() or state()"
                clusters.until(lambda: second(told) == "half-open", "it is probed", 20)
            hurt.inject(first)
            second.send("go_on()")
            time.sleep(AWAY_SECONDS)
            hurt.heal()
            reached, closed, wrong = second.answer()
            living = [second] if hurt.is_probing else workers
            told_all = Counter(told[0] for worker in living for told in worker("heard"))
    return Outcome(reached, closed, wrong, told_all)


def table(outcomes: dict[str, Outcome]) -> str:
    """The outcomes as a table of reStructuredText."""
    rows = [("Fault", "Called again after, s", "Closed after, s", "Errors", "Signals")]
    for name, outcome in outcomes.items():
        told = ", ".join(
            word if number == 1 else f"{number} {word}"
            for word in ("opened", "half_open", "closed")
            if (number := outcome.told[word])
        )
        rows.append(
            (name, f"{outcome.first:.1f}", f"{outcome.closed:.1f}", str(outcome.wrong), told)
        )
    return faults.aligned(rows)
