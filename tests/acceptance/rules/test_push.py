"""Staying current by push: what one process changes, every other obeys within milliseconds, and
asks nobody for it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis

from django_ratelimit_lua.testing.server import Server
from tests.support import clusters
from tests.support.processes import Worker, copy, migrated

SOON, AT_LAST = 0.05, 1.0
"""Seconds after a save has returned: by when it is obeyed; and at the latest, where the machine is
busy, or does not receive the change.
"""


def until(ready: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated(tmp_path_factory.mktemp("push") / "template.sqlite3")


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    return copy(template, tmp_path / "site.sqlite3")


Start = Callable[..., list[Worker]]


@pytest.fixture
def start(prefix: str, database: Path) -> Iterator[Start]:
    """Yield a function that starts processes of a site, of which the first one edits."""
    with ExitStack() as stack:

        def begin(
            count: int = 3, first: str = "None", hears: bool = True, at: str = "", **settings: Any
        ) -> list[Worker]:
            """`first`: what each has to do before all else; `at`: the server's address."""
            options = {"RATELIMIT_DENY_CACHE_SECONDS": 60, **settings}
            workers = [
                stack.enter_context(Worker(prefix, {"default": database}, at=at, **options))
                for _ in range(count)
            ]
            for worker in workers:
                worker(first)
                worker("ask()")
            for worker in workers if hears else ():
                until(lambda worker=worker: worker("is_listening()"))
            return workers

        yield begin


def lags(
    workers: list[Worker], question: str, change: str, watch: str = "watch({!r})"
) -> list[float]:
    """Return after how many seconds each process obeyed a change that had returned."""
    editor, *others = workers
    for other in others:
        other.send(watch.format(question))
    assert [other.answer() for other in others] == ["watching"] * len(others)
    done_at = editor(f"timed({change!r})")
    return [other.answer() - done_at for other in others]


UNBLOCK = "RateLimitOverride.objects.all().delete() and None"
EXEMPT = "RateLimitOverride.objects.create(network='127.0.0.1', effect='exempt').pk"
CHANGES = [
    ("ask()", "rule(rate='0/h')", "an edit where no rule was"),
    ("ask()", "edit(10**6)", "an edit for who was just refused"),
    ("ask()", "edit(10**6 + 1)", "an edit"),
    ("ask()", "block(network='127.0.0.1')", "a block"),
    ("ask()", UNBLOCK, "an unblock"),
    ("ask()", "edit(0)", "an edit"),
    ("ask()", EXEMPT, "an exemption"),
    ("ask()", UNBLOCK, "the end of an exemption"),
    ("ask()", "RateLimitRule.objects.all().delete() and None", "the end of a rule"),
    ("limiter.hit('ada').allowed", "limiter.reset('ada')", "a reset for who was just refused"),
]
*_, RESET = [change[:2] for change in CHANGES]


def lags_of(workers: list[Worker], changes: list[tuple[str, str, str]]) -> list[float]:
    return [late for question, change, _ in changes for late in lags(workers, question, change)]


def test_every_process_obeys_a_change_within_50_milliseconds(start: Start) -> None:
    """Changes are edits, blocks and resets, also for clients with a cached refusal."""
    workers = start(4)
    found: list[float] = []
    for _ in range(3):
        for question, change, what in CHANGES:
            if question != "ask()":
                assert {worker("refused()") for worker in workers} == {"deny-cache"}
            late = lags(workers, question, change)
            assert max(late) < AT_LAST, what
            found += late
    print(f"median {median(found) * 1000:.1f} ms, most {max(found) * 1000:.1f} ms of {len(found)}")
    assert median(found) < SOON


_limits = itertools.count(10**6)


def edits(workers: list[Worker], number: int = 5) -> list[float]:
    """How late so many edits of a rule are obeyed, which there has to be."""
    return [
        late for _ in range(number) for late in lags(workers, "ask()", f"edit({next(_limits)})")
    ]


