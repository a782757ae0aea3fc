"""Coroutines that make calls in the same iteration of an event loop share a connection and its
writes, and nothing more.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from asyncio import selector_events
from collections.abc import Iterator
from typing import Any

import pytest

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.program import program_for
from django_ratelimit_lua.signals import store_down
from django_ratelimit_lua.store import Deadline
from django_ratelimit_lua.store.commands import decision_command, encode
from django_ratelimit_lua.store.server import Store
from tests.acceptance.store.test_replies import call, is_own, store_of
from tests.support.scripted_server import Scripted, drip, usual


class Holding:
    """A healthy script that can hold its replies back."""

    server: Scripted

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def __call__(self, command: list[bytes]) -> Any:
        self.free.wait(10)
        return usual(command)


@pytest.fixture
def held() -> Iterator[Holding]:
    script = Holding()
    with Scripted(script) as server:
        script.server = server
        yield script
        script.free.set()


@pytest.fixture
def store(held: Holding, settings: Any) -> Iterator[Store]:
    found = store_of(settings, held.server.port, "single", 5)
    yield found
    found.close()


async def asked(store: Store, numbers: Any) -> list[Any]:
    return await asyncio.gather(
        *(store.adecide(call(number)) for number in numbers), return_exceptions=True
    )


def own(numbers: Any, found: list[Any]) -> bool:
    return all(
        is_own(call(number), decided) for number, decided in zip(numbers, found, strict=True)
    )


@pytest.mark.parametrize(
    ("count", "writes"), [(1, [1]), (2, [1, 1]), (20, [1, 19]), (100, [1, 32, 32, 32, 3])]
)
def test_commands_of_one_loop_iteration_are_sent_together(
    count: int, writes: list[int], held: Holding, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command is sent immediately, and the following ones in one write."""
    sent: list[bytes] = []
    write = selector_events._SelectorSocketTransport.write

    def spy(transport: Any, data: bytes) -> None:
        sent.append(bytes(data))
        write(transport, data)

    async def turns() -> None:
        assert own(range(count), await asked(store, range(count)))
        monkeypatch.setattr(selector_events._SelectorSocketTransport, "write", spy)
        assert own(range(count), await asked(store, range(count)))

    asyncio.run(turns())
    assert [data.count(b"EVALSHA") for data in sent] == writes
    assert held.server.connected == 1


def test_replies_that_arrive_in_pieces_are_matched(settings: Any) -> None:
    """Replies of any kind are matched if they arrive one byte at a time."""
    (third,) = call(3).keys()

    def script(command: list[bytes]) -> Any:
        right = usual(command)
        return drip(b"-OOM no memory\r\n" if third in command else right, 0)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", 5)
        found = asyncio.run(asked(store, range(50)))
        assert "OutOfMemoryError" in str(found[3])
        assert own([*range(3), *range(4, 50)], found[:3] + found[4:])
        assert server.connected == 1
        store.close()


@pytest.mark.parametrize("moment", [0, 0.05], ids=["before it is sent", "when it is sent"])
def test_a_cancelled_call_does_not_affect_other_calls(
    moment: float, held: Holding, store: Store
) -> None:
    """The reply to a cancelled call is read and dropped."""

    async def turns() -> None:
        assert own([0], await asked(store, [0]))
        held.free.clear()
        tasks = [asyncio.ensure_future(store.adecide(call(number))) for number in range(30)]
        await asyncio.sleep(moment)
        for task in tasks[5:15]:
            task.cancel()
        await asyncio.sleep(0.05)
        held.free.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(decided, asyncio.CancelledError) for decided in found[5:15])
        assert own([*range(5), *range(15, 30)], found[:5] + found[15:])
        assert own(range(30), await asked(store, range(30)))

    asyncio.run(turns())
    assert held.server.connected == 1
    assert held.server.asked.count(b"EVALSHA") == 61 - (10 if not moment else 0)


def test_each_call_has_its_own_deadline(held: Holding, store: Store) -> None:
    """A call with less time gives up."""

    async def turns() -> list[Any]:
        assert own([0], await asked(store, [0]))
        held.free.clear()
        hasty = [
            asyncio.ensure_future(store.adecide(call(number), Deadline(0.05)))
            for number in range(5)
        ]
        patient = [
            asyncio.ensure_future(store.adecide(call(number), Deadline(8)))
            for number in range(5, 10)
        ]
        found = await asyncio.gather(*hasty, return_exceptions=True)
        assert all(isinstance(decided, StoreError) for decided in found)
        assert not any(task.done() for task in patient)
        held.free.set()
        # On another connection, because that one was silent.
        assert own(range(20, 30), await asked(store, range(20, 30)))
        return await asyncio.gather(*patient)

    assert own(range(5, 10), asyncio.run(turns()))
    assert held.server.connected == 2


