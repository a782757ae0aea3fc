"""A store reports once that it is down and once that it is up, and it pauses only for some
errors.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.signals import store_down, store_up
from django_ratelimit_lua.store import get_store, server
from django_ratelimit_lua.store.connection_params import ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_replies import ERRORS, call, decided_by, is_own
from tests.support.processes import until
from tests.support.redis_server import caches
from tests.support.scripted_server import Scripted, reset, torn, usual

ANSWERED = [error for error in ERRORS if len(error) > 3 and not error.startswith(b"-LOADING")]


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return the signals that were sent, in order."""
    found: list[str] = []

    def down(**kwargs: Any) -> None:
        found.append("down")

    def up(**kwargs: Any) -> None:
        found.append("up")

    store_down.connect(down)
    store_up.connect(up)
    yield found
    store_down.disconnect(down)
    store_up.disconnect(up)


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.RATELIMIT_TIMEOUT = 5
        settings.CACHES = caches(server.url)
        reset_rules()
        yield server
        get_store().close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_full_server_is_reported_down_once_and_up_once(
    kind: str, own: Server, said: list[str], settings: Any, monkeypatch: Any, caplog: Any
) -> None:
    """A server without memory decides some calls and refuses others."""
    monkeypatch.setattr(server, "STEADY_SECONDS", 60.0)
    settings.RATELIMIT_ON_STORE_ERROR = "open"
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0
    limiter, other = RateLimiter("x", "1000000/h"), RateLimiter("y", "5/h")
    sources: set[str] = set()

    def both(number: int) -> None:
        sources.update({limiter.hit("x").source, other.peek("y").source})

    async def some() -> None:
        for _ in range(20):
            calls = [call for _ in range(10) for call in (limiter.ahit("x"), other.apeek("y"))]
            sources.update(decision.source for decision in await asyncio.gather(*calls))

    def load() -> None:
        if kind == "async":
            asyncio.run(some())
        else:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(both, range(200)))

    with redis.Redis.from_url(own.url) as direct, caplog.at_level("INFO"):
        load()
        assert (sources, said) == ({"redis"}, [])
        direct.config_set("maxmemory", 1)
        load()
        assert (sources, said) == ({"redis", "fallback"}, ["down"])
        assert not get_store().is_paused
        direct.config_set("maxmemory", 0)
        sources.clear()
        load()
        assert (sources, said) == ({"redis"}, ["down"])
        monkeypatch.setattr(server, "STEADY_SECONDS", 0.5)
        time.sleep(0.5)
        load()
    assert said == ["down", "up"]
    assert caplog.text.count("Redis of cache") == 2