def test_requests_without_a_rule_make_no_round_trip(start: Start, direct: redis.Redis) -> None:
    """There is no rule, or only one for another path, or a block of another client."""
    workers = start()
    changes = ("rule(path='/other')", "block(network='203.0.113.9')", "None")
    for change in changes:
        workers[0](change)
        for worker in workers:
            assert worker("[ask(), time.sleep(0.1), ask()][-1]") == {}
        direct.config_resetstat()
        for worker in workers:
            assert worker("[ask() for _ in range(300)][-1]") == {}
        commands = direct.info("commandstats")
        assert "cmdstat_evalsha" not in commands
        # Each process asks twice a second beside its requests.
        assert set(commands) <= {
            "cmdstat_hget",
            "cmdstat_ping",
            "cmdstat_info",
            "cmdstat_config|resetstat",
            "cmdstat_config",
        }
        assert commands.get("cmdstat_hget", {"calls": 0})["calls"] < 100


def test_without_messages_changes_apply_within_a_second(start: Start, direct: redis.Redis) -> None:
    """The connections of the listeners are closed, and cannot be made again for a while."""
    workers = start()
    for worker in workers:
        worker("setattr(listener, '_connect', lambda channel: None)")
    assert direct.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= len(workers)
    for worker in workers[1:]:
        until(lambda worker=worker: not worker("listener.is_listening"))
    found = lags_of(workers, CHANGES[:6])
    assert max(found) < AT_LAST
    # A reset: who was refused is so from memory for a second, whatever the deny cache may do else.
    for worker in workers[1:]:
        worker("refused()")
    assert max(lags(workers, *RESET)) < AT_LAST
    for worker in workers:
        worker("delattr(listener, '_connect')")
        until(lambda worker=worker: worker("is_listening()"))
    workers[0]("edit(1000)")
    assert median(edits(workers)) < SOON


def test_a_resumed_process_repeats_no_outdated_state(start: Start) -> None:
    """The process was stopped, or its threads do not run, as under uWSGI."""
    workers = start(2)
    editor, other = workers
    assert [worker("refused()") for worker in workers] == ["deny-cache"] * 2
    process = other("os.getpid()")
    os.kill(process, signal.SIGSTOP)
    try:
        editor("limiter.reset('ada')")
        other.send("limiter.hit('ada').allowed")
        time.sleep(AT_LAST)
    finally:
        os.kill(process, signal.SIGCONT)
    assert other.answer() is True
    other("sys.setswitchinterval(3600)")
    found = []
    for _ in range(3):
        assert other("refused()") == "deny-cache"
        found += lags(workers, *RESET, watch="watch({!r}, pauses=False)")
    assert median(found) < SOON


def test_cached_decisions_are_not_used_while_the_listener_waits_for_its_turn(start: Start) -> None:
    """Threads of requests keep the listener from running."""
    workers = start(2)
    workers[1]("keep_waiting()")
    found = []
    for number in range(3):
        for change in (
            "rule(options={'algorithm': 'token_bucket', 'lease': 10_000})",
            "edit(0)",
            f"edit({number} + 10**6)",
            f"edit({number} + 10**7)",
        ):
            found += lags(workers, "ask()", change)
        workers[0]("RateLimitRule.objects.all().delete() and None")
        until(lambda: workers[1]("ask()") == {})
    assert median(found) < SOON


def test_an_idle_process_loads_new_rules_at_a_random_moment(start: Start) -> None:
    """All processes receive the message at once, and load the rules at different moments."""
    workers = start(
        first="setattr(sys.modules['django_ratelimit_lua.engine.listener'], 'SPREAD_SECONDS', 1e9)"
    )
    revision, saved = (
        "provider.loaded_ruleset().revision.number",
        "RateLimitRevision.read('default').revision",
    )
    before = workers[1](revision)
    for limit in (10, 11):  # The second time it knows already that there are others.
        workers[0](f"edit({limit}) or rule(rate='{limit}/h')")
        for worker in workers[1:]:
            until(lambda worker=worker: worker("freshness._proof is None"))
            assert worker(revision) == before
    for worker in workers[1:]:
        assert worker("ask()") == {"site": 11}
        assert worker(revision) == workers[0](saved)
        until(lambda worker=worker: worker("listener._load_at == float('inf')"))
        worker(
            "setattr(sys.modules['django_ratelimit_lua.engine.listener'], 'SPREAD_SECONDS', 0.5)"
        )
    workers[0]("edit(12)")
    for worker in workers[1:]:
        until(lambda worker=worker: worker(revision) == workers[0](saved))


