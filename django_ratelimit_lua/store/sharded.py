"""The store of a cluster.

All limits of one identity are in one hash slot, and its node decides them. A call whose keys are in
several hash slots is decided slot by slot, in its own order. Each slot decides its part atomically.
A hit is admitted only if every limit allows it. After a refusal the remaining slots are only read,
because the decision contains the numbers of every limit. Units that were taken before the refusal
are refunded. Until then they are counted, so a client may be refused that a single server would
have admitted. A client that a single server would have refused is never admitted. If the process
dies before the refund, the units stay counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from redis.crc import key_slot as slot_of
from redis.exceptions import RedisError

from ..exceptions import StoreError
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from .blocking import Link
from .cluster import Cluster, Send
from .commands import Address, Question, to_decide, to_reset
from .connection_params import ConnectionParams
from .deadline import current_deadline
from .patience import Patience
from .server import MAX_KEYS, Store

T = TypeVar("T")

REFUSES = Limit("never", "0/s", algorithm="fixed_window")
"""With this limit a hit is refused, so that the other limits only count what they count of refused
hits. It has no state.
"""


class AskSlot(Protocol):
    """Sends a command to the node of a hash slot, and returns the answer. Raises `StoreError`."""

    async def __call__(self, slot: int, question: Question[T], /) -> T: ...


class Part(NamedTuple):
    """The charges of a call that one hash slot has decided, and their positions in the call."""

    slot: int
    places: Sequence[int]
    charges: Sequence[Charge]
    decision: Decision


class ShardedStore(Store):
    """Performs calls on a cluster, each within `timeout` seconds, however many nodes that takes."""

    compares_rules = False

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        super().__init__(params, timeout, background=background)
        self._cluster = Cluster(params.nodes)

    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        return _complete(self._decide(call, self._blocking(patience)))

    def adecide(self, call: Call, patience: Patience | None = None) -> Awaitable[Decision]:
        return self._decide(call, self._awaiting(patience))

    def reset(self, call: Call) -> int:
        return _complete(self._reset(call, self._blocking()))

    def areset(self, call: Call) -> Awaitable[int]:
        return self._reset(call, self._awaiting())

    def _masters(self) -> Collection[Address]:
        self.execute(b"EXISTS", b"0")  # The masters are known after any command.
        return self._cluster.masters

    def _exchange(self, question: Question[T], patience: Patience | None = None) -> T:
        return _complete(self._blocking(patience)(slot_of(question.key), question))

    def _exchange_all(
        self, questions: Iterable[Question[T]], patience: Patience | None = None
    ) -> list[T]:
        return [self._exchange(question, patience) for question in questions]

    async def _aexchange(self, question: Question[T], patience: Patience | None = None) -> T:
        return await self._awaiting(patience)(slot_of(question.key), question)

    def _portions(self, keys: Sequence[bytes]) -> Iterator[Sequence[int]]:
        for places in _places_by_slot(keys).values():
            for first in range(0, len(places), MAX_KEYS):
                yield places[first : first + MAX_KEYS]

    def _server_of(self, key: bytes) -> Address | None:
        return self._cluster.master(slot_of(key))

    async def _decide(self, call: Call, ask: AskSlot) -> Decision:
        if not call.charges:
            return await ask(slot_of(call.fence), to_decide(call))
        # The rules are in another hash slot.
        alone = call._replace(revision=None, fence=b"")
        decision = await self._decide_limits(alone, ask)
        return decision._replace(revision=call.revision_number)

    async def _decide_limits(self, call: Call, ask: AskSlot) -> Decision:
        """Decide the limits of a call, one hash slot after the other, all or nothing."""
        parts = _places_by_slot([charge.digest for charge in call.charges])
        if len(parts) == 1:
            return await ask(next(iter(parts)), to_decide(call))
        is_hit = call.operation == "hit"
        refused = False
        decided: list[Part] = []
        for slot, places in parts.items():
            charges = [call.charges[place] for place in places]
            if is_hit and call.partial and decided:
                most = decided[-1].decision.granted or 1  # A refused partial hit counts one unit.
                charges = [charge._replace(cost=min(charge.cost, most)) for charge in charges]
            question = call._replace(charges=charges)
            if is_hit and refused:
                refuses = Charge(REFUSES, charges[0].digest)
                question = call._replace(charges=[*charges, refuses], partial=False)
            try:
                decision = await ask(slot, to_decide(question))
            except StoreError:
                await self._give_back(call, decided, 0, ask)
                raise
            decision = decision._replace(
                limits=decision.limits[: len(places)]
            )  # Without `REFUSES`.
            decided.append(Part(slot, places, charges, decision))
            refused = refused or not decision.allowed
        decisions = [part.decision for part in decided]
        granted = max(decision.granted for decision in decisions)
        if call.partial:
            granted = min(decision.granted for decision in decisions)
        if refused:
            granted = 0
        states: dict[int, LimitState] = {}
        for part in decided:
            states.update(zip(part.places, part.decision.limits, strict=True))
        if refused or call.partial:
            states.update(await self._give_back(call, decided, granted, ask))
        return Decision(
            not refused,
            tuple(states[place] for place in range(len(call.charges))),
            granted,
            max(decision.wait for decision in decisions),
            moment=decisions[0].moment,
        )

    async def _give_back(
        self, call: Call, decided: Sequence[Part], keep: int, ask: AskSlot
    ) -> dict[int, LimitState]:
        """Refund the units that a hit has taken, except `keep` units of each limit.

        Return the new states of these limits. Units that cannot be refunded stay counted.
        """
        states: dict[int, LimitState] = {}
        for slot, places, charges, decision in decided:
            if call.operation != "hit" or not decision.allowed:
                continue
            for place, charge, state in zip(places, charges, decision.limits, strict=True):
                took = charge.cost
                kept = keep
                if call.partial:
                    took = decision.granted
                if charge.limit.count_denied and not keep:  # Refused hits count.
                    kept = took
                    if call.partial:
                        kept = 1
                if not state.allowed or took <= kept:
                    continue
                refund = call._replace(
                    operation="refund",
                    partial=False,
                    hit_at=state.counted_at,
                    charges=[charge._replace(cost=took - kept)],
                )
                with suppress(StoreError):
                    given = await ask(slot, to_decide(refund))
                    counted_at = 0
                    if keep:  # These units still count since then.
                        counted_at = state.counted_at
                    states[place] = given.limits[0]._replace(counted_at=counted_at)
        return states

    async def _reset(self, call: Call, ask: AskSlot) -> int:
        deleted = 0
        keys = call.state_keys()
        places_by_slot = _places_by_slot(keys)
        if call.operation == "unban":  # Nothing is deleted, and one message is enough.
            places_by_slot = _places_by_slot(keys[:1])
        for slot, places in places_by_slot.items():
            part = [keys[place] for place in places]
            question = to_reset(call, self.channel(call.prefix), part)
            deleted += await ask(slot, question)
        return deleted

    def _blocking(self, patience: Patience | None = None) -> AskSlot:
        patience = self._patience(patience)
        deadline = current_deadline()
        if deadline is not None:
            patience = deadline.limit(patience)
        return partial(self._ask, self._send, patience)

    def _awaiting(self, patience: Patience | None = None) -> AskSlot:
        return partial(self._ask, self._asend, self._patience(patience))

    async def _ask(self, send: Send, patience: Patience, slot: int, question: Question[T]) -> T:
        try:
            answer = await self._cluster.exchange(slot, question, patience, send)
        except (RedisError, OSError) as error:
            raise self._failed(error, self._cluster.master(slot)) from error
        if self._is_down:
            self._answered(self._cluster.master(slot))
        return answer

    async def _send(
        self, address: Address, question: Question[T], patience: Patience, pause: float
    ) -> T:
        """Send a command, and block this thread until the reply."""
        if pause:
            time.sleep(pause)
        return self._node_at(address).use(Link.ask, question, patience)

    async def _asend(
        self, address: Address, question: Question[T], patience: Patience, pause: float
    ) -> T:
        """Send a command, without blocking the event loop."""
        if pause:
            await asyncio.sleep(pause)
        node = self._node_at(address)
        try:
            answer = await node.aexchange(question, patience)
        except (RedisError, OSError) as error:
            node.note(error)
            raise
        node.breaker.succeeded()
        return answer

    def _answered(self, node: Address | None = None) -> None:
        for address in list(self._nodes.keys() - self._cluster.nodes):
            gone = self._nodes.pop(address, None)
            if gone is not None:
                gone.close()
        with self._lock:  # A node that is not a master any more need not answer.
            self._failing &= self._cluster.masters
        super()._answered(node)


def _complete(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that blocks instead of suspending itself."""
    try:
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    raise AssertionError("a blocking exchange was suspended")


def _places_by_slot(keys: Sequence[bytes]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return places
