"""Statistics of several processes under load equal the decisions, through stops and crashes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics import reading, writing
from django_ratelimit_lua.contrib.statistics.reading import Span, count_dropped, read_names
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.store import Deadline, flusher
from tests.contrib.statistics.counts import last, series, top, total
from tests.contrib.statistics.load import NAMES, RULES, noted
from tests.support import clusters
from tests.support.processes import Worker, migrated, until
from tests.support.redis_server import CLOSED, caches, url

SECONDS = float(os.environ.get("RATELIMIT_TEST_LOAD_SECONDS", "2"))
PROCESSES = 4
KILLS = int(os.environ.get("RATELIMIT_TEST_KILLS", "4"))
REQUESTS = 2000 * KILLS


@pytest.fixture(scope="module")
def database(tmp_path_factory: Any) -> Path:
    return migrated(tmp_path_factory.mktemp("load") / "db.sqlite3")


def day() -> Span:
    return last(2 * 86_400, 3600)


def counted() -> dict[str, int]:
    """Return the hourly counts of all names."""
    found = {name: total(name, day()).counts for name in NAMES}
    return {f"{name} {result}": found[name][result] for name in NAMES for result in found[name]}


def counted_by_minutes() -> dict[str, int]:
    """Return the same counts, read by minutes."""
    found: Counter[str] = Counter()
    for name in NAMES:
        for point in series(name, last(49 * 3600 // 2, 60)):
            found.update({f"{name} {result}": number for result, number in point.counts.items()})
    return dict(found)


@contextmanager
def loaded(database: Path, prefix: str) -> Iterator[tuple[list[Worker], Counter[str]]]:
    """Run processes under load, and fill in the counts of all their responses when they end."""
    given = {"RATELIMIT_RULES": RULES, "RATELIMIT_TIMEOUT": 5, "RATELIMIT_DENY_CACHE_SECONDS": 1}
    answers: Counter[str] = Counter()
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(prefix, {"default": database}, **given))
            for _ in range(PROCESSES)
        ]
        for worker in workers:
            worker("from tests.contrib.statistics.load import load")
        for number, worker in enumerate(workers):
            worker.send(f"load({SECONDS}, {number})")
        yield workers, answers
        for worker in workers:
            answers.update(worker.answer())
    # They have ended as processes do: each has written what was left.


@pytest.mark.alone
def test_the_statistics_match_what_clients_received(database: Path, prefix: str) -> None:
    """Counts by hour and by minute are exact, also if a process is stopped for a moment."""
    with loaded(database, prefix) as (workers, answers):
        time.sleep(SECONDS / 4)
        os.kill(workers[0].pid, signal.SIGSTOP)
        time.sleep(SECONDS / 2)
        os.kill(workers[0].pid, signal.SIGCONT)
    assert counted() == counted_by_minutes() == dict(answers)
    assert {word.split()[1] for word in answers} == {"a", "r", "h", "s"}
    of_all = total("", day())
    enforced = [number for word, number in answers.items() if "quiet" not in word]
    assert of_all.counts.total() == sum(enforced)
    assert sum(of_all.sources.values()) == of_all.counts.total()
    assert of_all.sources["deny-cache"] > 0
    assert count_dropped() == 0


@pytest.mark.alone
def test_a_killed_process_loses_its_last_second(
    database: Path, prefix: str, tmp_path: Path
) -> None:
    """No earlier decision of four processes is lost, and none is counted twice."""
    notes: list[Path] = []
    at_risk = 0
    with ExitStack() as stack:

        def start(seconds: float) -> tuple[Worker, Path]:
            worker = stack.enter_context(
                Worker(prefix, {"default": database}, RATELIMIT_RULES=RULES, RATELIMIT_TIMEOUT=5)
            )
            notes.append(tmp_path / str(len(notes)))
            worker("from tests.contrib.statistics.load import load_noting")
            worker.send(f"load_noting({str(notes[-1])!r}, {seconds})")
            return worker, notes[-1]

        running = [start(600) for _ in range(PROCESSES)]
        for number in range(KILLS):
            worker, path = running[number % PROCESSES]
            least = REQUESTS / KILLS
            until(lambda: path.exists() and len(noted(str(path))) >= least, "there is load", 60)  # noqa: B023
            worker.kill()
            killed_at = time.time()
            # A second from the first decision to the writing, and what that takes.
            at_risk += sum(moment >= killed_at - 1.5 for moment in noted(str(path)))
            running[number % PROCESSES] = start(600 if number < KILLS - PROCESSES else 3)
        for worker, _path in running:
            worker.answer()
    # They have ended as processes do: each has written what was left.
    made = sum(len(noted(str(path))) for path in notes)
    found = sum(counted().values())
    print(f"{made} requests, {KILLS} kills: {made - found} missing of {at_risk} at risk")
    assert made > found >= made - at_risk > 0


@pytest.mark.alone
def test_a_cluster_counts_as_one_server(database: Path, prefix: str, settings: Any) -> None:
    """Each rule has its own hash slot."""
    with clusters.cluster(replicas=False) as nodes:
        settings.CACHES = nodes.cache()
        settings.RATELIMIT_TIMEOUT = 0.5
        settings.RATELIMIT_ON_STORE_ERROR = "local"
        limiters = [RateLimiter(name, "1000000/h", algorithm="fixed_window") for name in NAMES]
        for number in range(20):
            for limiter in limiters:
                assert limiter.hit(number)
        assert counted() == {f"{name} a": 20 for name in NAMES}
        owners = {name: nodes.master_of(writing.key_of(name, b"")) for name in NAMES}
        away = owners[NAMES[0]]
        os.kill(away.pid, signal.SIGSTOP)
        try:
            for number in range(20):
                for limiter in limiters:
                    assert limiter.hit(number)
            assert not is_written(Deadline(1))
            known = {name for name in NAMES if owners[name] is not away}
            due = {f"{name} a": 40 for name in known}
            until(
                lambda: not is_written(Deadline(1)) and of_these(known) == due,
                "the others are written",
                60,
            )
        finally:
            os.kill(away.pid, signal.SIGCONT)
        until(is_written, "all is written")
        assert counted() == {f"{name} a": 40 for name in NAMES}
        assert count_dropped() == 0
        stop(20)


def is_written(deadline: Deadline | None = None) -> bool:
    """Return whether all counts could be written."""
    with suppress(StoreError):
        return not recorder.flush(deadline)
    return False


def of_these(names: set[str]) -> dict[str, int]:
    """Return the counts of the names in Redis, without a flush."""
    today = int(time.time()) // writing.DAY
    found: Counter[str] = Counter()
    for name in names:
        for field, number in reading._read_hashes([writing.key_of(name, b"hours:%d" % today)])[
            0
        ].items():
            if field[0] in "ar":
                found[f"{name} {field[0]}"] += number
    return dict(found)


def test_dropped_counts_are_reported(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound, counts are dropped, and the number of dropped requests is reported."""
    monkeypatch.setattr(writing, "MAX_PENDING", 100)
    settings.CACHES = caches(CLOSED)
    settings.RATELIMIT_ON_STORE_ERROR = "open"
    for number in range(60):
        RateLimiter(f"bound.{number}", "5/h").hit("ada")
        assert not is_written()
    assert sum(map(len, recorder._writer._pending.values())) < 300
    settings.CACHES = caches(url())
    assert not recorder.flush()
    counts = sum(total(name, day()).counts.total() for name in read_names())
    assert 0 < counts < 60
    assert total("", day()).counts.total() == counts
    assert counts + count_dropped() == 60


