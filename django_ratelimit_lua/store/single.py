"""The store of one server, or of whoever is the master of several."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from ..limits.call import Call
from ..limits.decision import Decision
from . import wire
from .alias import Alias
from .base import Store, check_time
from .node import Node


class SingleStore(Store):
    """Performs calls on one server, each within `timeout` seconds."""

    def __init__(self, alias: Alias, timeout: float, *, persistent: bool) -> None:
        super().__init__(alias.name, persistent=persistent)
        self._node = Node(alias, timeout, persistent=persistent)

    @property
    def is_paused(self) -> bool:
        """See `Store`."""
        return self._node.is_paused

    def run(self, call: Call, until: float | None = None) -> Decision:
        """See `Store`."""
        return self._read(call, self._exchange(wire.evalsha(call), wire.SCRIPT_LOAD, until))

    async def arun(self, call: Call, until: float | None = None) -> Decision:
        """See `Store`."""
        return self._read(call, await self._aexchange(wire.evalsha(call), wire.SCRIPT_LOAD, until))

    def forget(self, call: Call) -> None:
        """See `Store`."""
        self._exchange(wire.delete(call))
        self._answered()

    async def aforget(self, call: Call) -> None:
        """See `Store`."""
        await self._aexchange(wire.delete(call))
        self._answered()

    def ask(self, *parts: bytes, until: float | None = None) -> Any:
        """See `Store`."""
        reply = self._exchange(wire.command(*parts), until=until)
        self._answered()
        return reply

    def close(self) -> None:
        """See `Store`."""
        self._node.close()

    def _exchange(self, command: bytes, load: bytes = b"", until: float | None = None) -> Any:
        check_time(until)
        try:
            return self._node.exchange(command, load, until)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error

    async def _aexchange(self, command: bytes, load: bytes = b"", until: float | None = None) -> Any:
        check_time(until)
        try:
            return await self._node.aexchange(command, load, until)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
