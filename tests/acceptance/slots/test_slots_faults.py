"""Slots under faults: Redis never grants more than the limit, and no slot is held forever."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_ratelimit_lua import Ratelimited, RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.slots import held_slots
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.signals import slot_lost
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.testing.server import Server
from tests.support import clusters
from tests.support.limits import decide
from tests.support.processes import Worker, until
from tests.support.redis_server import CLOSED, caches

SLOT_SECONDS = 1.0
BUSY = 20.0
"""Seconds that a busy machine may take for anything."""
HOLD = "held = exports.slot('ada', what='/exports/') ;; held.__enter__() ;; None"
BEGIN = (
    "exports = RateLimiter('exports', '2', algorithm='concurrency')"
    " ;; from django_ratelimit_lua.signals import slot_lost"
    " ;; lost = [] ;; slot_lost.connect(lambda **more: lost.append(more['what']), weak=False) "
    ";; None"
)


@pytest.fixture(autouse=True)
def short(settings: Any) -> None:
    """Set the lifetime of slots to a second."""
    settings.RATELIMIT_SLOT_SECONDS = SLOT_SECONDS


@pytest.fixture
def limiter() -> RateLimiter:
    """Return a limiter with two slots per client."""
    return RateLimiter("exports", "2", algorithm="concurrency")


@pytest.fixture
def lost() -> Iterator[list[dict[str, Any]]]:
    """Return the arguments of the signal `slot_lost` in this process."""
    told: list[dict[str, Any]] = []

    def hear(**arguments: Any) -> None:
        told.append(arguments)

    slot_lost.connect(hear)
    yield told
    slot_lost.disconnect(hear)


@contextlib.contextmanager
def worker(prefix: str, at: str = "") -> Iterator[Worker]:
    """Run a process that holds a slot of Ada's."""
    with Worker(prefix, {}, at=at, RATELIMIT_SLOT_SECONDS=SLOT_SECONDS) as process:
        process(BEGIN)
        process(HOLD)
        yield process


def used(limiter: RateLimiter, identity: str = "ada") -> int:
    return limiter.peek(identity).limits[0].used


def ends(ready: Callable[[], Any], what: str) -> None:
    until(lambda: bool(ready()), what, BUSY)


def test_a_slot_is_renewed_beyond_its_lifetime(limiter: RateLimiter, lost: list[Any]) -> None:
    """It is held as long as its process runs."""
    with limiter.slot("ada"):
        end = time.monotonic() + 2.5 * SLOT_SECONDS
        while time.monotonic() < end:
            assert used(limiter) == 1
            time.sleep(0.05)
    assert used(limiter) == 0
    assert lost == []


def test_a_process_that_ends_releases_its_slots(
    prefix: str, limiter: RateLimiter, settings: Any
) -> None:
    """They are released at the end of the process, before they expire."""
    settings.RATELIMIT_SLOT_SECONDS = 3600
    with Worker(prefix, {}, RATELIMIT_SLOT_SECONDS=3600) as process:
        process(BEGIN)
        process(HOLD)
        assert used(limiter) == 1
    assert used(limiter) == 0


def test_a_resumed_process_detects_its_lost_slots(prefix: str, limiter: RateLimiter) -> None:
    """Other clients may have taken the slots in the meantime."""
    with worker(prefix) as process:
        pid = process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            ends(lambda: used(limiter) == 0, "the slot of a stopped process ends")
            with limiter.slot("ada"), limiter.slot("ada"):
                os.kill(pid, signal.SIGCONT)
                ends(lambda: process("lost") == ["/exports/"], "it is told")
                assert used(limiter) == 2
                found = process("[line for line in log_lines if 'ended' in line][0][:28]")
                assert found == "A slot of 'exports' ended af"
            process("held.__exit__()")
            assert used(limiter) == 0
            process(HOLD)
            os.kill(pid, signal.SIGSTOP)
            ends(lambda: used(limiter) == 0, "the slot of a stopped process ends")
        finally:
            os.kill(pid, signal.SIGCONT)
        ends(lambda: process("lost") == ["/exports/"] * 2, "it is told")
        assert used(limiter) == 0
        process("held.__exit__()")


