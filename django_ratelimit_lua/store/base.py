"""What every store does, however many servers it has: it performs calls, and tells when that cannot be done."""

from __future__ import annotations

import logging
import struct
import time
from abc import ABC, abstractmethod
from typing import Any

from redis.exceptions import ResponseError

from ..exceptions import StoreError
from ..limits.call import Call, StaleRules
from ..limits.decision import Decision
from ..signals import store_down, store_up

logger = logging.getLogger("django_ratelimit_lua")


def check_time(until: float | None) -> None:
    """Raises `StoreError` where it is too late to ask; that is nobody's failure."""
    if until is not None and time.monotonic() >= until:
        raise StoreError("no time is left to ask Redis")


class Store(ABC):
    """Performs calls on the cache alias of a name.

    After repeated failures nothing is asked until there are answers again. One that is `persistent` asks on, and leaves
    it to whoever asks to say that it failed.
    """

    def __init__(self, name: str, *, persistent: bool) -> None:
        self._name = name
        self._is_persistent = persistent
        self._down: set[object] = set()

    @property
    @abstractmethod
    def is_paused(self) -> bool:
        """Whether somebody is not asked at the moment, because too much has failed."""

    @abstractmethod
    def run(self, call: Call, until: float | None = None) -> Decision:
        """Decide a call; by that moment of the monotonic clock, where one is given. Raises `StoreError`."""

    @abstractmethod
    async def arun(self, call: Call, until: float | None = None) -> Decision:
        """`run`, without blocking the event loop."""

    @abstractmethod
    def forget(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""

    @abstractmethod
    async def aforget(self, call: Call) -> None:
        """`forget`, without blocking the event loop."""

    @abstractmethod
    def ask(self, *parts: bytes, until: float | None = None) -> Any:
        """The reply to any other command, for what is not on the way of a request. Raises `StoreError`."""

    @abstractmethod
    def close(self) -> None:
        """Close the idle connections of threads; those of an event loop are closed with it."""

    def _read(self, call: Call, reply: Any, node: object = None) -> Decision:
        if not isinstance(reply, list) and (not isinstance(reply, bytes) or not reply):
            raise self._failed(ResponseError(f"not a reply of our program: {reply!r:.80}"), node)
        try:
            decision, cleared = call.read(reply)
        except StaleRules:
            self._answered(node)
            raise
        except (ValueError, struct.error) as error:
            raise self._failed(ResponseError(f"not a reply of our program: {reply!r:.80}"), node) from error
        self._answered(node)
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
        if not self._is_persistent:
            was_down = bool(self._down)
            self._down.add(node)
            if not was_down:
                logger.error("Redis of cache %r cannot decide limits: %s", self._name, message)
                store_down.send_robust(Store, alias=self._name, error=message)
        return StoreError(message)
