"""No call gets the reply to another call, whatever a server sends at any moment."""

from __future__ import annotations

import asyncio
import math
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.limits.call import Call, Charge, Revision, StaleRules
from django_ratelimit_lua.limits.decision import Decision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.program import program_for
from django_ratelimit_lua.store import Deadline
from django_ratelimit_lua.store.cluster import ShardedStore
from django_ratelimit_lua.store.connection_params import ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing.server import Server
from tests.support.scripted_server import (
    Reply,
    Scripted,
    bulk,
    decision,
    drip,
    followed,
    late,
    mark,
    torn,
    usual,
)

TIMEOUT = 0.15
SETTLED = 0.3
"""Seconds after which nothing comes any more that a reply was followed by (20 ms later, and the
machine is busy).
"""
KINDS = ("single", "sentinel", "cluster")
LIMITS = [Limit("one", "5/m"), Limit("two", "7/h", algorithm="token_bucket")]
PROGRAM = program_for(("sliding_window",))


def caches(port: int, kind: str) -> dict[str, Any]:
    url, options = f"redis://127.0.0.1:{port}/0", {}
    if kind == "cluster":
        options = {"CONNECTION_FACTORY": "django_ratelimit_lua.store.ClusterConnectionFactory"}
    elif kind == "sentinel":
        url = f"redis://limits-{port}/0"  # django-redis keeps a pool for each URL.
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", port)],
        }
    return {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
    }


def store_of(settings: Any, port: int, kind: str, timeout: float = TIMEOUT) -> Store:
    settings.DJANGO_REDIS_CONNECTION_FACTORY = (
        "django_redis.pool.SentinelConnectionFactory"
        if kind == "sentinel"
        else "django_redis.pool.ConnectionFactory"
    )
    settings.CACHES = caches(port, kind)
    made = ShardedStore if kind == "cluster" else Store
    return made(ConnectionParams.of("default"), timeout, background=True)


def call(number: int, limits: int = 1, **options: Any) -> Call:
    digest = b"%032x" % number
    return Call([Charge(limit, digest) for limit in LIMITS[:limits]], prefix=b"s:", **options)


async def decided_by(store: Store, kind: str, asked: Call) -> Decision:
    """Make a sync or an async call."""
    return store.decide(asked) if kind == "sync" else await store.adecide(asked)


def is_own(asked: Call, decided: Any) -> bool:
    """Return whether a reply has the numbers of its call."""
    return len(decided.limits) == len(asked.charges) and all(
        (state.used, state.counted_at) == (mark(key), mark(key))
        for key, state in zip(asked.keys(), decided.limits, strict=True)
    )


ERRORS = [
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-BUSY Redis is busy running a script.\r\n",
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-NOPERM this user has no permissions\r\n",
    b"-MASTERDOWN Link with MASTER is down\r\n",
    b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
    b"-CLUSTERDOWN The cluster is down\r\n",
    b"-ERR \xff\xfe\r\n",
    b"-\r\n",
]
NO_REPLIES = [b"*1\r\n" * 5000 + b":1\r\n", b"$abc\r\n", b"$-2\r\n", b"$99999999999999\r\n"]
NO_REPLIES += [b"*-7\r\n", b":12a\r\n", b":" + b"9" * 5000 + b"\r\n", b"$-1\r\n", b"*-1\r\n"]
NO_REPLIES += [b"*0\r\n", b"*2\r\n$-1\r\n$-1\r\n", b"+OK\r\n", b":1\r\n", b"_\r\n"]
NO_REPLIES += [b"%1\r\n+a\r\n+b\r\n", b">2\r\n+invalidate\r\n*0\r\n", b"\r\n"]
NO_REPLIES += [b"HTTP/1.1 400 Bad Request\r\n\r\n", bulk(b""), bulk(PROGRAM.sha)]
NO_REPLIES += [bulk(struct.pack("<2d", 2.0, 7.0)), bulk(b"stale 7-01234567-89abcdef")]
NO_REPLIES += [bulk(b"\xff" * 96)]