def test_a_child_process_does_not_hold_its_parents_slots(limiter: RateLimiter) -> None:
    """It neither renews nor releases the slots of its parent, and has its own slots."""
    slot = limiter.slot("ada")
    with slot as held:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                assert held_slots.all() == []
                held.release()
                slot.__exit__()
                assert used(limiter) == 1
                with limiter.slot("ada"):
                    assert used(limiter) == 2
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert used(limiter) == 1
    assert used(limiter) == 0


def test_a_garbage_collected_slot_is_released_without_waiting_for_a_lock(
    limiter: RateLimiter,
) -> None:
    """A slot may be collected in a thread that holds the lock of a release."""

    def work() -> Iterator[None]:
        with limiter.slot("ada"):
            yield

    cycle = [work()]
    next(cycle[0])
    cycle.append(cycle)
    assert used(limiter) == 1
    done = threading.Event()

    def collect() -> None:
        with held_slots._lock:
            gc.collect()
        done.set()

    del cycle
    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(BUSY)
    ends(lambda: used(limiter) == 0, "it is released")


def test_the_holders_of_slots_that_redis_has_lost_are_notified(
    limiter: RateLimiter, lost: list[dict[str, Any]], settings: Any
) -> None:
    """Each holder gets the signal once, within a renewal interval."""
    with Server() as server, redis.Redis(port=server.port) as direct:
        settings.CACHES = caches(server.url)
        first, second = limiter.slot("ada", what="first"), limiter.slot("ada", what="second")
        with first as one, second as two:
            direct.flushall()
            with limiter.slot("ada"):
                ends(lambda: len(lost) == 2, "both are told")
                assert used(limiter) == 1
                assert one.is_lost
                assert two.is_lost
                assert {told["what"] for told in lost} == {"first", "second"}
        assert used(limiter) == 0


def test_a_slow_signal_receiver_delays_no_renewal(limiter: RateLimiter) -> None:
    """While a receiver handles the signal, other slots are still renewed."""
    begun, may_go = threading.Event(), threading.Event()

    def hear(**arguments: Any) -> None:
        begun.set()
        may_go.wait(BUSY)

    slot_lost.connect(hear)
    try:
        with limiter.slot("ada"), limiter.slot("bob"):
            (ada,) = [held for held in held_slots.all() if held.charge.digest == digest("ada")]
            get_store().execute(b"DEL", ada.redis_key)
            assert begun.wait(BUSY)
            since = time.monotonic()
            while time.monotonic() < since + 2 * SLOT_SECONDS:
                assert used(limiter, "bob") == 1
                time.sleep(0.1)
    finally:
        may_go.set()
        slot_lost.disconnect(hear)


def test_slots_of_many_identities_are_renewed_on_all_nodes_of_a_cluster(
    limiter: RateLimiter, settings: Any, lost: list[Any]
) -> None:
    """Each slot is renewed and released on the node of its key."""
    names = [f"user {number}" for number in range(12)]
    with clusters.cluster(replicas=False) as found:
        settings.RATELIMIT_TIMEOUT = 5
        settings.CACHES = found.cache()
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(limiter.slot(name))
            end = time.monotonic() + 2 * SLOT_SECONDS
            while time.monotonic() < end:
                time.sleep(0.1)
            assert [used(limiter, name) for name in names] == [1] * len(names)
            get_store().execute(b"DEL", held_slots.all()[0].redis_key)
            ends(lambda: len(lost) == 1, "its loss is reported once")
        assert [used(limiter, name) for name in names] == [0] * len(names)


def test_in_a_cluster_a_refusal_leaves_no_slot_behind(settings: Any) -> None:
    """The identities are on several nodes."""
    with clusters.cluster(replicas=False) as found:
        settings.RATELIMIT_TIMEOUT = 5
        settings.CACHES = found.cache()
        limits = [Limit(f"slots{number}", "1", algorithm="concurrency") for number in range(6)]
        charges = [Charge(limit, digest(("user", limit.name))) for limit in limits]
        blocked = decide(build_call(charges[3:4]))
        assert blocked.allowed
        refused = decide(build_call(charges))
        assert [state.allowed for state in refused.limits] == [True, True, True, False, True, True]
        assert [state.counted_at for state in refused.limits] == [0] * 6
        shown = [decide(build_call([charge], "peek")).limits[0].used for charge in charges]
        assert shown == [0, 0, 0, 1, 0, 0]


