"""One real server for the whole session, one prefix for each test."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from coverage import Coverage
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_ratelimit_lua.engine.fallback import fallback_limiter
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.publishing import triggers
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.provider import start_fresh
from django_ratelimit_lua.stats.refusals import refusal_counter
from tests.server import server, url

_serial = itertools.count()
# How long an example takes is no promise of ours, and on a busy machine it is long.
hypothesis_settings.register_profile(
    "busy", parent=hypothesis_settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("busy")


def _keep_forks_apart_from_coverage() -> None:
    """Coverage has a lock that it does not make anew after a fork: a child of a moment in which another thread holds it
    would wait for good, and be taken for one of ours. So who forks holds it, and may go on in the child."""
    collector = getattr(Coverage.current(), "_collector", None)
    if getattr(collector, "data_lock", None) is not None:
        lock = collector.data_lock = threading.RLock()
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


_keep_forks_apart_from_coverage()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Coverage measures the workers of pytest-xdist, which are there by now, and no process that a test starts."""
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes comes first, and files with what runs alone come last, so that no worker waits for long."""
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    items.sort(key=lambda item: (item.path in alone, not item.get_closest_marker("faults")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` runs while no worker of pytest-xdist runs another, here or in another run beside this."""
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)  # Closing alone would leave it to children that were forked.
        os.close(folder)


def pytest_unconfigure() -> None:
    server.stop()


def pytest_report_header() -> str:
    with redis.Redis.from_url(url()) as connection:
        info = connection.info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return f"server: {name} {info.get('valkey_version', info['redis_version'])}"


@pytest.fixture
def direct() -> Iterator[redis.Redis]:
    """A client of the server, past everything of ours."""
    with redis.Redis.from_url(url()) as connection:
        yield connection


@pytest.fixture(autouse=True)
def prefix(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every test counts under keys of its own, and leaves nothing for later: no tally, no heartbeats, nothing to tell,
    and no thread that goes on trying to publish what a test without a database could not read."""
    monkeypatch.setattr(triggers, "retry_in_background", lambda: None)
    monkeypatch.setattr(provider, "compare", None)
    monkeypatch.setattr(heartbeat, "start", lambda: None)
    monkeypatch.setattr(listener, "start", lambda: None)
    for task in (listener.task, heartbeat.task):  # Those that an earlier test has started end.
        monkeypatch.setattr(task, "_step", lambda: None)
    settings.RATELIMIT_CACHE_PREFIX = f"t{next(_serial)}:"
    start_fresh()
    yield settings.RATELIMIT_CACHE_PREFIX
    refusal_counter.clear()
    fallback_limiter.clear()
