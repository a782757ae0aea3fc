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
from .blocking import Connection
from .cluster import Cluster, SendToNode
from .commands import Address, Command, decision_command, reset_command
from .connection_params import ConnectionParams
from .deadline import Deadline, current_page
from .server import Store

T = TypeVar("T")

REFUSES = Limit("never", "0/s", algorithm="fixed_window")
"""With this limit a hit is refused, so that the other limits only count what they count of refused
hits. It has no state.
"""


class Send(Protocol):
    """Sends a command to the node of a hash slot, and returns the answer. Raises `StoreError`."""

    async def __call__(self, slot: int, command: Command[T], /) -> T: ...


class DecidedLimit(NamedTuple):
    """A charge of a call, its position in the call, and the state of its limit."""

    place: int
    charge: Charge
    state: LimitState


class HashSlotDecision(NamedTuple):
    """What one hash slot has decided of a call."""

    slot: int
    decision: Decision
    limits: Sequence[DecidedLimit]


class ShardedStore(Store):
    """Performs calls on a cluster, each within `timeout` seconds, however many nodes that takes."""

    compares_rules = False

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        super().__init__(params, timeout, background=background)
        self._cluster = Cluster(params.nodes)

    def decide(self, call: Call, deadline: Deadline | None = None) -> Decision:
        return _complete(self._decide(call, self._blocking(deadline)))

    def adecide(self, call: Call, deadline: Deadline | None = None) -> Awaitable[Decision]:
        return self._decide(call, self._awaiting(deadline))

    def reset(self, call: Call) -> int:
        return _complete(self._reset(call, self._blocking()))

    def areset(self, call: Call) -> Awaitable[int]:
        return self._reset(call, self._awaiting())

    def _masters(self) -> Collection[Address]:
        self.execute(b"EXISTS", b"0")  # The masters are known after any command.
        return self._cluster.masters

    def _exchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        return _complete(self._blocking(deadline)(slot_of(command.key), command))

    def _exchange_all(
        self, commands: Iterable[Command[T]], deadline: Deadline | None = None
    ) -> list[T]:
        return [self._exchange(command, deadline) for command in commands]

    async def _aexchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        return await self._awaiting(deadline)(slot_of(command.key), command)

    def _portions(
        self, items: Sequence[tuple[bytes, ...]]
    ) -> Iterator[Sequence[tuple[bytes, ...]]]:
        for places in _places_by_slot([item[0] for item in items]).values():
            yield from super()._portions([items[place] for place in places])

    def _server_of(self, key: bytes) -> Address | None:
        return self._cluster.master(slot_of(key))

    async def _decide(self, call: Call, send: Send) -> Decision:
        if not call.charges:
            return await send(slot_of(call.fence), decision_command(call))
        # The rules are in another hash slot.
        alone = call._replace(revision=None, fence=b"")
        decision = await self._decide_limits(alone, send)
        return decision._replace(revision=call.revision_number)

    async def _decide_limits(self, call: Call, send: Send) -> Decision:
        """Decide the limits of a call, one hash slot after the other, all or nothing."""
        places_by_slot = _places_by_slot([charge.digest for charge in call.charges])
        if len(places_by_slot) == 1:
            return await send(next(iter(places_by_slot)), decision_command(call))
        decided: list[HashSlotDecision] = []
        try:
            for slot, places in places_by_slot.items():
                decided.append(await _decide_part(call, decided, slot, places, send))
        except StoreError:
            await _refund(call, decided, 0, send)
            raise
        allowed = all(part.decision.allowed for part in decided)
        granted = 0
        if allowed:
            combine = min if call.partial else max
            granted = combine(part.decision.granted for part in decided)
        states = {limit.place: limit.state for part in decided for limit in part.limits}
        if call.partial or not allowed:
            states.update(await _refund(call, decided, granted, send))
        return Decision(
            allowed,
            tuple(states[place] for place in range(len(call.charges))),
            granted,
            max(part.decision.wait for part in decided),
            moment=decided[0].decision.moment,
        )

    async def _reset(self, call: Call, send: Send) -> int:
        deleted = 0
        keys = call.state_keys()
        places_by_slot = _places_by_slot(keys)
        if call.operation == "unban":  # Nothing is deleted, and one message is enough.
            places_by_slot = _places_by_slot(keys[:1])
        for slot, places in places_by_slot.items():
            part = [keys[place] for place in places]
            command = reset_command(call, self.channel(call.prefix), part)
            deleted += await send(slot, command)
        return deleted

    def _blocking(self, deadline: Deadline | None = None) -> Send:
        deadline = self._deadline(deadline)
        page = current_page()
        if page is not None:
            deadline = page.limit(deadline)
        return partial(self._execute, self._send, deadline)

    def _awaiting(self, deadline: Deadline | None = None) -> Send:
        return partial(self._execute, self._asend, self._deadline(deadline))

    async def _execute(
        self, send: SendToNode, deadline: Deadline, slot: int, command: Command[T]
    ) -> T:
        try:
            answer = await self._cluster.exchange(slot, command, deadline, send)
        except (RedisError, OSError) as error:
            raise self._record_failure(error, self._cluster.master(slot)) from error
        if self._is_down:
            self._record_reply(self._cluster.master(slot))
        return answer

    async def _send(
        self, address: Address, command: Command[T], deadline: Deadline, pause: float
    ) -> T:
        """Send a command, and block this thread until the reply."""
        if pause:
            time.sleep(pause)
        return self._node_at(address).use(Connection.execute, command, deadline)

    async def _asend(
        self, address: Address, command: Command[T], deadline: Deadline, pause: float
    ) -> T:
        """Send a command, without blocking the event loop."""
        if pause:
            await asyncio.sleep(pause)
        node = self._node_at(address)
        try:
            answer = await node.aexchange(command, deadline)
        except (RedisError, OSError) as error:
            node.record_error(error)
            raise
        node.availability.record_reply()
        return answer

    def _record_reply(self, node: Address | None = None) -> None:
        for address in list(self._nodes.keys() - self._cluster.nodes):
            gone = self._nodes.pop(address, None)
            if gone is not None:
                gone.close()
        with self._lock:  # A node that is not a master any more need not answer.
            self._failing &= self._cluster.masters
        super()._record_reply(node)


