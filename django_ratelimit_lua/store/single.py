"""The store of one server, or of whoever is the master of several."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from ..limits.call import Call, StaleRules
from ..limits.decision import Decision
from .alias import Alias
from .base import Store, asks, check_time, decides, forgets
from .exchange import Question
from .node import Node
from .patience import Patience


class SingleStore(Store):
    """Performs calls on one server, each within `timeout` seconds."""

    def __init__(self, alias: Alias, timeout: float, *, background: bool) -> None:
        super().__init__(alias.name, timeout, background=background)
        self._node = Node(alias, timeout, background=background)

    @property
    def is_paused(self) -> bool:
        """See `Store`."""
        return self._node.is_paused

    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        """See `Store`."""
        return self._decided(call, self._exchange(decides(call), patience))

    async def adecide(self, call: Call, patience: Patience | None = None) -> Decision:
        """See `Store`."""
        return self._decided(call, await self._aexchange(decides(call), patience))

    def delete(self, call: Call) -> None:
        """See `Store`."""
        self._exchange(forgets(call))

    async def adelete(self, call: Call) -> None:
        """See `Store`."""
        await self._aexchange(forgets(call))

    def execute(self, *parts: bytes, patience: Patience | None = None) -> Any:
        """See `Store`."""
        return self._exchange(asks(*parts), patience)

    def close(self) -> None:
        """See `Store`."""
        self._node.close()

    def _exchange(self, question: Question, patience: Patience | None = None) -> Any:
        patience = patience or Patience(self._timeout)
        check_time(patience)
        try:
            answer = self._node.exchange(question, patience)
        except StaleRules:
            self._answered()
            raise
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        self._answered()
        return answer

    async def _aexchange(self, question: Question, patience: Patience | None = None) -> Any:
        patience = patience or Patience(self._timeout)
        check_time(patience)
        try:
            answer = await self._node.aexchange(question, patience)
        except StaleRules:
            self._answered()
            raise
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        self._answered()
        return answer