def test_each_list_of_clients_is_stored_once(direct: Any, prefix: str) -> None:
    """The number of counted rules, and of writes, does not matter."""
    limiters = [RateLimiter(f"many.{number}", "2/h") for number in range(130)]
    for _ in range(3):
        for limiter in limiters:
            limiter.hit("ada")
        recorder.flush()
    assert all(direct.hlen(key) == 1 for key in direct.keys(f"{prefix}{{stats:*:top:*"))
    assert [one.times for one in top("many.129", "used")] == [2]


def test_lists_of_clients_from_ended_workers_are_kept() -> None:
    """This holds for any number of workers in an hour."""
    limiter = RateLimiter("workers", "4/h", algorithm="fixed_window")
    for number in range(5):
        recorder._begin()  # Another process.
        for _ in range(3):
            limiter.hit("ada")
        limiter.hit(f"who-{number}")
        flusher._flush_last()
    refused, used = top("workers"), top("workers", "used")
    assert [(one.times, one.error) for one in refused] == [(11, 0)]
    assert [(one.times, one.error) for one in used] == [(4, 0), *[(1, 0)] * 5]


def test_the_number_of_dropped_counts_is_written_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the number would be lost when the process ends."""
    monkeypatch.setattr(writing, "MAX_PENDING", -1)
    for number in range(3):
        RateLimiter("dropped", "5/h").hit(number)
    assert is_written()
    assert count_dropped() == 3
