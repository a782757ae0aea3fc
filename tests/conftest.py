"""One real server for the whole session, one prefix for each test."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from coverage import Coverage
from django.apps import apps
from django.core.management.commands import flush
from django.core.management.sql import emit_post_migrate_signal
from django.utils import translation
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_ratelimit_lua.conf import values
from django_ratelimit_lua.engine.bans import ban_log
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.local import local_counts
from django_ratelimit_lua.engine.slots import held_slots
from django_ratelimit_lua.extension import is_installed
from django_ratelimit_lua.process.tasks import Task, stop
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.views.call_sites import known_call_sites
from django_ratelimit_lua.web.reference import refusal_log
from tests.annexes import annexes_of, path_of
from tests.examples import SHARE
from tests.support.processes import fork_servers
from tests.support.redis_server import server, url

_serial = itertools.count()
STOP_SECONDS = 20
"""More than any step of a task takes."""
BY_THEMSELVES = ("listener", "publishing")
"""The tasks that call Redis on their own."""
# On a busy machine an example takes long.
hypothesis_settings.register_profile(
    "busy",
    parent=hypothesis_settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("busy")


def _keep_forks_apart_from_coverage() -> None:
    """Hold the lock of coverage during a fork.

    Coverage does not create a new lock after a fork, so a child would wait forever if another
    thread held it.
    """
    collector = getattr(Coverage.current(), "_collector", None)
    if getattr(collector, "data_lock", None) is not None:
        lock = collector.data_lock = threading.RLock()
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


_keep_forks_apart_from_coverage()

# A shell starts its background jobs with SIGINT ignored, and the processes that tests start would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Let coverage measure the workers of pytest-xdist, but no process that a test starts."""
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="0/1", help="run the tests K, K+N, K+2N … of each file: K/N")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse paths that need different annexes, because a session has one Django."""
    if len({annexes_of(path_of(word)) for word in config.args}) > 1:
        raise pytest.UsageError(
            "these tests need different annexes: run them with `python -m tests`"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of tests that need other annexes."""
    return annexes_of(collection_path) != annexes_of(path_of(config.args[0])) or None


def _draws_examples(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _select_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every N-th test of each file, and each test with examples if all are drawn."""
    offset, count = map(int, config.getoption("part").split("/"))
    numbers: defaultdict[Path, itertools.count[int]] = defaultdict(itertools.count)
    sizes = Counter(item.path for item in items)
    chosen, left_out = [], []
    for item in items:
        step = min(count, sizes[item.path])  # A small file runs at least one test.
        if item.path.suffix == ".rst":  # The examples of a page build on each other.
            step = 1
        is_chosen = next(numbers[item.path]) % step == offset % step
        if SHARE >= 1 and _draws_examples(item):
            is_chosen = True
        if count > 1 and item.get_closest_marker("whole_file"):
            is_chosen = False
        (chosen if is_chosen else left_out).append(item)
    items[:] = chosen
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first, and files with tests that run alone last.

    So no worker waits for long. In such a file, these tests come last.
    """

    def is_alone(item: pytest.Item) -> bool:
        return item.get_closest_marker("alone") is not None

    _select_part(config, items)
    alone = {item.path for item in items if is_alone(item)}
    places = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(
        key=lambda item: (
            item.path in alone,
            not item.get_closest_marker("faults"),
            places[item.path],
            is_alone(item),
        )
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `alone` while no worker of this or another run executes a test."""
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
    finally:
        fcntl.flock(
            folder, fcntl.LOCK_UN
        )  # Closing alone would leave it to children that were forked.
        os.close(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Coverage does not follow what measures time, as it makes Python dear and leaves C cheap; nor
    examples made up by dice: what they reach, the next ones may not, and to follow them takes as
    long as to run them.
    """
    tracer = sys.gettrace()
    if item.get_closest_marker("alone") or _draws_examples(item):
        sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)


def pytest_unconfigure() -> None:
    server.stop()
    for fork_server in fork_servers:
        fork_server.close()


def pytest_report_header() -> str:
    with redis.Redis.from_url(url()) as connection:
        info = connection.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return f"server: {name} {info.get('valkey_version', info['redis_version'])}"


@pytest.fixture(scope="session", autouse=True)
def _known_kinds() -> Iterator[None]:
    """After a test with transactions of its own, Django empties all tables, and looks for all
    models and permissions anew, which are always the same: that took longer than most tests.
    """
    from django.contrib.auth.models import Permission
    from django.contrib.contenttypes.models import ContentType

    kept: dict[tuple[str, ...], tuple[list[ContentType], list[Permission]]] = {}

    def emit_or_put_back(verbosity: int, interactive: bool, db: str, **more: Any) -> None:
        names = (db, *apps.app_configs)
        if names not in kept:
            emit_post_migrate_signal(verbosity, interactive, db, **more)
            kept[names] = (
                list(ContentType.objects.using(db).all()),
                list(Permission.objects.using(db).all()),
            )
            return
        ContentType.objects.clear_cache()
        for model, rows in zip((ContentType, Permission), kept[names], strict=True):
            model.objects.using(db).bulk_create(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "emit_post_migrate_signal", emit_or_put_back)
        yield


@pytest.fixture
def direct() -> Iterator[redis.Redis]:
    """Return a client of the server that does not use the package."""
    with redis.Redis.from_url(url()) as connection:
        yield connection


@pytest.fixture(autouse=True)
def prefix(settings: Any) -> Iterator[str]:
    """Give each test its own keys, and end its tasks, slots and tallies."""
    settings.RATELIMIT_CACHE_PREFIX = f"t{next(_serial)}:"
    translation.deactivate()  # An earlier request may have activated another language.
    reset_rules()
    yield settings.RATELIMIT_CACHE_PREFIX
    stop(STOP_SECONDS)
    left = held_slots.all()
    if left:  # Without slots, `drop` must not read the settings of the test.
        held_slots.drop(left)
    if is_installed("statistics"):
        from django_ratelimit_lua.contrib.statistics.recorder import recorder
        from django_ratelimit_lua.store import failures

        failures.take()
        recorder._begin()
    refusal_log.clear()
    ban_log.clear()
    local_counts._counts.clear()


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the call sites and dotted paths of other tests in this process."""
    monkeypatch.setattr(known_call_sites, "_by_name", {})
    monkeypatch.setattr(values, "known_paths", {})


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no background task and no heartbeat, for tests that count calls of Redis."""
    start = Task.start
    monkeypatch.setattr(Task, "start", lambda task: task.name not in BY_THEMSELVES and start(task))
    monkeypatch.setattr(heartbeat, "is_started", False)
    monkeypatch.setattr(heartbeat, "start", lambda: None)
