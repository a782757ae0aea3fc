"""The one room that knows Redis: it performs a call, blocking or not, and says so when that fails."""

from __future__ import annotations

import logging
from typing import Any

from django.core.signals import setting_changed
from redis.exceptions import RedisError

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from . import wire
from .alias import Alias, why_unusable
from .asynchronous import AsyncConnections
from .blocking import Connections

__all__ = ["Store", "get_store", "why_unusable"]

logger = logging.getLogger("django_ratelimit_lua")


class Store:
    """Performs calls on one cache alias, each within `timeout` seconds."""

    def __init__(self, name: str, timeout: float) -> None:
        alias = Alias(name)
        self._connections = Connections(alias, timeout)
        self._async_connections = AsyncConnections(alias, timeout)
        self._name = name
        self._down = False

    def run(self, call: Call) -> Decision:
        """Decide a call. Raises `StoreError`."""
        command = wire.evalsha(call)
        try:
            reply = self._connections.exchange(command, wire.SCRIPT_LOAD)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return self._read(call, reply)

    async def arun(self, call: Call) -> Decision:
        """Decide a call without blocking the event loop. Raises `StoreError`."""
        command = wire.evalsha(call)
        try:
            reply = await self._async_connections.exchange(command, wire.SCRIPT_LOAD)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        return self._read(call, reply)

    def forget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        try:
            self._connections.exchange(wire.delete(call), b"")
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    async def aforget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        try:
            await self._async_connections.exchange(wire.delete(call), b"")
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    def ask(self, *parts: bytes) -> Any:
        """The reply to any other command, for what is not on the way of a request. Raises `StoreError`."""
        try:
            return self._connections.exchange(wire.command(*parts), b"")
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the idle connections of threads; those of an event loop are closed with it."""
        self._connections.close()

    def _read(self, call: Call, reply: Any) -> Decision:
        if not isinstance(reply, list) and (not isinstance(reply, bytes) or not reply or len(reply) % 8):
            raise self._failed(StoreError(f"not a reply of our program: {reply!r:.80}"))
        decision, cleared = call.read(reply)
        if cleared:
            logger.warning("Cleared %d key(s) of a foreign type under the prefix %r", cleared, call.prefix)
        if self._down:
            self._down = False
            logger.info("Redis of cache %r answers again", self._name)
        return decision

    def _failed(self, error: Exception) -> StoreError:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if not self._down:
            self._down = True
            logger.error("Redis of cache %r cannot decide limits: %s", self._name, message)
        return StoreError(message)


PATIENCE = 5.0
"""Seconds that a command may take which no request waits for."""

_stores: dict[tuple[str, bool], Store] = {}


def get_store(patient: bool = False) -> Store:
    """The store of the alias that `RATELIMIT_USE_CACHE` names; a patient one for what no request waits for.

    Raises `ImproperlyConfigured`.
    """
    known = (conf.USE_CACHE, patient)
    store = _stores.get(known)
    if store is None:
        store = _stores[known] = Store(conf.USE_CACHE, PATIENCE if patient else conf.TIMEOUT)
    return store


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting in ("CACHES", "RATELIMIT_TIMEOUT"):
        while _stores:
            _stores.popitem()[1].close()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.store")
