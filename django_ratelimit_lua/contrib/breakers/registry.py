"""The breakers of all processes: their names and states in Redis, for operators and metrics."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress

from ...conf import conf
from ...exceptions import StoreError
from ...process import Clock
from ...store import Deadline, get_store

MAX_NAMES = 1000
"""Maximum number of registered names: those that were used last."""
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}")
"""A name has no control characters and no lone surrogates."""
KEPT_SECONDS = 7 * 86_400
READ_SECONDS = 5.0
"""Timeout of reading the states of all breakers."""


def tag_of(name: str) -> bytes:
    """Return the digest of a name, for keys and messages."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest().encode()


def state_key(tag: bytes) -> bytes:
    """Return the key of the hash that `breaker.lua` writes."""
    return b"%b{breaker:%b}" % (conf.CACHE_PREFIX, tag)


def _names_key() -> bytes:
    return conf.CACHE_PREFIX + b"{breakers}"


def register_name(name: str, deadline: Deadline) -> bool:
    """Record that a breaker is in use. Return whether Redis has stored it."""
    now = int(Clock.time())
    key = _names_key()
    with suppress(StoreError):
        get_store(background=True).execute_all(
            [
                (b"ZADD", key, b"%d" % now, name.encode()),
                (b"ZREMRANGEBYSCORE", key, b"-inf", b"%d" % (now - KEPT_SECONDS)),
                (b"ZREMRANGEBYRANK", key, b"0", b"%d" % -(MAX_NAMES + 1)),
                (b"EXPIRE", key, b"%d" % KEPT_SECONDS),
            ],
            deadline,
        )
        return True
    return False


def read_states(others: Iterable[str] = ()) -> dict[str, str]:
    """Return the states of all registered breakers and of others, by name.

    A state is closed, open or half-open. Raises `StoreError`.
    """
    store = get_store(background=True)
    deadline = Deadline(READ_SECONDS)
    registered = store.execute(b"ZRANGE", _names_key(), b"0", b"-1", deadline=deadline)
    names = sorted({*(name.decode() for name in registered), *others})
    commands = [(b"HGET", state_key(tag_of(name)), b"state") for name in names]
    states = store.execute_all(commands, deadline) if commands else []
    return {name: (state or b"closed").decode() for name, state in zip(names, states, strict=True)}