class Chaos:
    """A script that sends random wrong replies, including those to earlier commands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_on = True
        self.server: Scripted | None = None
        self._earlier: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, command: list[bytes]) -> Reply | bytes:
        right = usual(command, self.server.port)
        with self._lock:
            if not self.is_on:
                return right
            return self._wrong(command, right)

    def _wrong(self, command: list[bytes], right: bytes) -> Reply | bytes:
        chance = self.random.random()
        is_decision = command[0] == b"EVALSHA"
        if chance < (0.4 if is_decision else 0.75):
            return right
        choose = self.random.choice
        earlier = choose(self._earlier) if self._earlier else b"+OK\r\n"
        if is_decision:
            self._earlier = [*self._earlier[-20:], right]
        address = b"127.0.0.1:%d" % self.server.port
        ways: list[Callable[[], Reply | bytes]] = [
            lambda: choose(ERRORS),
            lambda: choose(NO_REPLIES),
            lambda: choose(NO_REPLIES) + right,
            lambda: earlier,
            lambda: earlier + right,
            lambda: right + right,
            lambda: followed(
                right, choose([right, earlier, *NO_REPLIES]), choose([0.0, 0.0005, 0.002, 0.02])
            ),
            lambda: late(right, choose([0.005, 0.05, 0.3])),
            lambda: drip(right, choose([0.0, 0.0005, 0.03])),
            lambda: torn(right, self.random.randrange(len(right))),
            lambda: torn(right, len(right)),
            lambda: b"",
            lambda: b"-NOSCRIPT No matching script.\r\n",
            lambda: (
                choose([b"-MOVED 1 ", b"-ASK 1 "])
                + choose([address, address, b"", b"nowhere", b":99999"])
                + b"\r\n"
            ),
        ]
        if is_decision:
            ways += [
                lambda: decision(command, numbers=choose([1, 2, 4, 9, 10, 14, 15, 40])),
                lambda: decision(command, fill=choose([math.nan, math.inf, -math.inf])),
                lambda: decision([*command[:-1], bytes(8)]),
            ]
        return choose(ways)()


@pytest.fixture
def chaos(request: Any) -> Iterator[Chaos]:
    script = Chaos(request.param)
    with Scripted(script) as server:
        script.server = server
        yield script


def check_answers(outcomes: list[tuple[Call, Any]]) -> None:
    for asked, outcome in outcomes:
        assert isinstance(outcome, StoreError) or is_own(asked, outcome), (asked.keys(), outcome)
    assert not all(isinstance(outcome, StoreError) for _, outcome in outcomes)


@pytest.mark.parametrize("chaos", [1, 2], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_their_own_reply_or_an_error(chaos: Chaos, kind: str, settings: Any) -> None:
    """Each reply has the numbers of its call's identity, or a StoreError is raised."""
    store = store_of(settings, chaos.server.port, kind)

    def ask(number: int) -> tuple[Call, Any]:
        asked = call(number, 1 + number % 2)
        try:
            return asked, store.decide(asked, Deadline(TIMEOUT if chaos.is_on else 10))
        except StoreError as error:
            return asked, error

    with ThreadPoolExecutor(6) as pool:
        check_answers(list(pool.map(ask, range(180))))
        chaos.is_on = False
        time.sleep(SETTLED)
        for _ in range(3):  # A connection with a reply too many ends in an error once.
            list(pool.map(ask, range(60)))
        assert all(is_own(asked, found) for asked, found in pool.map(ask, range(100)))
    store.close()