def test_calls_behind_a_broken_connection_get_a_short_error(settings: Any) -> None:
    """The length of the error does not depend on the number of calls."""

    def hang_up(*_: object) -> None:
        time.sleep(0.05)  # So that all have asked.
        raise OSError

    def script(command: list[bytes]) -> Any:
        return hang_up if command[0] == b"EVALSHA" else usual(command)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", 5)
        found = asyncio.run(asked(store, range(300)))
        assert all(isinstance(decided, StoreError) for decided in found)
        assert max(len(str(decided)) for decided in found) < 300
        store.close()


def test_cancelled_callers_do_not_keep_a_silent_connection_open(settings: Any) -> None:
    """Each caller is cancelled before the deadline."""
    silent = threading.Event()

    def script(command: list[bytes]) -> Any:
        if silent.is_set() and server.connected == 1:
            return lambda *_: time.sleep(10)
        return usual(command)

    async def hasty() -> list[Any]:
        assert own([0], await asked(store, [0]))
        silent.set()
        found = []
        for number in range(12):
            try:
                async with asyncio.timeout(0.05):
                    found.append(await store.adecide(call(number)))
            except (TimeoutError, StoreError) as error:
                found.append(error)
        return found

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", 0.1)
        found = asyncio.run(hasty())
        assert server.connected >= 2
        assert is_own(call(11), found[11])
        store.close()


def test_an_unknown_script_is_loaded_once_for_concurrent_calls(settings: Any) -> None:
    """The first call loads the script, and the others are sent again after it."""
    loaded: list[bytes] = []

    def script(command: list[bytes]) -> Any:
        if command[0] == b"EVAL":
            loaded.append(command[1])
        if command[0] == b"EVALSHA" and not loaded:
            return b"-NOSCRIPT No matching script.\r\n"
        return usual(command)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", 5)
        assert own(range(300), asyncio.run(asked(store, range(300))))
        assert len(loaded) <= 2
        store.close()


def test_a_reply_before_a_disconnect_is_used(settings: Any) -> None:
    """A server with too many clients, for example, sends an error and disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.sendall(b"-ERR max number of clients reached\r\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        store = store_of(settings, listener.getsockname()[1], "single", 2)
        (found,) = asyncio.run(asked(store, [1]))
        assert "max number of clients" in str(found)
        store.close()


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect the garbage of the test, so that its warnings do not fail the next test."""
    yield
    gc.collect()


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # The loop leaves a transport open.
def test_a_closed_event_loop_is_not_an_outage(held: Holding, settings: Any) -> None:
    """The coroutines of the loop end without an error, and Redis is not reported down."""
    settings.RATELIMIT_TIMEOUT = 5
    store = Store(store_of(settings, held.server.port, "single", 5)._params, 5, background=False)
    told: list[str] = []
    went_on: list[Any] = []

    def hear(**kwargs: Any) -> None:
        told.append(kwargs["alias"])

    async def ask() -> None:
        try:
            await store.adecide(call(1))
        except Exception as error:
            went_on.append(error)

    store_down.connect(hear)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(store.adecide(call(0)))
        held.free.clear()
        tasks = [loop.create_task(ask()) for _ in range(4)]
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        del tasks
        held.free.set()
        asyncio.run(ask())  # Another loop lets go of what the first one left.
    finally:
        store_down.disconnect(hear)
    assert (told, went_on, store.is_paused) == ([], [], False)
    store.close()


@pytest.mark.parametrize("count", [1, 2, 8, 9, 36, 37, 123, 256])
def test_a_cached_command_equals_a_new_one(count: int) -> None:
    """The commands are equal for any number of limits and any cost."""
    limits = [
        Limit(f"limit % {number}", f"{number + 1}/m", algorithm="token_bucket")
        for number in range(count)
    ]
    for cost in (1, 2, 10, 11):
        asking = Call([Charge(limit, b"%032x" % 7, cost) for limit in limits], prefix=b"100%s:")
        for _ in range(2):
            command = decision_command(asking).data
            token = command[-10:-2]
            program = program_for(asking.algorithms)
            keys = asking.keys()
            count = b"%d" % len(keys)
            whole = encode(b"EVALSHA", program.sha, count, *keys, *asking.args(token))
            assert command == whole
