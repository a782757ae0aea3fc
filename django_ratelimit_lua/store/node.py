"""One server: the connections to it, blocking and not, and a breaker."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from . import wire
from .alias import Alias
from .asynchronous import AsyncConnections
from .blocking import Connections
from .breaker import Breaker


class Node:
    """Exchanges commands with one server; after repeated failures, with nobody for a moment.

    One that is `persistent` asks on.
    """

    def __init__(self, alias: Alias, timeout: float, *, persistent: bool) -> None:
        self._connections = Connections(alias, timeout)
        self._async_connections = AsyncConnections(alias, timeout)
        self._breaker = None if persistent else Breaker(self._answers)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is asked at the moment."""
        return self._breaker is not None and self._breaker.is_open

    def exchange(self, command: bytes, load: bytes = b"", until: float | None = None, ahead: bytes = b"") -> Any:
        """See `Connections.exchange`."""
        self._pause()
        try:
            reply = self._connections.exchange(command, load, until, ahead)
        except (RedisError, OSError) as error:
            self._failed(error)
            raise
        self._answered()
        return reply

    async def aexchange(self, command: bytes, load: bytes = b"", until: float | None = None, ahead: bytes = b"") -> Any:
        """See `Connections.exchange`."""
        self._pause()
        try:
            reply = await self._async_connections.exchange(command, load, until, ahead)
        except (RedisError, OSError) as error:
            self._failed(error)
            raise
        self._answered()
        return reply

    def close(self) -> None:
        """Close the idle connections of threads, and try nothing more; those of an event loop are closed with it."""
        self._answered()
        self._connections.close()

    def _answers(self) -> bool:
        try:
            self._connections.exchange(wire.PING, b"")
        except ResponseError:
            return True  # So is an error.
        except (RedisError, OSError):
            return False
        return True

    def _pause(self) -> None:
        if self._breaker is not None and not self._breaker.may_ask():
            raise RedisConnectionError("Redis has failed repeatedly; it is asked again in a moment")

    def _answered(self) -> None:
        if self._breaker is not None:
            self._breaker.succeeded()

    def _failed(self, error: Exception) -> None:
        # Who answers with an error costs no deadline, and may answer the next call as it should.
        if self._breaker is not None and not isinstance(error, ResponseError):
            self._breaker.failed()