def test_a_paused_server_is_up_after_its_first_reply(
    own: Server, said: list[str], settings: Any
) -> None:
    """A pause ends with a successful trial, so no further calls have to succeed."""
    settings.RATELIMIT_TIMEOUT = 0.1
    limiter = RateLimiter("x", "1000000/h")
    limiter.hit("x")
    os.kill(own.pid, signal.SIGSTOP)
    try:
        for _ in range(10):
            limiter.hit("x")
        assert get_store().is_paused
    finally:
        os.kill(own.pid, signal.SIGCONT)
    until(lambda: not get_store().is_paused, "a trial succeeds", 10)
    sources = [limiter.hit("x").source for _ in range(2)]
    assert sources[-1] == "redis" or limiter.hit("x").source == "redis"
    assert said == ["down", "up"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", ANSWERED, ids=lambda error: error[1:12].decode(errors="replace"))
def test_error_replies_begin_no_pause_and_close_no_connection(
    error: bytes, kind: str, settings: Any
) -> None:
    """After twelve errors, the next calls are sent with their full deadline."""
    erring = threading.Event()
    erring.set()
    script = lambda command: error if erring.is_set() else usual(command)  # noqa: E731
    with Scripted(script) as server:
        settings.RATELIMIT_TIMEOUT = 0.5
        settings.CACHES = caches(server.url)
        store = get_store()

        async def everything() -> None:
            for _ in range(12):
                with pytest.raises(Exception, match="Error: "):
                    await decided_by(store, kind, call(1))
            assert not store.is_paused
            await asyncio.sleep(0.6)  # A deadline that an error has left behind would have passed.
            erring.clear()
            for number in range(3):
                asked = call(number)
                assert is_own(asked, await decided_by(store, kind, asked))

        asyncio.run(everything())
        assert server.connected <= (13 if error.startswith(b"-READONLY") else 1)
        store.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("breaks", [torn, reset])
def test_a_connection_that_breaks_in_a_reply_is_detected_immediately(
    breaks: Any, kind: str, settings: Any
) -> None:
    """The error is raised before the deadline, and no call is sent twice."""
    breaking = threading.Event()

    def script(command: list[bytes]) -> Any:
        right, is_decision = usual(command), command[0] == b"EVALSHA"
        return breaks(right, len(right) // 2) if breaking.is_set() and is_decision else right

    with Scripted(script) as server:
        settings.CACHES = caches(server.url)
        store = Store(ConnectionParams.of("default"), 60, background=False)

        async def fail(message: str) -> None:
            with pytest.raises(StoreError, match=message):
                await decided_by(store, kind, call(1))

        async def everything() -> None:
            for failures in (2, 2, 3):
                breaking.clear()
                assert is_own(call(1), await decided_by(store, kind, call(1)))
                breaking.set()
                assert not store.is_paused
                for _ in range(failures):
                    await fail("ConnectionError: ")
            assert store.is_paused
            await fail("Paused: ")

        asyncio.run(everything())
        assert server.asked.count(b"EVALSHA") == 3 + 7
        store.close()


def test_many_threads_with_event_loops_raise_no_exception(own: Server) -> None:
    """Async views under WSGI run in event loops that start and end in many threads."""
    limiter = RateLimiter("x", "1000000/h")

    async def some() -> int:
        found = await asyncio.gather(*(limiter.ahit("x") for _ in range(5)))
        return sum(decision.source == "redis" for decision in found)

    def many(number: int) -> int:
        return sum(asyncio.run(some()) for _ in range(12))

    with redis.Redis.from_url(own.url) as direct:
        limiter.hit("x")
        with ThreadPoolExecutor(12) as pool:
            assert list(pool.map(many, range(12))) == [60] * 12
        # This one, that of the hit, the listener's, and the one by which rules are loaded.
        until(lambda: len(direct.client_list()) <= 4, "the others are closed", 5)
        node = get_store()._nodes[None]
        assert node._async_connections._loops == {}
    assert limiter.peek("x").limits[0].used == 721


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_password_that_is_set_meanwhile_is_reported_as_authentication(
    kind: str, own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The server rejects long commands by a protocol error. The log names the cause."""
    limiter = RateLimiter("login", ["5/m", "9/h", "20/d"])

    def hit() -> str:
        return (limiter.hit("x") if kind == "sync" else asyncio.run(limiter.ahit("x"))).source

    assert hit() == "redis"
    with redis.Redis.from_url(own.url) as direct:
        direct.config_set("requirepass", "secret")
        get_store().close()
        direct.client_kill_filter(skipme=True, _type="normal")
        for _ in range(3):
            if hit() == "fallback":
                break
        direct.config_set("requirepass", "")
    (reason,) = [text for text in caplog.messages if "cannot decide limits" in text]
    assert "AuthenticationError: Authentication required" in reason


def test_reset_connections_leave_no_message_in_the_log_of_asyncio(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Many coroutines write to a connection that the server resets again and again."""

    def script(command: list[bytes]) -> Any:
        right = usual(command)
        return reset(right, 0) if next(numbers) % 20 == 19 else right

    numbers = itertools.count()
    with Scripted(script) as server:
        settings.CACHES = caches(server.url)
        store = Store(ConnectionParams.of("default"), 5, background=True)
        ends = time.monotonic() + 3

        async def ask(number: int) -> int:
            failures = 0
            while time.monotonic() < ends:
                try:
                    await store.adecide(call(number))
                except StoreError:
                    failures += 1
                    await asyncio.sleep(0)
            return failures

        async def everything() -> list[int]:
            return await asyncio.gather(*(ask(number) for number in range(200)))

        assert sum(asyncio.run(everything())) > 100
        store.close()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
