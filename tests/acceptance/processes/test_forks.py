"""A forked child decides on its own, whatever the threads of its parent were doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging.handlers
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio.connection
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.leases import leases
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.rules.provider import reload_ruleset, reset_rules
from django_ratelimit_lua.signals import limit_exceeded
from django_ratelimit_lua.store.cluster import Cluster
from django_ratelimit_lua.testing.server import Server
from tests.support.limits import decide
from tests.support.package_objects import import_all, reachable_objects
from tests.support.redis_server import caches

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")

LOCKS = (type(threading.Lock()), type(threading.RLock()))
OF_A_PROCESS = (
    *(*LOCKS, threading.Condition, threading.Event, threading.Semaphore, threading.Barrier),
    *(threading.Thread, threading.local, asyncio.AbstractEventLoop, asyncio.Semaphore),
    *(asyncio.Lock, asyncio.Future, socket.socket),
    *(redis.connection.AbstractConnection, redis.asyncio.connection.AbstractConnection),
)
BOUND = 20
"""Seconds in which a child decides, on a machine that is busy; one that hangs never does."""


def of_a_process(*more: object) -> list[tuple[str, Any]]:
    """Return all objects of the package that must not be shared with a child."""
    return [
        (way, found) for way, found in reachable_objects(*more) if isinstance(found, OF_A_PROCESS)
    ]


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """Run a server that this test may stop."""
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.CACHES = caches(server.url)
        settings.RATELIMIT_RULES = [{"name": "site", "key": "ip", "rate": "3/h", "path": "/"}]
        settings.RATELIMIT_TIMEOUT = 5
        reset_rules()
        yield server
    leases.clear()


@pytest.fixture
def ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace locks outside the package, of Python's logging and Django's translations."""
    monkeypatch.setattr("django.utils.translation.trans_real._active", threading.local())
    logger = logging.getLogger("django_ratelimit_lua")
    monkeypatch.setattr(logger, "handlers", [logging.handlers.BufferingHandler(1000)])
    monkeypatch.setattr(logger, "propagate", False)


def refuse(sender: object, **kwargs: object) -> None:
    """A receiver of the signal."""


@ratelimit(group="forked", key="ip", rate="3/h")
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


def everything(name: str, redis_is: str = "there") -> Callable[[], None]:
    """Return a function that decides in every way, with and without Redis."""
    limiters = [
        RateLimiter("plain", "3/h"),
        RateLimiter("log", "50/h", algorithm="sliding_log"),
        RateLimiter("leased", "1000000/h", algorithm="fixed_window", lease=1000),
        RateLimiter("part", "1000/h", algorithm="fixed_window", split=True),
    ]

    def decide() -> None:
        for limiter in limiters:
            for _ in range(5):
                limiter.hit(name)
            limiter.refund(name)
            asyncio.run(limiter.ahit(name))
            with contextlib.suppress(StoreError):
                limiter.reset(name)
        for _ in range(5):
            view(RequestFactory().get("/", REMOTE_ADDR="192.0.2.1"))
        reload_ruleset()
        if redis_is == "there":
            heartbeat.beat()

    return decide


