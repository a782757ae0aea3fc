"""The store of a cluster.

All limits of one identity are in one hash slot, and its node decides them. A call whose keys are in
several hash slots is decided slot by slot, in its own order. Each slot decides its part atomically.
No units are admitted that one limit refuses. After a refusal the remaining slots are only read,
because the decision contains the numbers of every limit. Units that were taken before the refusal
are refunded. Until then other requests find them counted, so a client may be refused that a single
server would have admitted, never the other way round. If the process dies in between, those units
stay counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from redis.crc import key_slot as slot_of
from redis.exceptions import RedisError

from ..exceptions import StoreError
from ..limits.call import REGISTER, Call, Charge, StaleRules
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from .blocking import Link
from .cluster import Ask, Cluster, Steps
from .commands import Address, Question, to_decide, to_execute, to_reset
from .connection_params import ConnectionParams
from .patience import Patience
from .server import MAX_KEYS, Node, Store

T = TypeVar("T")

REFUSES = Limit("never", "0/s", algorithm="fixed_window")
"""With this limit a hit is refused, so that the other limits only count what they count of refused
hits. It has no state.
"""


class Part(NamedTuple):
    """The charges of a call that one hash slot has taken, and their positions in the call."""

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
        return self._drive(self._decide(call, self._patience(patience)))

    async def adecide(self, call: Call, patience: Patience | None = None) -> Decision:
        return await self._adrive(self._decide(call, self._patience(patience)))

    def decide_many(self, calls: Sequence[Call]) -> list[Decision]:
        return [self.decide(call) for call in calls]  # Each may belong to another node.

    def reset(self, call: Call) -> int:
        return self._drive(self._reset(call, self._patience()))

    def areset(self, call: Call) -> Awaitable[int]:
        return self._adrive(self._reset(call, self._patience()))

    def _masters(self) -> list[Node]:
        self.execute(b"EXISTS", b"0")  # The masters are known after any command.
        return [self._node_at(address) for address in self._cluster.masters]

    def _exchange(self, question: Question[T], patience: Patience | None = None) -> T:
        return self._drive(self._ask(slot_of(question.key), question, self._patience(patience)))

    def _exchange_all(
        self, questions: Iterable[Question[T]], patience: Patience | None = None
    ) -> list[T]:
        return [self._exchange(question, patience) for question in questions]

    async def _aexchange(self, question: Question[T], patience: Patience | None = None) -> T:
        steps = self._ask(slot_of(question.key), question, self._patience(patience))
        return await self._adrive(steps)

    def _portions(self, keys: Sequence[bytes]) -> Iterator[Sequence[int]]:
        for places in _places_by_slot(keys).values():
            for first in range(0, len(places), MAX_KEYS):
                yield places[first : first + MAX_KEYS]

    def _server_of(self, key: bytes) -> Address | None:
        return self._cluster.master(slot_of(key))

    def _decide(self, call: Call, patience: Patience) -> Steps[Decision]:
        if not call.charges:
            return (yield from self._decide_at(slot_of(call.fence), call, patience))
        # The rules, the register of bans, and the bans of other identities are in other hash slots.
        alone = call._replace(
            charges=[_without_wider_ban(charge) for charge in call.charges],
            revision=None,
            fence=b"",
            subjects=(),
            registers=False,
        )
        decision = yield from self._decide_limits(alone, patience)
        return decision._replace(revision=call.revision_number)

    def _decide_at(self, slot: int, call: Call, patience: Patience) -> Steps[Decision]:
        return (yield from self._ask(slot, to_decide(call), patience))

    def _decide_limits(self, call: Call, patience: Patience) -> Steps[Decision]:
        """Decide the limits of a call, one hash slot after the other, all or nothing."""
        parts = _places_by_slot([charge.digest for charge in call.charges])
        if len(parts) == 1:
            return (yield from self._decide_at(next(iter(parts)), call, patience))
        is_hit = call.operation == "hit"
        refused = False
        states: dict[int, LimitState] = {}
        taken: list[Part] = []
        decisions: list[Decision] = []
        moments: dict[bytes, int] = {}
        for slot, places in parts.items():
            charges = [call.charges[place] for place in places]
            if is_hit and call.partial and decisions:
                most = decisions[-1].granted or 1  # A refused partial hit counts one unit.
                charges = [charge._replace(cost=min(charge.cost, most)) for charge in charges]
            part = call._replace(charges=charges)
            if is_hit and refused:
                refuses = Charge(REFUSES, charges[0].digest)
                part = call._replace(charges=[*charges, refuses], partial=False)
            try:
                decision = yield from self._decide_at(slot, part, patience)
            except StoreError:
                yield from self._give_back(call, taken, 0, states, patience)
                raise
            decisions.append(decision)
            states.update(zip(places, decision.limits, strict=False))
            if is_hit and decision.allowed:
                taken.append(Part(slot, places, charges, decision))
            refused = refused or not decision.allowed
            moment = decision.moment + round(decision.wait * SECOND)
            moments.update(dict.fromkeys([charge.digest for charge in charges], moment))
        granted = max(decision.granted for decision in decisions)
        if call.partial:
            granted = min(decision.granted for decision in decisions)
        if refused:
            granted = 0
        if refused or call.partial:
            yield from self._give_back(call, taken, granted, states, patience)
        return Decision(
            not refused,
            tuple(states[place] for place in range(len(call.charges))),
            granted,
            max(decision.wait for decision in decisions),
            moment=decisions[0].moment,
            moments=moments,
        )

    def _give_back(
        self,
        call: Call,
        taken: Sequence[Part],
        keep: int,
        states: dict[int, LimitState],
        patience: Patience,
    ) -> Steps[None]:
        """Refund the units that were taken, except `keep` units of each limit.

        Units that cannot be refunded stay counted.
        """
        for slot, places, charges, decision in taken:
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
                    hit_at=state.counted_at or decision.counted_at(charge.digest),
                    charges=[charge._replace(cost=took - kept)],
                )
                with suppress(StoreError):
                    given = yield from self._decide_at(slot, refund, patience)
                    counted_at = 0
                    if keep:  # These units still count since then.
                        counted_at = state.counted_at
                    states[place] = given.limits[0]._replace(counted_at=counted_at)

    def _reset(self, call: Call, patience: Patience) -> Steps[int]:
        latest = 0
        keys = call.state_keys()
        bans = call.ban_keys()
        places_by_slot = _places_by_slot(keys)
        if call.operation == "unban":  # Nothing is deleted, and one message is enough.
            places_by_slot = _places_by_slot(keys[:1])
        for slot, places in places_by_slot.items():
            part = [keys[place] for place in places]
            question = to_reset(call, self.channel(call.prefix), part)
            moment = yield from self._ask(slot, question, patience)
            latest = max(latest, moment)
        if bans:
            removal = to_execute(b"ZREM", call.prefix + REGISTER, *bans)
            yield from self._ask(slot_of(removal.key), removal, patience)
        return latest

    def _ask(self, slot: int, question: Question[T], patience: Patience) -> Steps[T]:
        try:
            answer = yield from self._cluster.exchange(slot, question, patience)
        except (RedisError, OSError) as error:
            raise self._failed(error, self._cluster.master(slot)) from error
        if self._is_down:
            self._answered(self._cluster.master(slot))
        return answer

    def _answered(self, node: Address | None = None) -> None:
        for address in list(self._nodes.keys() - self._cluster.nodes):
            gone = self._nodes.pop(address, None)
            if gone is not None:
                gone.close()
        with self._lock:  # A node that is not a master any more need not answer.
            self._failing &= self._cluster.masters
        super()._answered(node)

    def _drive(self, steps: Steps[T]) -> T:
        proceed: Callable[[Any], Ask | float] = steps.send
        result: object = None
        try:
            while True:
                step = proceed(result)
                proceed = steps.send
                result = None
                try:
                    if isinstance(step, Ask):
                        node = self._node_at(step.address)
                        result = node.use(Link.ask, step.question, step.patience)
                    else:
                        time.sleep(step)
                except (RedisError, OSError, StaleRules) as error:
                    proceed = steps.throw
                    result = error
        except StopIteration as finished:
            answer: T = finished.value
            return answer

    async def _adrive(self, steps: Steps[T]) -> T:
        proceed: Callable[[Any], Ask | float] = steps.send
        result: object = None
        try:
            while True:
                step = proceed(result)
                proceed = steps.send
                result = None
                try:
                    if isinstance(step, Ask):
                        node = self._node_at(step.address)
                        result = await node.aexchange(step.question, step.patience)
                    else:
                        await asyncio.sleep(step)
                except (RedisError, OSError, StaleRules) as error:
                    proceed = steps.throw
                    result = error
        except StopIteration as finished:
            answer: T = finished.value
            return answer


def _places_by_slot(keys: Sequence[bytes]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return places


def _without_wider_ban(charge: Charge) -> Charge:
    """Return a charge without a ban of another identity than the counted one (`ban_key`)."""
    if not charge.banned:
        return charge
    return charge._replace(limit=charge.limit.without_bans(), banned=b"")
