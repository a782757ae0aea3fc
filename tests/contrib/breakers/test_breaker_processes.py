"""Circuit breakers of several processes share one state, through crashes, forks and outages."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
import redis

from django_ratelimit_lua.testing.server import Server
from tests.acceptance.rules.test_push import until
from tests.support.clusters import kill
from tests.support.processes import Worker, copy, migrated

AT_LAST = 1.0
"""Seconds within which all processes know a change, also on a busy machine."""
Start = Callable[..., list[Worker]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated(tmp_path_factory.mktemp("breakers") / "template.sqlite3", "breakers")


@pytest.fixture
def start(prefix: str, template: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts processes, which have made a call and receive messages."""
    database = copy(template, tmp_path / "site.sqlite3")
    with ExitStack() as stack:

        def begin(
            count: int, options: str = "failures=3, open_for='1m'", at: str = "", **settings: object
        ) -> list[Worker]:
            given = {"at": at, "annexes": ["breakers"], **settings}
            workers = [
                stack.enter_context(Worker(prefix, {"default": database}, **given))
                for _ in range(count)
            ]
            for worker in workers:
                worker("from tests.contrib.breakers.calls import *")
                assert worker(f"pay({options})") == "paid"
            for worker in workers:
                until(lambda worker=worker: worker("listener.is_listening"))
            return workers

        yield begin


def test_a_change_reaches_all_processes_within_milliseconds(start: Start) -> None:
    """One process opens the breaker. The others receive a message and make no call."""
    first, *others = start(4)
    late = []
    for number in range(5):
        name = f"payments {number}"
        for worker in (first, *others):
            assert worker(f"pay(name={name!r}, failures=3, open_for='1m')") == "paid"
        for other in others:
            other.send(f"when_state('open', {name!r})")
        opened_at = first(f"timed(\"[pay('failed', name={name!r}) for _ in range(3)]\")")
        late += [other.answer() - opened_at for other in others]
        assert [other(f"pay(name={name!r})") for other in others] == ["open"] * 3
    print(f"median {median(late) * 1000:.1f} ms, most {max(late) * 1000:.1f} ms of {len(late)}")
    assert max(late) < AT_LAST


def test_failures_of_many_processes_count_together(start: Start) -> None:
    """No process has enough calls to open the breaker alone."""
    workers = start(4, "minimum=12, open_for='1m'")
    for worker in workers:
        worker("[pay('failed') for _ in range(3)]")
    for worker in workers:
        until(lambda worker=worker: worker("state()") == "open", 3)


def test_exactly_the_configured_number_of_probes_runs_in_all_processes(start: Start) -> None:
    """Six processes make calls while the probes of a service hang. Three calls reach it."""
    workers = start(6, "failures=1, open_for='5s', probes=3")
    workers[0]("pay('failed')")
    for worker in workers:
        until(lambda worker=worker: worker("state()") == "open")
    time.sleep(5)
    for worker in workers:
        worker.send("next(filter('paid'.__eq__, (pay(seconds=2) for _ in times(1.0))), 'open')")
    results = [worker.answer() for worker in workers]
    assert (results.count("paid"), results.count("open")) == (3, 3)
    for worker in workers:
        until(lambda worker=worker: worker("state()") == "closed")


def test_a_killed_probe_does_not_keep_the_breaker_half_open(start: Start) -> None:
    """Another call is a probe after `open_for`."""
    victim, other = start(2, "failures=1, open_for='1s', probes=1")
    other("pay('failed')")
    until(lambda: victim("state()") == "open")
    time.sleep(1.1)
    victim.send("pay(seconds=60)")
    until(lambda: other("state()") == "half-open")
    assert other("pay()") == "open"
    victim.kill()
    until(lambda: other("pay()") == "paid", 3)
    assert other("state()") == "closed"


def test_calls_are_made_while_redis_is_unavailable(start: Start) -> None:
    """The breaker does not open, whatever fails. A silent server delays a call by the deadline, and
    not each call.
    """
    with Server() as server, ExitStack() as stack:
        (worker,) = start(1, "failures=2, open_for='1s'", at=server.url, RATELIMIT_TIMEOUT=0.1)
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert worker("{pay('failed') for _ in range(200)} == {'failed'}")
        assert time.monotonic() - began < 15
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: worker("pay('failed')") == "open")
        kill(server)
        until(lambda: worker("pay()") == "paid")
        stack.enter_context(Server(server.binary, *server.options, port=server.port))
        until(lambda: worker("pay('failed')") == "open")


def test_a_forked_child_reports_only_its_own_counts(start: Start) -> None:
    """The child reads the shared state as any process does."""
    first, other = start(2, "minimum=8, open_for='1m'")
    first("[pay('failed') for _ in range(4)]")
    child = """
        import os ;; child = os.fork() ;;
        child or (pay('failed'), flusher.at_exit(), os._exit(0)) ;; os.waitpid(child, 0)[1]
    """
    first("from django_ratelimit_lua.store import flusher")
    assert first(" ".join(child.split())) == 0
    time.sleep(2.5)
    assert other("state()") == "closed", "seven calls"
    other("pay('failed')")
    until(lambda: other("state()") == "open", 3)


def test_a_forced_state_applies_everywhere_within_milliseconds(start: Start) -> None:
    """It applies in processes that make calls continuously, and that were idle."""
    first, idle, *others = start(4)
    late = []
    for forced in ("open", "", "open", "closed"):
        for other in others:
            other.send("watch('pay()')")
        assert [other.answer() for other in others] == ["watching"] * len(others)
        done_at = first(f'timed("force({forced!r})")')
        late += [other.answer() - done_at for other in others]
        expected = "open" if forced == "open" else "paid"
        until(lambda expected=expected: idle("pay()") == expected, AT_LAST)
    print(f"median {median(late) * 1000:.1f} ms, most {max(late) * 1000:.1f} ms of {len(late)}")
    assert max(late) < AT_LAST


@pytest.mark.alone
def test_few_calls_pass_an_open_breaker_while_redis_loses_its_data(start: Start) -> None:
    """Redis is emptied five hundred times, while twelve threads call a failing service. In any
    `open_for`, at most `probes` calls reach it. The breaker closes when the service works again.
    """
    open_for, probes, seconds, flushes = 0.5, 3, 27.0, 500
    with Server() as server, redis.Redis(port=server.port) as direct:
        options = f"failures=1, open_for={open_for}, probes={probes}"
        workers = start(3, options, at=server.url, RATELIMIT_TIMEOUT=2.0)
        workers[0]("pay('failed')")
        for worker in workers:
            until(lambda worker=worker: worker("state()") == "open")
        for worker in workers:
            worker.send(f"keep_calling({seconds})")
        end = time.monotonic() + seconds
        emptied = 0
        while emptied < flushes:
            # After some pauses the breaker is half-open.
            pause = (0.9, 1.3) if emptied % 15 == 0 else (0.0, 0.04)
            time.sleep(random.uniform(*pause) * open_for)
            direct.flushall()
            emptied += 1
        print(f"emptied {emptied} times, {end - time.monotonic():.1f} s before the end")
        moments = sorted(moment for worker in workers for moment in worker.answer())
        print(f"{len(moments)} probes")
        assert len(moments) >= probes
        # A call begins some time after its permission, so half of the interval is left.
        crowded = [
            moment
            for moment in moments
            if sum(moment <= other < moment + open_for / 2 for other in moments) > probes
        ]
        assert crowded == []
        until(lambda: workers[0]("pay()") == "paid")
        for worker in workers:
            until(lambda worker=worker: worker("pay() and state()") == "closed")
