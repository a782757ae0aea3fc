"""The deadline of a decision limits the time that the store takes, whatever a server does. Time
that the process itself takes does not count.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store.connection_params import ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_replies import call, is_own, store_of
from tests.support.redis_server import caches
from tests.support.scripted_server import Scripted, bulk, drip, late, usual

pytestmark = pytest.mark.alone
DEADLINE = 0.1
MARGIN = 0.25
"""On a machine that others use, too; 20 ms on one that has nothing else to do."""
KINDS = ["sync", "async"]


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    try:
        found: Any = ask()
    except StoreError as error:
        found = error
    return found, time.monotonic() - started


async def atimed(asking: Any) -> tuple[Any, float]:
    started = time.monotonic()
    try:
        found: Any = await asking
    except StoreError as error:
        found = error
    return found, time.monotonic() - started


def assert_in_time(ask: Callable[[], float], most: float) -> None:
    """Try five times, because the machine may be busy. A real delay fails each time."""
    assert any(ask() < most for _ in range(5)), most


def assert_gives_up(
    store: Store, ask: Callable[[], list[tuple[Any, float]]], most: float = DEADLINE + MARGIN
) -> None:
    """Assert that calls end with an error after this time at most."""

    def longest() -> float:
        found = ask()
        assert all(isinstance(decided, StoreError) for decided, _ in found)
        return max(seconds for _, seconds in found)

    assert_in_time(longest, most)
    store.close()


def at_once(store: Store, kind: str, count: int) -> list[tuple[Any, float]]:
    """Make this number of concurrent calls, and return each result with its time."""
    if kind == "sync":
        with ThreadPoolExecutor(count) as pool:
            return list(
                pool.map(lambda number: timed(lambda: store.decide(call(number))), range(count))
            )

    async def gathered() -> list[tuple[Any, float]]:
        return await asyncio.gather(
            *(atimed(store.adecide(call(number))) for number in range(count))
        )

    return asyncio.run(gathered())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["the decision", "a huge reply", "the greeting"])
def test_a_slow_reply_is_given_up_at_the_deadline(what: str, kind: str, settings: Any) -> None:
    """Reading a whole reply has one deadline."""

    def script(command: list[bytes]) -> Any:
        right = usual(command)
        if what == "the greeting":
            return drip(right, 0.03) if command[0] == b"SELECT" else right
        if command[0] == b"EVALSHA":
            return drip(
                right if what == "the decision" else bulk(bytes(10_000)),
                0.03 if "the d" in what else 0.001,
            )
        return right

    with Scripted(script) as server:
        settings.CACHES = caches(server.url.replace("/0", "/3"))  # Which has to be selected.
        store = Store(ConnectionParams.of("default"), DEADLINE, background=True)
        assert_gives_up(store, lambda: at_once(store, kind, 1))


@pytest.mark.parametrize("kind", [*KINDS, "rules"])
@pytest.mark.parametrize("announced", [b"$500000000\r\n", b"*100000000\r\n"], ids=["text", "array"])
def test_an_endless_reply_is_given_up_at_the_deadline(
    announced: bytes, kind: str, settings: Any
) -> None:
    """A reply to a decision that is too large is refused."""

    def script(command: list[bytes]) -> Any:
        return endless if command[0] in (b"EVALSHA", b"HGETALL") else usual(command)

    def endless(server: Scripted, connection: Any, command: list[bytes]) -> None:
        connection.sendall(announced)
        while True:
            connection.sendall(b":1\r\n" * 16_384)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", DEADLINE)

        def ask() -> list[tuple[Any, float]]:
            if kind == "rules":
                return [timed(lambda: store.execute(b"HGETALL", b"key"))]
            return at_once(store, kind, 1)

        assert_gives_up(store, ask, DEADLINE + 3 * MARGIN)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_the_script_has_no_deadline_of_its_own(kind: str, settings: Any) -> None:
    """Only the rest of the call's deadline is left to load an unknown script."""
    deadline = 6 * DEADLINE

    def script(command: list[bytes]) -> Any:
        if command[0] == b"EVALSHA":
            return late(b"-NOSCRIPT No matching script.\r\n", deadline * 0.8)
        if command[0] == b"EVAL":
            return late(b"", 5)
        return usual(command)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", deadline)

        def ask() -> float:
            ((found, seconds),) = at_once(store, kind, 1)
            assert isinstance(found, StoreError)
            if server.asked[-1] != b"EVAL":  # A busy machine left no time for it.
                return float("inf")
            return seconds

        assert_in_time(ask, deadline + MARGIN)
        store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_connection_and_a_reply_have_one_deadline(kind: str, settings: Any) -> None:
    """The last call in the queue gives up when the first one does."""
    with Scripted(lambda command: late(b"", 0.5)) as server:
        settings.CACHES = caches(server.url, CONNECTION_POOL_KWARGS={"max_connections": 1})
        store = Store(ConnectionParams.of("default"), DEADLINE, background=True)
        assert_gives_up(store, lambda: at_once(store, kind, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_with_slow_replies_is_not_down(kind: str, settings: Any) -> None:
    """Each reply takes a third of the deadline, and calls wait for connections."""
    deadline = 6 * DEADLINE  # A machine that stands still for a moment does not miss it.

    def script(command: list[bytes]) -> Any:
        right = usual(command)
        return late(right, deadline / 3) if command[0] == b"EVALSHA" else right

    with Scripted(script) as server:
        settings.CACHES = caches(server.url, CONNECTION_POOL_KWARGS={"max_connections": 4})
        store = Store(ConnectionParams.of("default"), deadline, background=True)
        found = at_once(store, kind, 50)
        assert all(is_own(call(number), decided) for number, (decided, _) in enumerate(found))
        assert max(seconds for _, seconds in found) > 3 * deadline
        store.close()


def test_a_blocked_event_loop_is_not_an_outage(settings: Any) -> None:
    """The replies are read afterwards, also on connections that were being made."""
    with Server() as server:
        store = store_of(settings, server.port, "single", DEADLINE)

        async def everything() -> None:
            for _ in range(3):
                asking = [
                    asyncio.ensure_future(store.adecide(call(number))) for number in range(20)
                ]
                for _ in range(6):
                    await asyncio.sleep(0)
                    time.sleep(DEADLINE * 1.5)
                assert all(decided.allowed is not None for decided in await asyncio.gather(*asking))

        asyncio.run(everything())


def test_threads_that_wait_for_the_interpreter_are_not_an_outage(settings: Any) -> None:
    """If other threads compute all the time, each step of a call is late, but no call fails."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(20_000))

    with Server() as server:
        store = store_of(settings, server.port, "single", DEADLINE)
        busy = [threading.Thread(target=compute) for _ in range(8)]
        for thread in busy:
            thread.start()
        try:
            with ThreadPoolExecutor(20) as pool:
                found = list(
                    pool.map(
                        lambda number: timed(lambda: store.decide(call(number)))[0], range(100)
                    )
                )
        finally:
            over.set()
            for thread in busy:
                thread.join()
        assert [one for one in found if isinstance(one, StoreError)] == []
        store.close()


def test_a_call_in_a_cancelled_task_still_has_a_deadline(settings: Any) -> None:
    """An example is a refund when a request is cancelled."""
    with Scripted(lambda command: late(b"", 1)) as server:
        store = store_of(settings, server.port, "single", DEADLINE)

        async def cleans_up() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                with pytest.raises(StoreError):
                    await store.adecide(call(1))
                raise

        async def everything() -> None:
            task = asyncio.ensure_future(cleans_up())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(everything())