@pytest.mark.parametrize("chaos", [3, 4], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_coroutines_get_their_own_reply_or_an_error(chaos: Chaos, kind: str, settings: Any) -> None:
    """The same is true on an event loop, where some calls are cancelled while they wait."""
    store = store_of(settings, chaos.server.port, kind)

    async def ask(number: int) -> tuple[Call, Any]:
        asked = call(number, 1 + number % 2)
        try:
            return asked, await store.adecide(asked, Deadline(TIMEOUT if chaos.is_on else 10))
        except StoreError as error:
            return asked, error

    async def one_by_one(first: int) -> list[tuple[Call, Any]]:
        return [await ask(number) for number in range(first, 180, 6)]

    async def everything() -> list[tuple[Call, Any]]:
        groups = [asyncio.ensure_future(one_by_one(first)) for first in range(6)]
        for number in range(30):
            hasty = asyncio.ensure_future(ask(1000 + number))
            await asyncio.sleep(0.003)
            hasty.cancel()
            await asyncio.wait([hasty])
        check_answers([outcome for group in groups for outcome in await group])
        chaos.is_on = False
        await asyncio.sleep(SETTLED)
        for _ in range(40):
            await ask(0)
        return await asyncio.gather(*map(ask, range(100)))

    assert all(is_own(asked, found) for asked, found in asyncio.run(everything()))


@pytest.mark.parametrize("reply", [*ERRORS, *NO_REPLIES], ids=repr)
def test_an_invalid_reply_is_a_store_error(reply: bytes, settings: Any) -> None:
    """The parser's exceptions do not reach callers, and the next call gets its own reply."""
    healthy = threading.Event()
    script = lambda command: usual(command) if healthy.is_set() else reply  # noqa: E731
    with Scripted(script) as server:
        store = store_of(settings, server.port, "single")

        async def ask() -> None:
            with pytest.raises(StoreError):
                await store.adecide(call(1))
            healthy.set()
            assert is_own(call(2), await store.adecide(call(2)))

        with pytest.raises(StoreError):
            store.decide(call(1))
        assert not healthy.is_set()
        asyncio.run(ask())
        assert is_own(call(2), store.decide(call(2)))
        store.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_second_reply_never_answers_the_next_command(kind: str, settings: Any) -> None:
    """It arrives with the first or later, before a command with a token or without."""
    count = 0

    def script(command: list[bytes]) -> Any:
        nonlocal count
        right = usual(command)
        if command[0] != b"EVALSHA":
            return right
        count += 1
        return right + b"*1\r\n:7\r\n" if count % 2 else followed(right, b"*1\r\n:7\r\n", 0.001)

    with Scripted(script) as server:
        store = store_of(settings, server.port, "single", 5)
        run = (PROGRAM._replace(sha=b"other"), [b"key"], [])

        async def ask(number: int) -> None:
            assert is_own(call(number), await decided_by(store, kind, call(number)))
            await asyncio.sleep(0.01)
            with suppress(StoreError):
                assert (
                    store.execute(b"GET", b"key") if kind == "sync" else await store.arun(*run)
                ) != [7]

        async def everything() -> None:
            for number in range(10):
                await ask(number)

        asyncio.run(everything())
        store.close()


def test_a_reply_about_stale_rules_is_invalid_for_calls_without_rules() -> None:
    """A stale revision is a valid reply only to a call with another revision."""
    token = b"12345678"
    stale = b"stale 7-01234567-89abcdef" + token
    known = Revision.of(3, "01234567", "89abcdef")
    fenced = call(1, revision=known, fence=b"f")
    for revision in (b"7-01234567-89abcdef", b"0007", b""):  # Even if it was edited by hand.
        with pytest.raises(StaleRules):
            fenced.read(b"stale " + revision + token, token)
    for asked, reply in [
        (call(1), stale),
        (fenced, stale[:-1] + b"0"),
        (fenced, b"stale " + known.text + token),
        (fenced, [token]),
    ]:
        with pytest.raises(ValueError, match="unexpected reply"):
            asked.read(reply, token)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_script_that_cannot_be_loaded_leaves_no_caller_waiting(kind: str, settings: Any) -> None:
    """An ACL refuses EVAL and grants it later."""
    with Server() as server, redis.Redis.from_url(server.url) as direct:
        direct.execute_command(
            "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-eval"
        )
        settings.CACHES = caches(server.port, "single")
        settings.CACHES["default"]["LOCATION"] = f"redis://limited:secret@127.0.0.1:{server.port}/0"
        store = Store(ConnectionParams.of("default"), 5, background=True)

        async def ask() -> list[Any]:
            found: list[Any] = []
            for number in range(30):
                if number == 10:
                    direct.execute_command("ACL", "SETUSER", "limited", "+eval")
                if number == 20:
                    direct.script_flush()
                try:
                    decided = await decided_by(store, kind, call(number))
                    found.append((len(decided.limits), decided.limits[0].used))
                except StoreError as error:
                    found.append(str(error).partition(":")[0])
            return found

        found = asyncio.run(ask())
        assert found == ["NoPermissionError"] * 10 + [(1, 1)] * 20
        store.close()
