"""Coroutines of one event loop that ask in the same turn share a trip, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store import Patience
from django_ratelimit_lua.store.server import Store
from tests.store.scripted import Scripted, late, usual
from tests.store.test_replies import call, is_own, store_of

READ = 65_536


class Holding:
    """A script that is well, but holds back what it answers while it is told to."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.errors: dict[bytes, bytes] = {}
        self.server: Scripted | None = None

    def __call__(self, command: list[bytes]) -> Any:
        self.free.wait(10)
        if command[0] == b"EVALSHA" and command[3] in self.errors:
            return self.errors[command[3]]
        return usual(lambda: self.server, command)


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
    return await asyncio.gather(*(store.adecide(call(number)) for number in numbers), return_exceptions=True)


def own(numbers: Any, found: list[Any]) -> bool:
    return all(is_own(call(number), decided) for number, decided in zip(numbers, found, strict=True))


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_one_connection_for_all_of_a_loop(count: int, held: Holding, store: Store) -> None:
    """Each is told his own answer, turn after turn."""

    async def turns() -> None:
        for _ in range(3):
            assert own(range(count), await asked(store, range(count)))

    asyncio.run(turns())
    assert held.server.connected == 1


def test_an_error_is_told_to_whom_it_is_about(held: Holding, store: Store) -> None:
    """Those before it and behind it are answered, on the same connection."""
    (key,) = call(7).keys()
    held.errors[key] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    found = asyncio.run(asked(store, range(20)))
    assert [number for number, decided in enumerate(found) if isinstance(decided, StoreError)] == [7]
    assert own([*range(7), *range(8, 20)], found[:7] + found[8:])
    assert held.server.connected == 1


def test_a_reply_that_is_none_leaves_those_behind_it_without_an_answer(held: Holding, store: Store) -> None:
    """Those before it have theirs. Nobody behind it is told anything; what is asked next goes another way."""
    (key,) = call(7).keys()

    async def turns() -> list[Any]:
        assert own(range(3), await asked(store, range(3)))
        held.free.clear()  # So that all replies come at once, behind each other.
        asking = asyncio.ensure_future(asked(store, range(20)))
        await asyncio.sleep(0.05)
        held.errors[key] = b"$5\r\nhello\r\n"
        held.free.set()
        found = await asking
        held.errors.clear()
        assert own(range(20), await asked(store, range(20)))
        return found

    found = asyncio.run(turns())
    assert own(range(7), found[:7])
    assert isinstance(found[7], StoreError)
    # What had come in the same breath was read before anybody looked: each is told his own, or nothing.
    assert all(isinstance(decided, StoreError) or is_own(call(8 + at), decided) for at, decided in enumerate(found[8:]))
    assert held.server.connected == 2


@pytest.mark.parametrize("moment", [0, 0.05], ids=["before it is sent", "when it is sent"])
def test_who_is_cancelled_disturbs_nobody(moment: float, held: Holding, store: Store) -> None:
    """His reply is read and dropped; what was not sent yet is not sent at all."""

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


def test_each_has_a_deadline_of_his_own(held: Holding, store: Store) -> None:
    """Who has less time gives up; who has more is answered by the connection on which he has asked."""

    async def turns() -> list[Any]:
        assert own([0], await asked(store, [0]))
        held.free.clear()
        hasty = [asyncio.ensure_future(store.adecide(call(number), Patience(0.05))) for number in range(5)]
        patient = [asyncio.ensure_future(store.adecide(call(number), Patience(8))) for number in range(5, 10)]
        found = await asyncio.gather(*hasty, return_exceptions=True)
        assert all(isinstance(decided, StoreError) for decided in found)
        assert not any(task.done() for task in patient)
        held.free.set()
        assert own(range(20, 30), await asked(store, range(20, 30)))  # On another one: that one was silent.
        return await asyncio.gather(*patient)

    assert own(range(5, 10), asyncio.run(turns()))
    assert held.server.connected == 2


def test_who_waits_behind_others_waits_as_long_as_there_are_answers(settings: Any) -> None:
    """Twenty answers of 20 ms each are no silence of 100 ms; the deadline is for a server that says nothing."""
    with Scripted(lambda command: late(usual(lambda: server, command), 0.02)) as server:
        store = store_of(settings, server.port, "single", 0.1)
        assert own(range(20), asyncio.run(asked(store, range(20))))
        store.close()
