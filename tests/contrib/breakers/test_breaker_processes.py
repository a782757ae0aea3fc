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
from tests.acceptance.test_push import until
from tests.clusters import client, kill
from tests.worker import Worker, copy, migrated

AT_LAST = 1.0
"""Seconds within which all know, also on a busy machine; mostly it is a few milliseconds."""
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
            count: int, call: str = "pay()", at: str = "", **settings: object
        ) -> list[Worker]:
            given = {"at": at, "annexes": ["breakers"], **settings}
            workers = [
                stack.enter_context(Worker(prefix, {"default": database}, **given))
                for _ in range(count)
            ]
            for worker in workers:
                worker("from tests.contrib.breakers.calls import *")
                assert worker(call) == "paid"
            for worker in workers:
                until(lambda worker=worker: worker("listener.is_listening"))
                assert worker(call) == "paid"
            return workers

        yield begin


def signals_of(workers: list[Worker], shared: bool = True) -> list[str]:
    """Return the signals of all processes."""
    return [
        name for worker in workers for name, *_, is_shared in worker("heard") if is_shared is shared
    ]


def test_a_breaker_opens_in_all_processes_within_milliseconds(start: Start) -> None:
    """It opens with the last failure in one process. The others receive a message and make no call
    to Redis. The signal is sent once.
    """
    workers = start(5)
    late = []
    for number in range(5):
        name = f"payments{number}"
        for worker in workers:
            assert worker(f"pay(name={name!r}, failures=3, open_for='1m')") == "paid"
            assert worker(f"state({name!r})") == "closed"
        first, *others = workers
        for other in others:
            other.send(f"when_state('open', {name!r})")
        assert [other.answer() for other in others] == ["watching"] * len(others)
        opened_at = first(f"timed(\"[pay('failed', name={name!r}) for _ in range(3)]\")")
        late += [other.answer() - opened_at for other in others]
        assert first(f"pay(name={name!r})") == "open"
    print(f"median {median(late) * 1000:.1f} ms, most {max(late) * 1000:.1f} ms of {len(late)}")
    assert max(late) < AT_LAST
    assert signals_of(workers) == ["opened"] * 5


def test_failures_of_many_processes_count_together(start: Start) -> None:
    """No process has enough failures to open the breaker alone."""
    workers = start(4)
    for _ in range(4):
        for worker in workers:
            worker("pay('failed')")
    for worker in workers:
        until(lambda worker=worker: worker("state()") != "closed")
    assert signals_of(workers).count("opened") == 1


def test_exactly_the_configured_number_of_probes_runs_in_all_processes(start: Start) -> None:
    """Eight processes make calls while the probes of a service hang. Three calls reach it."""
    options = "failures=1, open_for='0.3s', probes=3"
    workers = start(8, f"pay({options})")
    workers[0]("pay('failed')")
    for worker in workers:
        until(lambda worker=worker: worker("state()") != "closed")
    hung = "[pay('paid', seconds=1.5) for _ in range(1)][0] if time.sleep(0.02) is None else 0"
    for worker in workers:
        worker.send(f"next((came for _ in range(40) if (came := {hung}) != 'open'), 'open')")
    came = [worker.answer() for worker in workers]
    assert came.count("paid") == 3
    assert signals_of(workers).count("half_open") == 1


def test_a_killed_probe_does_not_keep_the_breaker_half_open(start: Start) -> None:
    """The slot of the killed process expires. Another probe succeeds and the breaker closes, with
    one signal for each change.
    """
    options = "failures=1, open_for='0.2s', probes=1"
    workers = start(3, f"pay({options})")
    victim, *others = workers
    for worker in workers:  # So that nobody waits for ten seconds here.
        worker(
            "from django_ratelimit_lua.contrib.breakers import rows ;; rows.MIN_PROBE_US = "
            "1_500_000"
        )
    others[0]("pay('failed')")
    until(lambda: victim("state()") == "open")
    time.sleep(0.25)
    victim.send("pay(seconds=60)")
    until(lambda: others[0]("circuits.by_name['payments'].tell() or state()") == "half-open")
    assert others[0]("pay()") == "open"
    victim.kill()
    until(lambda: others[0]("pay()") == "paid")
    until(lambda: [other("pay() and state()") for other in others] == ["closed", "closed"])
    assert sorted(signals_of(others)) == ["closed", "opened"]


