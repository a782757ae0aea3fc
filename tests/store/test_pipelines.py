"""Calls that are sent together are decided one after the other, as if each was sent alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from django_ratelimit_lua import Limit
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.store import Store, store_at
from tests.server import url

START = 1_750_000_000_000_000
LIMITS = [
    Limit("a", "3/m"),
    Limit("b", "3/m", algorithm="token_bucket"),
    Limit("c", "3/m", algorithm="leaky_bucket"),
    Limit("d", "3/m", algorithm="sliding_log"),
    Limit("e", "3/m", algorithm="fixed_window"),
]


@pytest.fixture
def store() -> Iterator[Store]:
    store = store_at(url())
    yield store
    store.close()


def calls(prefix: bytes, limits: list[Limit] = LIMITS, slack_us: int | None = None) -> list[Call]:
    """Return many calls of different shapes and identities, a tenth of a second apart."""
    return [
        Call(
            [
                Charge(limits[(number + more) % len(limits)], b"%032d" % (number % 3))
                for more in range(number % 2 + 1)
            ],
            prefix=prefix,
            now=START + number * 100_000,
            slack_us=slack_us,
        )
        for number in range(150)
    ]


def test_pipelined_calls_are_decided_like_single_calls(store: Store, prefix: str) -> None:
    """The decisions are equal for calls with any programs."""
    together = store.decide_many(calls(f"{prefix}1:".encode()))
    apart = [store.decide(call) for call in calls(f"{prefix}2:".encode())]
    assert together == apart
    assert {decision.allowed for decision in together} == {True, False}
    assert store.decide_many([]) == []


def test_scripts_that_the_server_has_dropped_are_loaded(
    store: Store, prefix: str, direct: redis.Redis
) -> None:
    """The scripts are loaded before any call is decided."""
    direct.script_flush()
    apart = [store.decide(call) for call in calls(f"{prefix}2:".encode())]
    direct.script_flush()
    assert store.decide_many(calls(f"{prefix}1:".encode())) == apart


def test_keys_live_as_long_as_the_call_requires(
    store: Store, prefix: str, direct: redis.Redis
) -> None:
    """The keys outlive their usual time by the slack of the call, and they can be deleted by their
    names.
    """
    store.decide_many(calls(prefix.encode(), slack_us=3600 * 1_000_000))
    keys = direct.keys(f"{prefix}*")
    assert len(keys) == 15
    assert all(3600_000 < direct.pttl(key) <= 3600_000 + 600_000 for key in keys)
    store.delete_keys(keys)
    assert direct.keys(f"{prefix}*") == []


def test_commands_sent_together_get_replies_in_order(
    store: Store, prefix: str, direct: redis.Redis
) -> None:
    """An error among the replies is raised after all replies were read, so that the connection can
    be used again.
    """
    numbers, text = f"{prefix}numbers".encode(), f"{prefix}text".encode()
    direct.hset(numbers, mapping={"a": 1, "b": 2})
    direct.set(text, "of another type")
    asked = [(b"HGET", numbers, b"b"), (b"HMGET", numbers, b"a", b"c"), (b"GET", text)]
    assert store.execute_all(asked) == [b"2", [b"1", None], b"of another type"]
    assert store.execute_all([]) == []
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.execute_all([(b"HGETALL", text), *asked])
    assert store.execute_all(asked * 300) == store.execute_all(asked) * 300