async def _decide_part(
    call: Call, decided: Sequence[HashSlotDecision], slot: int, places: Sequence[int], send: Send
) -> HashSlotDecision:
    """Decide the charges of a call that are in one hash slot, after other parts were decided."""
    charges = [call.charges[place] for place in places]
    is_hit = call.operation == "hit"
    if is_hit and call.partial and decided:
        most = decided[-1].decision.granted or 1  # A refused partial hit counts one unit.
        charges = [charge._replace(cost=min(charge.cost, most)) for charge in charges]
    part = call._replace(charges=charges)
    if is_hit and not all(each.decision.allowed for each in decided):
        refuses = Charge(REFUSES, charges[0].digest)
        part = call._replace(charges=[*charges, refuses], partial=False)
    decision = await send(slot, decision_command(part))
    states = decision.limits[: len(places)]  # Without that of `REFUSES`.
    return HashSlotDecision(slot, decision, list(map(DecidedLimit, places, charges, states)))


async def _refund(
    call: Call, decided: Sequence[HashSlotDecision], keep: int, send: Send
) -> dict[int, LimitState]:
    """Refund the units that a hit has taken, except `keep` units of each limit.

    Return the new states of these limits by position. Units that cannot be refunded stay counted.
    """
    states: dict[int, LimitState] = {}
    for part in decided:
        for place, charge, state in part.limits:
            units = _units_to_refund(call, part, charge, keep)
            if units <= 0 or not state.allowed:
                continue
            refund = call._replace(
                operation="refund",
                partial=False,
                hit_at=state.counted_at,
                charges=[charge._replace(cost=units)],
            )
            with suppress(StoreError):
                decision = await send(part.slot, decision_command(refund))
                counted_at = 0
                if keep:  # These units still count since then.
                    counted_at = state.counted_at
                states[place] = decision.limits[0]._replace(counted_at=counted_at)
    return states


def _units_to_refund(call: Call, part: HashSlotDecision, charge: Charge, keep: int) -> int:
    """Return the units that a charge has taken, less those to keep."""
    if call.operation != "hit" or not part.decision.allowed:
        return 0
    taken = charge.cost
    if call.partial:
        taken = part.decision.granted
    if charge.limit.count_denied and not keep:  # Refused hits count: all units, or one if partial.
        return taken - 1 if call.partial else 0
    return taken - keep


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