def test_without_redis_each_process_opens_a_breaker_by_its_own_outcomes(start: Start) -> None:
    """A process that records failures opens its own breaker, and another process does not. When
    Redis is back, both use the shared state. No call fails because of the outage.
    """
    with Server() as server, ExitStack() as stack:
        workers = start(
            2, "pay(failures=4, open_for='0.5s', probes=1)", at=server.url, RATELIMIT_TIMEOUT=0.1
        )
        sick, well = workers
        kill(server)
        assert sick("[pay('failed') for _ in range(6)]") == ["failed"] * 4 + ["open"] * 2
        assert well("[pay() for _ in range(20)][-1]") == "paid"
        assert signals_of([sick], shared=False) == ["opened"]
        until(lambda: sick("pay()") == "paid")
        until(lambda: sick("pay() and state()") == "closed")
        assert signals_of([sick], shared=False) == ["opened", "half_open", "closed"]
        other = stack.enter_context(Server(server.binary, *server.options, port=server.port))
        until(lambda: sick("pay() and circuits.by_name['payments'].lone is None"))
        until(lambda: well("pay() and circuits.by_name['payments'].lone is None"))
        until(lambda: sick("listener.is_listening") and well("listener.is_listening"))
        assert sick("[pay('failed') for _ in range(4)][-1]") == "failed"
        until(lambda: well("state()") == "open")
        with client(other.port) as direct:
            assert direct.ping()


def test_a_silent_redis_costs_a_breaker_at_most_the_deadline(start: Start) -> None:
    """The failure that opens the breaker waits for Redis until the deadline, and then opens it in
    this process.
    """
    with Server() as server:
        (worker,) = start(1, "pay(failures=2, open_for='1m')", at=server.url, RATELIMIT_TIMEOUT=0.1)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert worker("[pay('failed') for _ in range(4)]") == [
                "failed",
                "failed",
                "open",
                "open",
            ]
            assert time.monotonic() - began < 5
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_forked_child_reports_only_its_own_counts(start: Start) -> None:
    """The parent reports its own counts. The child reads the shared state as any process does."""
    workers = start(2, "pay(failures=5, open_for='1m')")
    first, other = workers
    first("[pay('failed') for _ in range(4)]")
    child = """
        import os ;; reader, writer = os.pipe() ;; child = os.fork() ;;
        child or (os.write(writer, str([pay('failed'), circuits.flush(), state()]).encode()), os._exit(0)) ;;
        os.waitpid(child, 0) ;; os.close(writer) ;; os.read(reader, 1000).decode()
    """  # noqa: E501
    came = first(" ".join(child.split()))
    assert came in ("['failed', True, 'open']", "['failed', True, 'closed']")
    until(lambda: other("state()") == "open")
    assert (
        other("circuits.by_name['payments'].tell() or circuits.by_name['payments'].answer.era") == 1
    )
    with_numbers = [told for worker in workers for told in worker("heard")]
    assert all(failures == 5 for _, _, _, failures, _ in with_numbers)


def test_a_process_that_ends_writes_its_counts(start: Start) -> None:
    """The counts of the last second are written."""
    first, other = start(2, "pay(minimum=1000)")
    first("[pay('failed') for _ in range(7)]")
    first.__exit__()
    assert (
        other("circuits.by_name['payments'].tell() or circuits.by_name['payments'].answer.failures")
        == 7
    )


def test_a_forced_state_applies_everywhere_immediately(start: Start) -> None:
    """It applies in processes that make calls continuously, and to the next call of an idle
    process.
    """
    workers = start(4)
    first, idle, *others = workers
    late = []
    for how in ("open", "", "open", ""):
        for other in others:
            other.send("watch('pay()')")
        assert [other.answer() for other in others] == ["watching"] * len(others)
        done_at = first(f"timed(\"force('payments', {how!r}) and None\")")
        late += [other.answer() - done_at for other in others]
        idle("circuits.by_name['payments'].used_at = float('-inf')")
        time.sleep(0.1)
        assert idle("pay()") == ("open" if how else "paid")
    print(f"median {median(late) * 1000:.1f} ms, most {max(late) * 1000:.1f} ms of {len(late)}")
    assert max(late) < AT_LAST