def test_without_redis_a_process_grants_its_part_of_slots(
    limiter: RateLimiter, settings: Any, lost: list[Any]
) -> None:
    """With the policy "local", slots that are already held count."""
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    with Server() as server, redis.Redis(port=server.port) as direct:
        settings.CACHES = caches(server.url)
        with limiter.slot("ada", what="before"):
            direct.replicaof("127.0.0.1", 1)  # A replica refuses to write.
            with limiter.slot("ada", what="meanwhile") as meanwhile:
                assert meanwhile.decision.source == "fallback"
                with pytest.raises(Ratelimited) as raised, limiter.slot("ada"):
                    pass
                assert raised.value.decision.source == "fallback"
                with limiter.slot("bob"):
                    assert len(held_slots.all()) == 3
                direct.replicaof("NO", "ONE")
                time.sleep(1.5 * SLOT_SECONDS)
                assert used(limiter) == 1
                assert not meanwhile.is_lost
                assert len(held_slots.all()) == 2
                meanwhile.release()
                assert used(limiter) == 1
        assert used(limiter) == 0
    assert lost == []


@pytest.mark.parametrize("policy", ["open", "closed"])
def test_without_redis_the_policy_decides_about_slots(
    policy: str, limiter: RateLimiter, settings: Any
) -> None:
    """With the policy "open", all calls run without slots."""
    settings.RATELIMIT_ON_STORE_ERROR = policy
    settings.CACHES = caches(CLOSED)
    if policy == "open":
        with limiter.slot("ada"), limiter.slot("ada"), limiter.slot("ada"):
            assert held_slots.all() == []
        return
    began = time.monotonic()
    with pytest.raises(Ratelimited), limiter.slot("ada", timeout=0.3):
        pass
    assert time.monotonic() - began >= 0.3


def test_a_slot_that_was_forgotten_ends(limiter: RateLimiter, lost: list[Any]) -> None:
    """A slot whose holder was garbage-collected is renewed no longer."""
    limiter.slot("ada").__enter__()
    gc.collect()
    assert held_slots.all() == []
    ends(lambda: used(limiter) == 0, "the slot ends")
    assert lost == []


WORK = """
import redis
from django_ratelimit_lua import Ratelimited
from tests.support.redis_server import url
exports = RateLimiter("exports", "5", algorithm="concurrency")
events, over = redis.Redis.from_url(url()), threading.Event()
def work(number):
    while not over.is_set():
        with suppress(Ratelimited), exports.slot("ada", timeout=5):
            began = time.monotonic()
            events.rpush(f"{PREFIX}events", f"{os.getpid()} {number} began {began}")
            time.sleep(0.02 * number)
            events.rpush(f"{PREFIX}events", f"{os.getpid()} {number} ended {time.monotonic()}")
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
"""


def test_never_more_slots_are_held_than_the_limit_while_processes_are_killed(
    prefix: str, direct: redis.Redis
) -> None:
    """Eight processes of four threads share five slots."""
    limiter = RateLimiter("exports", "5", algorithm="concurrency")
    killed: dict[int, float] = {}

    def start() -> Worker:
        process = stack.enter_context(Worker(prefix, {}, RATELIMIT_SLOT_SECONDS=2.0))
        process(f"import os ;; PREFIX = {prefix!r} ;; exec({WORK!r}, globals())")
        return process

    with contextlib.ExitStack() as stack:
        processes = [start() for _ in range(8)]
        for number in range(20):
            time.sleep(0.3)
            pid = processes[number % 8].pid
            os.kill(pid, signal.SIGKILL)
            killed[pid] = time.monotonic()
            processes[number % 8] = start()
        for process in processes:
            process("over.set() ;; [thread.join() for thread in threads] ;; None")
    runs: dict[tuple[int, int], float] = {}
    steps: list[tuple[float, int]] = []
    for event in direct.lrange(f"{prefix}events", 0, -1):
        pid, number, kind, moment = event.decode().split()
        steps.append((float(moment), 1 if kind == "began" else -1))
        if kind == "began":
            runs[int(pid), int(number)] = float(moment)
        else:
            del runs[int(pid), int(number)]
    steps += [(killed[pid], -1) for pid, _ in runs]
    running = list(itertools.accumulate(step for _, step in sorted(steps)))
    assert (max(running), running[-1]) == (5, 0)
    assert len(running) > 200
    ends(lambda: used(limiter) == 0, "no slot is held")
