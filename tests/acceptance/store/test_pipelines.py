"""Commands that are sent together get their replies in order."""

from __future__ import annotations

import pytest
import redis

from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.store import get_store


def test_commands_sent_together_get_replies_in_order(prefix: str, direct: redis.Redis) -> None:
    """An error is raised after all replies were read, so the connection stays usable."""
    store = get_store(background=True)
    numbers, text = f"{prefix}numbers".encode(), f"{prefix}text".encode()
    direct.hset(numbers, mapping={"a": 1, "b": 2})
    direct.set(text, "of another type")
    asked = [(b"HGET", numbers, b"b"), (b"HMGET", numbers, b"a", b"c"), (b"GET", text)]
    assert store.execute_all(asked) == [b"2", [b"1", None], b"of another type"]
    assert store.execute_all([]) == []
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.execute_all([(b"HGETALL", text), *asked])
    assert store.execute_all(asked * 300) == store.execute_all(asked) * 300