def child_of(work: Callable[[], object]) -> int:
    """Fork a child that runs the function, and exits with 0 when it returns."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return child


def ended(children: list[int]) -> list[int | None]:
    """Return the exit codes of the children, and None for a child that hangs, which is killed."""
    until = time.monotonic() + BOUND
    codes: dict[int, int | None] = dict.fromkeys(children)
    while None in codes.values() and time.monotonic() < until:
        for child in [child for child, code in codes.items() if code is None]:
            pid, status = os.waitpid(child, os.WNOHANG)
            codes[child] = os.waitstatus_to_exitcode(status) if pid else None
        time.sleep(0.005)
    for child in [child for child, code in codes.items() if code is None]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return list(codes.values())


@pytest.mark.parametrize("redis_is", ["there", "away"])
def test_children_decide_when_forked_during_decisions(
    redis_is: str, own: Server, settings: Any, ours_alone: None
) -> None:
    """Thirty children are forked while four threads decide, also in an outage."""
    limit_exceeded.connect(refuse)
    works = [everything(f"thread {number}", redis_is) for number in range(4)]
    works[0]()
    if redis_is == "away":
        settings.RATELIMIT_TIMEOUT = 0.02
        os.kill(own.pid, signal.SIGSTOP)
    over = threading.Event()
    failures: list[BaseException] = []

    def decide(work: Callable[[], None]) -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=decide, args=(work,)) for work in works]
    try:
        for thread in threads:
            thread.start()
        children = []
        for number in range(30):
            time.sleep(0.003)
            children.append(child_of(everything(f"child {number}", redis_is)))
        codes = ended(children)
    finally:
        over.set()
        os.kill(own.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
        limit_exceeded.disconnect(refuse)
    assert not failures
    assert codes == [0] * 30


def test_a_child_decides_whatever_lock_was_held_at_the_fork(own: Server, settings: Any) -> None:
    """Another thread holds every lock of the package when the child is forked."""
    limit_exceeded.connect(refuse)
    everything("x")()
    asyncio.run(sync_to_async(int)())  # Its thread is only in this process, for good.
    held, over = threading.Event(), threading.Event()
    kinds = (*LOCKS, threading.Condition)
    locks = [found for _, found in of_a_process() if isinstance(found, kinds)]
    assert len(locks) > 10

    def hold() -> None:
        taken = [lock for lock in locks if lock.acquire(timeout=1)]
        held.set()
        over.wait()
        for lock in taken:
            lock.release()

    def in_an_outage() -> None:
        settings.RATELIMIT_TIMEOUT = 0.05
        everything("y", "away")()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        codes = ended([child_of(everything("x"))])
        os.kill(own.pid, signal.SIGSTOP)
        codes += ended([child_of(in_an_outage)])
    finally:
        os.kill(own.pid, signal.SIGCONT)
        over.set()
        thread.join()
        limit_exceeded.disconnect(refuse)
    assert codes == [0, 0]


def test_a_child_forked_in_an_event_loop_opens_its_own_connections(own: Server) -> None:
    """The parent keeps its connection."""
    limiter = RateLimiter("x", "100/h")

    async def parent() -> list[tuple[str, int]]:
        found = [await limiter.ahit("x")]
        child = child_of(lambda: asyncio.run(limiter.ahit("x")))
        found += [await limiter.ahit("x")]
        assert await asyncio.to_thread(ended, [child]) == [0]
        found += [await limiter.ahit("x")]
        return [(decision.source, decision.limits[0].used) for decision in found]

    with redis.Redis.from_url(own.url) as direct:
        connected = direct.info("stats")["total_connections_received"]
        found = asyncio.run(parent())
        assert {source for source, _ in found} == {"redis"}
        assert (found[0][1], found[2][1]) == (1, 4)
        # Parent and child have each one for the loop, two for threads, and one for changes.
        assert direct.info("stats")["total_connections_received"] - connected <= 8


def test_a_child_uses_no_object_of_its_parents_process(own: Server) -> None:
    """It shares no lock, thread, timer, event loop, socket or connection."""
    import_all()
    more = [Cluster([("127.0.0.1", 1)])]
    everything("x")()
    limit = Limit("leased", "1000000/h", algorithm="fixed_window", lease=1000)
    decide(build_call([Charge(limit, digest("x"))]))
    before = of_a_process(*more)
    kinds = {type(found).__name__ for _, found in before}
    assert {"lock", "socket"} <= kinds
    reading, writing = os.pipe()

    def look() -> None:
        # They are all kept alive, so no other object has their place.
        old = {id(found) for _, found in before}
        found = "\n".join(way for way, found in of_a_process(*more) if id(found) in old)
        os.write(writing, found.encode())

    codes = ended([child_of(look)])
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read() == ""
    assert codes == [0]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's list of descriptors")
def test_a_child_closes_the_connections_of_its_parent(own: Server) -> None:
    """Otherwise the server would send messages that the child never reads."""
    everything("x")()
    listener.wait_until_listening(BOUND)
    reading, writing = os.pipe()
    with redis.Redis.from_url(own.url) as direct:
        direct.ping()  # This connection is not of the package, so children keep it.
        # At the moment of a fork, another thread may be opening a connection.
        for _ in range(10):
            child = child_of(lambda: os.write(writing, b"%d " % connections_to(own.port)))
            assert ended([child]) == [0]
    os.close(writing)
    with open(reading) as pipe:
        assert min(map(int, pipe.read().split())) == 1


def connections_to(port: int) -> int:
    """Return the number of open descriptors that are connections to the port."""
    found = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            # A socket without addresses has a name.
            found += connection.getpeername()[1:2] == (port,)
    return found
