"""The store of a cluster: every identity's limits in one slot, decided by whoever has that slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from ..limits.call import Call, StaleRules
from ..limits.decision import Decision
from . import wire
from .alias import Alias
from .base import Store, asks, check_time, decides, forgets
from .cluster import Ask, Cluster, Steps, slot_of
from .exchange import Question
from .freshness import fence, without
from .node import Node
from .patience import Patience
from .sentinel import Address
from .shards import Room, in_turn, parts_of

RULES_SHARE = 4
"""A request waits for the rules' node for one of so many parts of its time at most."""


class ShardedStore(Store):
    """Performs calls on a cluster, each within `timeout` seconds, however many nodes it takes."""

    def __init__(self, alias: Alias, timeout: float, *, background: bool) -> None:
        super().__init__(alias.name, timeout, background=background)
        self._alias = alias
        self._nodes: dict[Address, Node] = {}
        self._cluster = Cluster(alias.nodes)
        self._room = Room()

    @property
    def is_paused(self) -> bool:
        """See `Store`."""
        return any(node.is_paused for node in list(self._nodes.values()))

    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        """See `Store`."""
        decision: Decision = self._drive(self._decide(call, self._patience(patience)))
        return decision

    async def adecide(self, call: Call, patience: Patience | None = None) -> Decision:
        """See `Store`."""
        decision: Decision = await self._adrive(self._decide(call, self._patience(patience)))
        return decision

    def delete(self, call: Call) -> None:
        """See `Store`."""
        self._drive(self._forget(call, self._patience()))

    async def adelete(self, call: Call) -> None:
        """See `Store`."""
        await self._adrive(self._forget(call, self._patience()))

    def execute(self, *parts: bytes, patience: Patience | None = None) -> Any:
        """See `Store`."""
        slot = slot_of(wire.key_of(*parts))
        return self._drive(self._exchange(slot, asks(*parts), self._patience(patience)))

    def close(self) -> None:
        """See `Store`."""
        for node in self._nodes.values():
            node.close()

    def _patience(self, patience: Patience | None = None) -> Patience:
        patience = patience or Patience(self._timeout)
        check_time(patience)
        return patience

    def _decide(self, call: Call, patience: Patience) -> Generator[Any, Any, Decision]:
        revision = call.revision_number
        if call.revision is not None:
            asking = call.fence
            # A master of the rules that hangs leaves the others the time to decide.
            share = patience.share(RULES_SHARE if call.charges else 1)
            try:
                yield from fence.verify(call, lambda one: self._ask(one, asking, share), needed=not call.charges)
            finally:
                patience.take_back(share)
            call = without(call)
        if not call.charges:
            return Decision(True, revision=revision)

        def ask(part: Call) -> Generator[Any, Any, Decision]:
            decision = yield from self._ask(part, _key_of(part.charges[0].digest), patience)
            self._room.note(part, decision)
            return decision

        first = call.charges[0].digest
        if all(charge.digest == first for charge in call.charges):
            one = yield from self._ask(call, _key_of(first), patience)
            if not one.allowed:
                self._room.note(call, one)
            return Decision(one.allowed, one.limits, one.granted, one.wait, moment=one.moment, revision=revision)
        parts = parts_of(call, lambda digest: slot_of(_key_of(digest)), self._room)
        decision = yield from (ask(parts[0].call) if len(parts) == 1 else in_turn(call, parts, ask))
        return replace(decision, revision=revision)

    def _ask(self, call: Call, key: bytes, patience: Patience) -> Generator[Any, Any, Decision]:
        slot = slot_of(key)
        answer = yield from self._exchange(slot, decides(call), patience)
        return self._decided(call, answer)

    def _forget(self, call: Call, patience: Patience) -> Steps:
        for part in parts_of(call, lambda digest: slot_of(_key_of(digest)), self._room):
            slot = slot_of(_key_of(part.call.charges[0].digest))
            yield from self._exchange(slot, forgets(part.call), patience)

    def _exchange(self, slot: int, question: Question, patience: Patience) -> Steps:
        try:
            answer = yield from self._cluster.exchange(slot, question, patience)
        except StaleRules:
            self._answered(self._cluster.master(slot))
            raise
        except (RedisError, OSError) as error:
            raise self._failed(error, self._cluster.master(slot)) from error
        self._answered(self._cluster.master(slot))
        return answer

    def _answered(self, node: object = None) -> None:
        if self._is_down:
            for address in list(self._nodes.keys() - self._cluster.nodes):
                gone = self._nodes.pop(address, None)
                if gone is not None:
                    gone.close()
            with self._lock:  # Whoever is no master any more need not answer.
                self._failing &= self._cluster.masters
            super()._answered(node)

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            made = Node(self._alias.at(address), self._timeout, background=self._is_background)
            node = self._nodes.setdefault(address, made)
        return node

    def _drive(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = None
                    if isinstance(step, Ask):
                        answer = self._node_at(step.address).exchange(step.question, step.patience)
                    else:
                        step.patience.left -= step.seconds
                        time.sleep(step.seconds)
                except (RedisError, OSError, StaleRules) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as finished:
            return finished.value

    async def _adrive(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = None
                    if isinstance(step, Ask):
                        answer = await self._node_at(step.address).aexchange(step.question, step.patience)
                    else:
                        step.patience.left -= step.seconds
                        await asyncio.sleep(step.seconds)
                except (RedisError, OSError, StaleRules) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as finished:
            return finished.value


def _key_of(digest: bytes) -> bytes:
    """What all keys of an identity have in common for a cluster."""
    return b"{%b}" % digest
