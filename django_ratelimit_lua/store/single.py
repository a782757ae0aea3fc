"""The store of one server, or of whoever is the master of several."""

from __future__ import annotations

import logging
import time
from typing import Any

from redis.exceptions import RedisError, ResponseError

from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from ..signals import store_down, store_up
from . import wire
from .alias import Alias
from .node import Node

logger = logging.getLogger("django_ratelimit_lua")


def check_time(until: float | None) -> None:
    """Raises `StoreError` where it is too late to ask; that is nobody's failure."""
    if until is not None and time.monotonic() >= until:
        raise StoreError("no time is left to ask Redis")


class Store:
    """Performs calls on one cache alias, each within `timeout` seconds.

    After repeated failures nothing is asked for a moment. One that is `persistent` asks on, and leaves it to whoever
    asks to say that it failed.
    """

    def __init__(self, alias: Alias, timeout: float, *, persistent: bool = False) -> None:
        self._name = alias.name
        self._node = Node(alias, timeout, persistent=persistent)
        self._is_silent = persistent
        self._down: set[object] = set()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is asked at the moment, because too much has failed."""
        return self._node.is_paused

    def run(self, call: Call, until: float | None = None) -> Decision:
        """Decide a call; by that moment of the monotonic clock, where one is given. Raises `StoreError`."""
        check_time(until)
        try:
            reply = self._node.exchange(wire.evalsha(call), wire.SCRIPT_LOAD, until)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return self._read(call, reply)

    async def arun(self, call: Call, until: float | None = None) -> Decision:
        """`run`, without blocking the event loop."""
        check_time(until)
        try:
            reply = await self._node.aexchange(wire.evalsha(call), wire.SCRIPT_LOAD, until)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return self._read(call, reply)

    def forget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        try:
            self._node.exchange(wire.delete(call))
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        self._answered()

    async def aforget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        try:
            await self._node.aexchange(wire.delete(call))
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        self._answered()

    def ask(self, *parts: bytes, until: float | None = None) -> Any:
        """The reply to any other command, for what is not on the way of a request. Raises `StoreError`."""
        check_time(until)
        try:
            reply = self._node.exchange(wire.command(*parts), until=until)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        self._answered()
        return reply

    def close(self) -> None:
        """Close the idle connections of threads; those of an event loop are closed with it."""
        self._node.close()

    def _read(self, call: Call, reply: Any, node: object = None) -> Decision:
        if not isinstance(reply, list) and (not isinstance(reply, bytes) or not reply or len(reply) % 8):
            raise self._failed(ResponseError(f"not a reply of our program: {reply!r:.80}"), node)
        self._answered(node)
        decision, cleared = call.read(reply)
        if cleared:
            logger.warning("Cleared %d key(s) of a foreign type under the prefix %r", cleared, call.prefix)
        return decision

    def _answered(self, node: object = None) -> None:
        if self._down:
            self._down.discard(node)
            if not self._down:
                logger.info("Redis of cache %r answers again", self._name)
                store_up.send_robust(Store, alias=self._name)

    def _failed(self, error: Exception, node: object = None) -> StoreError:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if not self._is_silent:
            was_down = bool(self._down)
            self._down.add(node)
            if not was_down:
                logger.error("Redis of cache %r cannot decide limits: %s", self._name, message)
                store_down.send_robust(Store, alias=self._name, error=message)
        return StoreError(message)