def test_sites_in_different_databases_of_a_server_have_separate_channels(
    start: Start, prefix: str
) -> None:
    """Channels are shared by all databases, so the name contains the number of the database."""
    with Server() as server, redis.Redis.from_url(server.url) as direct:
        sites = [start(2, at=server.url.replace("/0", f"/{number}")) for number in range(2)]
        assert {*direct.pubsub_channels(f"{prefix}*")} == {
            f"{prefix}changes:{number}".encode() for number in range(2)
        }
        for workers in sites:
            for worker in workers:
                assert worker("refused()") == "deny-cache"
        assert lags(sites[0], *RESET)
        for worker in sites[1]:
            assert worker("limiter.hit('ada').source") == "deny-cache"
        assert lags(sites[1], *RESET)


def test_without_threads_changes_apply_within_a_second(start: Start) -> None:
    """Requests compare the rules themselves, once a second."""
    refuse = 'def refuse(thread): raise RuntimeError("can\'t start new thread")'
    workers = start(
        first=f"exec({refuse!r}, globals()) ;; threading.Thread.start = refuse", hears=False
    )
    assert workers[1]("listener.task.is_running") is False
    found = lags_of(workers, CHANGES[:6])
    assert max(found) < AT_LAST
    assert workers[1]("[count for count in [asked(100)]][0]") <= 2


@pytest.mark.parametrize("right", ["resetchannels", "-publish"])
def test_a_redis_user_without_channels_polls_once_a_second(right: str, start: Start) -> None:
    """The Redis user may use no channel, or may only subscribe."""
    with Server() as server, redis.Redis.from_url(server.url) as direct:
        direct.execute_command(
            "ACL", "SETUSER", "mute", "on", ">password", "~*", "&*", "+@all", right
        )
        workers = start(at=server.url.replace("//", "//mute:password@"), hears=False)
        refused = ("NoPermission", "NOPERM")
        until(lambda: any(word in workers[1]("listener.error") for word in refused))
        found = lags_of(workers, CHANGES[:6])
        assert max(found) < AT_LAST
        assert {worker("refused()") for worker in workers} == {"deny-cache"}
        assert max(lags(workers, *RESET)) < AT_LAST


def test_the_listener_reconnects_after_redis_restarts(start: Start) -> None:
    """Changes during the restart apply, and later changes are pushed."""
    with Server() as server:
        workers = start(at=server.url)
        workers[0]("rule(rate='5000/h')")
        assert [worker("ask()") for worker in workers] == [{"site": 5000}] * len(workers)
        server.stop()
        until(lambda: not workers[1]("listener.is_listening"))
        server.start()
        for worker in workers:
            until(lambda worker=worker: worker("is_listening()"))
        until(lambda: workers[1]("ask()") == {"site": 5000})
        assert median(edits(workers)) < SOON


