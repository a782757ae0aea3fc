"""Limits in tests that freeze the time of the process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import time_machine
from freezegun import freeze_time

import django_ratelimit_lua
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store.commands import decision_command
from django_ratelimit_lua.store.connection_params import ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing import override_ratelimits
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_replies import call
from tests.support.redis_server import caches

Freeze = Callable[[], AbstractContextManager[Any]]
PACKAGE = Path(django_ratelimit_lua.__file__).parent
FROZEN: dict[str, Freeze] = {
    "freezegun-past": lambda: freeze_time("2000-01-01"),
    "freezegun-future": lambda: freeze_time("2100-01-01"),
    "freezegun-tick": lambda: freeze_time("2000-01-01", tick=True),
    "time-machine-past": lambda: time_machine.travel(0, tick=False),
    "time-machine-future": lambda: time_machine.travel(4_102_444_800, tick=False),
}


@pytest.fixture(params=FROZEN.values(), ids=list(FROZEN))
def freeze(request: pytest.FixtureRequest) -> Freeze:
    return request.param  # type: ignore[no-any-return]


def test_a_refusal_in_frozen_time_ends_as_usual(freeze: Freeze) -> None:
    """The time of limits is that of Redis."""
    limiter = RateLimiter("frozen", "1/s")
    with freeze():
        assert [limiter.hit("ada").allowed for _ in range(3)] == [True, False, False]
        refused = limiter.hit("ada")
        assert 0 < refused.retry_after <= 1
        assert limiter.hit("grace")
    refused = limiter.hit("ada")
    assert refused.allowed or 0 < refused.retry_after <= 1
    time.sleep(1.01)
    assert limiter.hit("ada")
    with freeze():
        assert not limiter.hit("ada")
        time.sleep(1.01)
        assert limiter.hit("ada")


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window"])
def test_leased_units_of_frozen_time_expire_as_usual(freeze: Freeze, algorithm: Any) -> None:
    """They are not spent after the window in which they were taken."""
    limiter = RateLimiter("leased", "200/h", algorithm=algorithm, lease=50)
    with freeze():
        before = sum(limiter.hit("ada").allowed for _ in range(150))
    after = sum(limiter.hit("ada").allowed for _ in range(150))
    assert before == 150
    assert 0 < after <= 50


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_hung_redis_in_frozen_time_ends_at_its_deadline(kind: str, settings: Any) -> None:
    """Coroutines need `real_asyncio`, as the page on tests states."""
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.CACHES = caches(server.url)
        store = Store(ConnectionParams.of("default"), 0.2, background=False)
        store.decide(call(1))
        os.kill(server.pid, signal.SIGSTOP)

        errors: list[StoreError] = []

        def ask() -> None:
            with freeze_time("2000-01-01", real_asyncio=True):
                try:
                    if kind == "sync":
                        store.decide(call(1))
                    else:
                        asyncio.run(store._aexchange(decision_command(call(1))))
                except StoreError as error:
                    errors.append(error)

        try:
            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            thread.join(20)
            assert [str(error).partition(":")[0] for error in errors] == ["TimeoutError"]
        finally:
            os.kill(server.pid, signal.SIGCONT)
            store.close()


def test_rules_and_fresh_counts_work_in_frozen_time(freeze: Freeze) -> None:
    """A test that freezes the time gets fresh counts, also a later one."""
    limiter = RateLimiter("fresh", "1/h")
    for _ in range(2):
        with freeze(), override_ratelimits():
            assert [limiter.hit("ada").allowed for _ in range(2)] == [True, False]


def test_only_one_module_reads_the_clocks_that_freezegun_stops() -> None:
    """Durations are measured by `Clock`."""
    stopped = r"\btime\.(monotonic|perf_counter)\(|from time import .*(monotonic|perf_counter)"
    modules = PACKAGE.rglob("*.py")
    assert [path.name for path in modules if re.search(stopped, path.read_text())] == []
