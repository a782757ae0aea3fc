"""Connections for coroutines: one set per event loop, closed with it."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from ..process import leave_to_parent, renew_after_fork
from .alias import Alias, Unreachable
from .sentinel import check_role

GOODBYE_SECONDS = 0.5


class LoopConnections:
    """One event loop's connections to one alias."""

    def __init__(self, alias: Alias, timeout: float) -> None:
        self._alias = alias
        self._timeout = timeout
        self._idle: list[AbstractConnection] = []
        self._turns = asyncio.Semaphore(alias.most_connections)
        self._closer = self._close_with_loop()

    async def start(self) -> None:
        """Register with the running loop, so that its end closes the connections."""
        await anext(self._closer)

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        # asyncio.run, and whatever else calls loop.shutdown_asyncgens, ends this generator with the loop.
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections that are idle."""
        # Their sockets are closed by the loop: wait until it has done so, but not for a peer that does not answer.
        closing = [connection.disconnect() for connection in self._idle]
        self._idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)

    async def exchange(self, command: bytes, load: bytes, until: float | None = None, ahead: bytes = b"") -> Any:
        """See `Connections.exchange`.

        Raises `TimeoutError` when it is time. A connection that was cancelled in the middle of an exchange is closed,
        never used again half-read.
        """
        deadline = time.monotonic() + self._timeout if until is None else until
        async with asyncio.timeout(deadline - time.monotonic()), self._turns:
            connection = self._idle.pop() if self._idle else self._alias.connect_async()
            try:
                if connection._reader is None or connection._reader.at_eof():
                    await self._connect(connection, deadline)
                await connection.send_packed_command([ahead + command], check_health=False)
                try:
                    if ahead:
                        await connection.read_response(disable_decoding=True)
                    return await connection.read_response(disable_decoding=True)
                except NoScriptError:
                    await connection.send_packed_command([load, ahead + command], check_health=False)
                    if ahead:
                        await connection.read_response(disable_decoding=True)
                    await connection.read_response(disable_decoding=True)
                    return await connection.read_response(disable_decoding=True)
            except ReadOnlyError:  # A master that was demoted: who asks next has to look for the new one.
                await connection.disconnect(nowait=True)
                raise
            except ResponseError:
                raise
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                self._idle.append(connection)

    async def _connect(self, connection: Any, deadline: float) -> None:
        await connection.disconnect(nowait=True)
        sentinels = self._alias.sentinels
        if sentinels is not None:
            connection.host, connection.port = await sentinels.amaster(deadline)
        try:
            await connection.connect()
        except RedisConnectionError as error:
            raise Unreachable(str(error)) from error
        if sentinels is not None:
            await connection.send_command("ROLE")
            check_role(await connection.read_response(disable_decoding=True))


class AsyncConnections:
    """A process's connections to one alias, for every event loop it runs."""

    def __init__(self, alias: Alias, timeout: float) -> None:
        self._alias = alias
        self._timeout = timeout
        self._begin()
        renew_after_fork(self._renew)

    def _begin(self) -> None:
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnections] = weakref.WeakKeyDictionary()

    def _renew(self) -> None:
        # To close them would take them out of the selector, which a child shares with its parent.
        leave_to_parent(*self._loops.items())
        self._begin()

    async def exchange(self, command: bytes, load: bytes, until: float | None = None, ahead: bytes = b"") -> Any:
        """See `LoopConnections.exchange`."""
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            # A connection refers to its loop, so loops that ended are let go by hand.
            for other in [other for other in self._loops if other.is_closed()]:
                del self._loops[other]
            connections = self._loops[loop] = LoopConnections(self._alias, self._timeout)
            await connections.start()
        return await connections.exchange(command, load, until, ahead)