@pytest.mark.parametrize(("path", "met", "asks"), [("/", {"site": 5000}, 100), ("/other", {}, 5)])
def test_missing_rules_are_not_requested_by_every_request(
    path: str, met: Any, asks: int, start: Start, direct: redis.Redis, database: Path, prefix: str
) -> None:
    """Redis is emptied while the database is unavailable."""
    workers = start(2)
    workers[0](f"rule(rate='5000/h', path={path!r}) ;; block(network='203.0.113.1')")
    question = "[ask('203.0.113.1'), *[ask() for _ in range(100)]][::100]"
    for worker in workers:
        assert worker(question) == ["refused", met]
    away = database.with_suffix(".away")
    database.rename(away)
    database.mkdir()  # No database can be opened there.
    direct.delete(*direct.keys(f"{prefix}*"))
    for worker in workers:
        worker("ask()")
        until(
            lambda worker=worker: worker(
                "provider.loaded_ruleset().published.number == 0 and is_listening()"
            )
        )
    direct.config_resetstat()
    for worker in workers:
        assert worker(question) == ["refused", met]
    commands = direct.info("commandstats")
    decided, read = (
        commands.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in ("evalsha", "hget")
    )
    assert decided <= len(workers) * (asks + 1)
    assert (
        read < decided + 100
    )  # The program reads the revision once, and each process twice a second.
    database.rmdir()
    away.rename(database)
    workers[0]("rule('new', rate='6000/h')")
    for worker in workers:
        if not met:  # None of these calls compares: the process receives the change.
            until(lambda worker=worker: worker("ask()") == {"new": 6000})
        assert worker(question) == ["refused", {**met, "new": 6000}]


def test_no_request_waits_while_the_listener_waits_for_the_database(
    start: Start, direct: redis.Redis, database: Path, prefix: str
) -> None:
    """Redis is emptied, and the database is slow."""
    slow = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database)}
    slow |= {"OPTIONS": {"timeout": 20}}
    (worker,) = start(1, DATABASES={"default": slow}, RATELIMIT_TIMEOUT=0.5)
    assert worker("rule(rate='5000/h') ;; ask()") == {"site": 5000}
    with sqlite3.connect(database, isolation_level=None) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        direct.delete(*direct.keys(f"{prefix}*"))
        assert worker("longest_load(4)") < 1
        assert worker("triggers.restoring.is_busy")
        writer.execute("ROLLBACK")
    until(
        lambda: (
            worker("ask()") == {"site": 5000}
            and worker("provider.loaded_ruleset().published.number") > 0
        )
    )


def test_forged_messages_only_cause_a_comparison(
    start: Start, direct: redis.Redis, prefix: str
) -> None:
    """Any number of forged messages lifts no limit, and not each of them causes a call."""
    workers = start()
    workers[0]("rule(rate='0/h')")
    until(lambda: workers[1]("ask()") == "refused")
    messages = [b"", b"rules", b"rules 0", b"rules 99-01234567-89abcdef", b"new word"]
    messages += [b"reset", b"reset \xff \xfe", b"\x00" * 1000]
    direct.config_resetstat()
    began = time.monotonic()
    for message in messages * 300:
        direct.publish(f"{prefix}changes:0", message)
    assert workers[1]("ask()") == "refused"
    seconds = time.monotonic() - began
    assert (
        direct.info("commandstats")["cmdstat_hget"]["calls"]
        < len(workers) * (seconds + 1) * 100 + 20
    )
    direct.publish(
        f"{prefix}changes:0", b"x" * 2**21
    )  # Longer than any message: the connection is made anew.
    for worker in workers:
        until(lambda worker=worker: worker("is_listening()"))
    assert median(edits(workers)) < SOON


def test_in_a_cluster_messages_reach_processes_on_every_node(start: Start) -> None:
    """A process may listen on any node. The node that has the rules may fail."""
    with clusters.cluster() as cluster:
        workers = start(CACHES=cluster.cache())
        workers[0]("rule(rate='5000/h')")
        found = lags_of(workers, CHANGES[1:-1])
        assert median(found) < SOON
        assert max(found) < AT_LAST


def test_the_listener_follows_the_master_that_sentinels_name(start: Start) -> None:
    """The master fails, and the listeners connect to the new one."""
    with clusters.watched() as watched:
        workers = start(CACHES=watched.cache(), RATELIMIT_TIMEOUT=1)
        workers[0]("rule(rate='5000/h')")
        assert median(edits(workers, 3)) < SOON
        old = watched.master()
        clusters.kill(old)
        until(lambda: watched.master() is not old, 60)
        for worker in workers:
            until(lambda worker=worker: worker("is_listening()"), 60)
        until(lambda: workers[0]("publish()") >= 0, 60)
        assert median(edits(workers)) < SOON
