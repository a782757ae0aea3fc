"""Real servers with several processes, under load, while rules are edited."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.db import connection
from django.test import override_settings

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRevision, RateLimitRule
from django_ratelimit_lua.models.audit import one_change
from django_ratelimit_lua.publishing import publish, triggers
from tests.support.processes import until
from tests.support.served_site import serve

URLS = "tests.acceptance.processes.revision_urls"
OPTIONS = {"gunicorn": ["--workers=4", "--threads=2"], "uvicorn": ["--workers=2"]}
VIEWS = {"gunicorn": "/sync", "uvicorn": "/async"}
PROCESSES = {"/sync": 4, "/async": 2}
"""Of the server that has this view."""
EDITS = 25

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=list(VIEWS))
def server(request: Any, prefix: str) -> Iterator[tuple[int, str]]:
    """Run a server, and yield its port and the view that returns the revision of its decision."""
    kind = request.param
    with serve(kind, URLS, *OPTIONS[kind], RATELIMIT_CACHE_PREFIX=prefix) as served:
        yield served.port, VIEWS[kind]


def visit(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def ask(port: int, path: str) -> dict[str, int]:
    status, body = visit(port, path)
    assert status == 200, body
    found: dict[str, int] = json.loads(body)
    return found


@contextmanager
def repeated(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Repeat a function in six threads. Yield its errors. An error fails the test."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def load() -> None:
        try:
            while not ended.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(load)
        try:
            yield failures
        finally:
            ended.set()
    assert not failures


@pytest.mark.skipif(os.name == "nt", reason="gunicorn needs a POSIX system")
def test_no_request_after_a_save_is_decided_by_older_rules(
    server: tuple[int, str], direct: redis.Redis
) -> None:
    """Rules are edited repeatedly under load, and the limit of every response is that of its
    revision. Without edits, a request runs one EVALSHA and nothing else.
    """
    port, path = server
    with override_settings(RATELIMIT_TIMEOUT=10):
        rule = RateLimitRule.objects.create(name="site", path="/", key="ip", rate="1000001/m")
    saved = [RateLimitRevision.read("default")[0]]
    seen: list[tuple[int, int, int, int]] = []

    def load() -> None:
        before = saved[0]
        answer = ask(port, path)
        seen.append((before, answer["revision"], answer["limit"], answer["process"]))

    with repeated(load) as failures:
        # Until each of the server's processes has answered.
        until(
            lambda: len({process for *_, process in seen}) == PROCESSES[path] or bool(failures),
            "all of them answer",
            60,
        )
        for edit in range(EDITS):
            # Revision n has limit 1,000,000 + n.
            RateLimitRule.objects.filter(pk=rule.pk).update(rate=f"{1_000_002 + edit}/m")
            saved[0] = edit + 2
            answered_before = len(seen)
            time.sleep(0.01)
            while len(seen) == answered_before and not failures:
                time.sleep(0.001)
        at_the_end = len(seen)
        while len(seen) < at_the_end + 50 and not failures:
            time.sleep(0.01)
    assert [one for one in seen if one[1] < one[0]] == []
    assert [one for one in seen if one[2] != 1_000_000 + one[1]] == []
    assert len({revision for _, revision, _, _ in seen}) > EDITS // 4
    direct.config_resetstat()
    began = time.monotonic()
    for _ in range(40):
        ask(port, path)
    statistics = direct.info("commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] == 40
    outside = {"cmdstat_evalsha", "cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config"}
    inside = {"cmdstat_time", "cmdstat_get", "cmdstat_set"}
    # Each listener asks twice a second beside the requests, on both of its connections; the program
    # asks once.
    for command, by_requests in (("cmdstat_hget", 40), ("cmdstat_ping", 0)):
        questions = statistics.pop(command, {"calls": 0})["calls"]
        assert questions <= by_requests + 4 * (1 + 2 * (time.monotonic() - began))
    assert set(statistics) <= outside | inside


@pytest.mark.skipif(os.name == "nt", reason="gunicorn needs a POSIX system")
def test_a_block_starts_and_ends_for_all_processes_at_once(server: tuple[int, str]) -> None:
    """A client is blocked and unblocked repeatedly under load."""
    port, path = server
    RateLimitRule.objects.create(name="site", path="/", key="ip", rate=f"{10**9}/m")
    other = RateLimitOverride.objects.create(network="203.0.113.1", effect="block")
    # Four steps go round: it is not blocked, is being blocked, is blocked, is being unblocked.
    step = [0]
    seen: list[tuple[int, int]] = []

    def look() -> None:
        # On a busy machine, until a request of this step was answered.
        before, end = len(seen), time.monotonic() + 20
        time.sleep(0.05)
        while step[0] % 4 not in dict(seen[before:]) and time.monotonic() < end:
            time.sleep(0.01)

    def load() -> None:
        before = step[0]
        status, _ = visit(port, path)
        if step[0] == before:
            seen.append((before % 4, status))

    with repeated(load):
        for _ in range(12):
            step[0] += 1
            block = RateLimitOverride.objects.create(network="127.0.0.1", effect="block")
            step[0] += 1
            look()
            step[0] += 1
            block.delete()
            step[0] += 1
            look()
    assert {status for when, status in seen if when == 0} == {200}
    assert {status for when, status in seen if when == 2} == {429}
    other.delete()
    assert ask(port, path)["limit"] == 10**9


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="its readers see one state, and keep writers waiting"
)
def test_a_publication_is_consistent_if_others_commit_during_it(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of two rules is committed before each statement of another process's
    publication. The published rules belong to the published revision.
    """
    # Each process is killed after its commit.
    monkeypatch.setattr(triggers, "_publish_committed", lambda: None)
    rule = RateLimitRule.objects.create(name="site", path="/", key="ip", rate="1/m")
    other = RateLimitRule.objects.create(name="other", path="/other", key="ip", rate="1/m")
    texts: dict[bytes, int] = {}

    def edit(limit: int) -> None:
        with one_change("default"):
            for row in (rule, other):
                row.rate = f"{limit}/m"
                row.save()
        texts[RateLimitRevision.read("default").text] = limit

    def edit_beside(limit: int) -> None:
        try:
            edit(limit)
        finally:
            connection.close()

    for statement in itertools.count(1):
        numbers = itertools.count(1)

        def interfere(
            execute: Any, *arguments: Any, at: int = statement, count: Iterator[int] = numbers
        ) -> Any:
            if next(count) == at:
                thread = threading.Thread(target=edit_beside, args=(2 * at + 1,))
                thread.start()
                thread.join()
            return execute(*arguments)

        edit(2 * statement)
        with connection.execute_wrapper(interfere):
            publish()
        revision, snapshot = direct.hmget(f"{prefix}{{rules}}:1", "revision", "rules")
        rates = {each["rate"] for each in json.loads(snapshot)["rules"]}
        assert rates == {f"{texts[revision]}/m"}, statement
        if next(numbers) <= statement:
            break
    assert statement > 5
