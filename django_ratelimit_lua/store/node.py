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
from .exchange import ANSWERS, Question, is_pong
from .patience import Patience, Pulse


class Node:
    """Exchanges commands with one server; after repeated failures, with nobody for a moment.

    In the `background` it asks on.
    """

    def __init__(self, alias: Alias, timeout: float, *, background: bool) -> None:
        pulse = Pulse()
        self._timeout = timeout
        self._connections = Connections(alias, pulse)
        self._async_connections = AsyncConnections(alias, pulse)
        self._breaker = None if background else Breaker(self._answers)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is asked at the moment."""
        return self._breaker is not None and self._breaker.is_open

    def exchange(self, question: Question, patience: Patience) -> Any:
        """See `Connections.exchange`."""
        self._pause()
        try:
            answer = self._connections.exchange(question, patience, self._pause)
        except ANSWERS:
            self._answered()
            raise
        except (RedisError, OSError) as error:
            self._failed(error)
            raise
        self._answered()
        return answer

    async def aexchange(self, question: Question, patience: Patience) -> Any:
        """See `Connections.exchange`."""
        self._pause()
        try:
            answer = await self._async_connections.exchange(question, patience, self._pause)
        except ANSWERS:
            self._answered()
            raise
        except (RedisError, OSError) as error:
            self._failed(error)
            raise
        self._answered()
        return answer

    def close(self) -> None:
        """Close the idle connections of threads, and try nothing more; those of an event loop are closed with it."""
        self._answered()
        self._connections.close()

    def _answers(self) -> bool:
        try:
            self._connections.exchange(Question(wire.PING, is_pong), Patience(self._timeout))
        except ResponseError:
            return True  # So is an error.
        except (RedisError, OSError):
            return False
        return True

    def _pause(self) -> None:
        if self._breaker is not None and not self._breaker.may_ask():
            raise Paused("Redis has failed repeatedly; it is asked again in a moment")

    def _answered(self) -> None:
        if self._breaker is not None:
            self._breaker.succeeded()

    def _failed(self, error: Exception) -> None:
        # Who answers with an error costs no deadline, and may answer the next call as it should.
        if self._breaker is not None and not isinstance(error, Paused):
            self._breaker.failed()


class Paused(RedisConnectionError):  # noqa: N818 - named as redis-py names its own
    """Nobody is asked at the moment."""
