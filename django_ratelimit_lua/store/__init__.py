"""The one room that knows Redis: it performs a call, blocking or not, and says so when that fails."""

from __future__ import annotations

import logging
from typing import Any

from django.core.signals import setting_changed
from redis.exceptions import RedisError, ResponseError

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from ..signals import store_down, store_up
from . import wire
from .alias import Alias, why_unusable
from .asynchronous import AsyncConnections
from .blocking import Connections
from .breaker import Breaker

__all__ = ["Store", "get_store", "why_unusable"]

logger = logging.getLogger("django_ratelimit_lua")


class Store:
    """Performs calls on one cache alias, each within `timeout` seconds.

    After repeated failures nothing is asked for a moment. One that is `persistent` asks on, and leaves it to whoever
    asks to say that it failed.
    """

    def __init__(self, name: str, timeout: float, *, persistent: bool = False) -> None:
        alias = Alias(name)
        self._connections = Connections(alias, timeout)
        self._async_connections = AsyncConnections(alias, timeout)
        self._name = name
        self._down = False
        self._breaker = None if persistent else Breaker()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is asked at the moment, because too much has failed."""
        return self._breaker is not None and self._breaker.is_open

    def run(self, call: Call) -> Decision:
        """Decide a call. Raises `StoreError`."""
        return self._read(call, self._exchange(wire.evalsha(call), wire.SCRIPT_LOAD))

    async def arun(self, call: Call) -> Decision:
        """Decide a call without blocking the event loop. Raises `StoreError`."""
        return self._read(call, await self._aexchange(wire.evalsha(call), wire.SCRIPT_LOAD))

    def forget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        self._exchange(wire.delete(call))
        self._answered()

    async def aforget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""
        await self._aexchange(wire.delete(call))
        self._answered()

    def ask(self, *parts: bytes) -> Any:
        """The reply to any other command, for what is not on the way of a request. Raises `StoreError`."""
        reply = self._exchange(wire.command(*parts))
        self._answered()
        return reply

    def _exchange(self, command: bytes, load: bytes = b"") -> Any:
        self._pause()
        try:
            return self._connections.exchange(command, load)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    async def _aexchange(self, command: bytes, load: bytes = b"") -> Any:
        self._pause()
        try:
            return await self._async_connections.exchange(command, load)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the idle connections of threads; those of an event loop are closed with it."""
        self._connections.close()

    def _read(self, call: Call, reply: Any) -> Decision:
        if not isinstance(reply, list) and (not isinstance(reply, bytes) or not reply or len(reply) % 8):
            raise self._failed(ResponseError(f"not a reply of our program: {reply!r:.80}"))
        self._answered()
        decision, cleared = call.read(reply)
        if cleared:
            logger.warning("Cleared %d key(s) of a foreign type under the prefix %r", cleared, call.prefix)
        return decision

    def _pause(self) -> None:
        if self._breaker is not None and not self._breaker.may_ask():
            raise StoreError("Redis has failed repeatedly; it is asked again in a moment")

    def _answered(self) -> None:
        if self._breaker is not None:
            self._breaker.succeeded()
        if self._down:
            self._down = False
            logger.info("Redis of cache %r answers again", self._name)
            store_up.send_robust(Store, alias=self._name)

    def _failed(self, error: Exception) -> StoreError:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # Who answers with an error costs no deadline, and may answer the next call as it should.
        if self._breaker is not None and not isinstance(error, ResponseError):
            self._breaker.failed()
        if self._breaker is not None and not self._down:
            self._down = True
            logger.error("Redis of cache %r cannot decide limits: %s", self._name, message)
            store_down.send_robust(Store, alias=self._name, error=message)
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
        store = _stores[known] = Store(conf.USE_CACHE, PATIENCE if patient else conf.TIMEOUT, persistent=patient)
    return store


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting in ("CACHES", "RATELIMIT_TIMEOUT"):
        while _stores:
            _stores.popitem()[1].close()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.store")
