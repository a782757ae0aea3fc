"""Circuit breakers of several processes share one state, through crashes, forks and outages."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

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


def test_calls_are_made_while_redis_is_unavailable(start: Start) -> None:
    """The breaker does not open, whatever fails."""
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
