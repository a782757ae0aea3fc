"""The store of a cluster, and the nodes and hash slots that it knows.

All limits of one identity are in one hash slot, and its node decides them. A call with keys in
several hash slots is decided slot by slot, in its own order. Each slot decides its part atomically.
A hit is admitted only if every limit allows it. After a refusal the remaining slots are only read,
because the decision contains the numbers of every limit. Units that were taken before the refusal
are refunded. Until then they are counted, so a client may be refused that a single server would
have admitted. A client that a single server would have refused is never admitted. If the process
dies before the refund, the units stay counted.

See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED, ASK, CLUSTER
SLOTS).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from redis.crc import key_slot as slot_of
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from ..exceptions import StoreError
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..process import Clock
from ..process.forks import chance
from .commands import (
    Address,
    Command,
    Reply,
    Unreachable,
    decision_command,
    encode,
    reset_command,
)
from .connection_params import ConnectionParams
from .deadline import Deadline, current_page
from .server import Store

T = TypeVar("T")

SLOTS = 16_384
MAX_REDIRECTIONS = 8
MAP_SECONDS = 0.2
"""Seconds between two readings of the map while a master does not answer."""
TRY_AGAIN = 0.005
"""Seconds between two attempts while a hash slot moves and some keys of a call do not exist yet."""
_ASKING = encode(b"ASKING")
_CLUSTER_SLOTS = encode(b"CLUSTER", b"SLOTS")


SendToNode = Callable[[Address, Command[Any], Deadline, float], Awaitable[Any]]
"""Sends a command to a node after a pause in seconds, and returns the answer."""


class Attempt(NamedTuple):
    """Where to send a command, what to send immediately before it, and how long to pause first."""

    address: Address
    ahead: bytes = b""
    pause: float = 0.0


class Cluster:
    """The nodes of a cluster that this process knows.

    The node that has a hash slot is the master of the slot.
    """

    def __init__(self, nodes: Sequence[Address]) -> None:
        self._first = tuple(nodes)
        self._masters: list[Address | None] = []
        self._others: tuple[Address, ...] = ()
        self._failing: set[Address] = set()
        self._is_moved = False
        self._read_at = float("-inf")

    @property
    def masters(self) -> set[Address]:
        """Return the masters of all hash slots."""
        return {address for address in self._masters if address is not None}

    @property
    def nodes(self) -> set[Address]:
        """Return all nodes, including replicas and the nodes that the alias names."""
        return {*self.masters, *self._others, *self._first}

    def master(self, slot: int) -> Address | None:
        """Return the master of a hash slot, or None if it is not known."""
        if not self._masters:
            return None
        return self._masters[slot]

    async def exchange(
        self, slot: int, command: Command[T], deadline: Deadline, send: SendToNode
    ) -> T:
        """Send a command to the master of a hash slot, and return the answer.

        Raises the errors of redis-py and of the command. A command that may have been executed is
        not sent again. One that was redirected, or could not be sent, is. One that has to wait for
        its hash slot to move is sent again until no time is left.
        """
        is_doubtful = bool(self._failing or self._is_moved)
        if not self._masters or (is_doubtful and self._begin_reading_map()):
            await self.refresh_map(deadline, send)
        attempt = Attempt(self._require_master(slot))
        redirections = 0
        while redirections < MAX_REDIRECTIONS:
            address, ahead, pause = attempt
            try:
                answer: T = await send(address, command._replace(ahead=ahead), deadline, pause)
            except (RedisError, OSError) as raised:
                error = _with_kind(raised)
                next_attempt = await self._next_attempt(slot, attempt, error, deadline, send)
                if next_attempt is None:
                    raise
                if not isinstance(error, TryAgainError):
                    redirections += 1
                attempt = next_attempt
            else:
                self._failing.discard(address)
                return answer
        raise RedisConnectionError(f"the cluster redirected a command {MAX_REDIRECTIONS} times")

    async def _next_attempt(
        self, slot: int, attempt: Attempt, error: Exception, deadline: Deadline, send: SendToNode
    ) -> Attempt | None:
        """Record why an attempt has failed, and return the next one.

        None if the command has failed, because it may have been executed, or nothing more can be
        tried.
        """
        if isinstance(error, TryAgainError) and deadline.left > TRY_AGAIN:
            deadline.left -= TRY_AGAIN
            return attempt._replace(pause=TRY_AGAIN)
        if isinstance(error, AskError):
            return self._redirect(slot, attempt.address, error)
        if _is_without_node(error):
            master = await self._find_other_master(slot, attempt.address, deadline, send)
            return None if master is None else Attempt(master)
        if not isinstance(error, ResponseError):
            self._failing.add(attempt.address)
        return None

    def _redirect(self, slot: int, address: Address, error: AskError) -> Attempt:
        """Store where a hash slot has moved, and return the attempt at the node named there."""
        to = (error.host or address[0], error.port)
        if not isinstance(error, MovedError):  # A subclass of `AskError`.
            return Attempt(to, _ASKING)
        self._masters[slot] = to
        self._is_moved = True
        return Attempt(to)

    async def _find_other_master(
        self, slot: int, address: Address, deadline: Deadline, send: SendToNode
    ) -> Address | None:
        """Record that a node fails, and return the master of its hash slot by a new map.

        None if that is still the same node, or if the map was read just now.
        """
        self._failing.add(address)
        if not self._begin_reading_map():
            return None
        await self.refresh_map(deadline, send)
        master = self._require_master(slot)
        return None if master == address else master

    async def refresh_map(self, deadline: Deadline, send: SendToNode) -> None:
        """Read and store the map of hash slots of the first node that replies.

        If no node does, the last map stays in use. Raises `RedisError` if there is none.
        """
        last_error: Exception = RedisConnectionError("no node of the cluster could be reached")
        for address, share in deadline.shares(self._candidates()):
            try:
                store_map = partial(self._store_map, source=address)
                await send(address, Command(_CLUSTER_SLOTS, store_map), share, 0.0)
            except (RedisError, OSError) as error:
                last_error = error
            else:
                return
        if not self._masters:
            raise RedisConnectionError(
                f"no node returned the map of the cluster: {last_error}"
            ) from last_error

    def _candidates(self) -> list[Address]:
        """Return a few nodes to read the map from, in random order, the failing ones last."""
        nodes = [*self.masters, *self._others]
        chance.shuffle(nodes)
        distinct = dict.fromkeys([*nodes, *self._first])
        return sorted(distinct, key=lambda address: address in self._failing)[:5]

    def _begin_reading_map(self) -> bool:
        """Begin a reading of the map, and return True, unless the last one began just now."""
        now = Clock.monotonic()
        if now - self._read_at < MAP_SECONDS:
            return False
        self._read_at = now
        return True

    def _store_map(self, reply: Reply, source: Address) -> None:
        """Store the map of hash slots that a node has returned. Raises `ResponseError`."""
        masters: list[Address | None] = [None] * SLOTS
        others: set[Address] = set()
        for first, last, *nodes in reply:
            # A node without a host is the one that replies.
            addresses = [((node[0] or b"").decode() or source[0], int(node[1])) for node in nodes]
            masters[first : last + 1] = [addresses[0]] * (last + 1 - first)
            others.update(addresses[1:])
        if masters == [None] * SLOTS:
            raise ResponseError(f"{source[0]}:{source[1]} has no hash slots")
        self._masters = masters
        self._others = tuple(others)
        self._is_moved = False
        self._failing &= self.masters

    def _require_master(self, slot: int) -> Address:
        """Return the master of a hash slot. Raises `ConnectionError` of redis-py if unknown."""
        address = self.master(slot)
        if address is None:
            raise RedisConnectionError(f"no node of the cluster has the hash slot {slot}")
        return address


_KINDS = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "MOVED": MovedError,
    "TRYAGAIN": TryAgainError,
}


def _with_kind(error: Exception) -> Exception:
    """Return the error as newer versions of redis-py raise it.

    Before version 6, only its `RedisCluster` had these types.
    """
    word, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and word in _KINDS:
        try:
            return _KINDS[word](rest)
        except (ValueError, IndexError):
            return RedisConnectionError(f"the cluster sent an invalid redirection: {error}")
    return error


def _is_without_node(error: Exception) -> bool:
    """Return whether no node has executed a command, because none has its hash slot."""
    is_down = isinstance(error, ClusterDownError) and not isinstance(error, MasterDownError)
    return is_down or isinstance(error, Unreachable)


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
        return _run_blocking(self._decide(call, self._blocking(deadline)))

    def adecide(self, call: Call, deadline: Deadline | None = None) -> Awaitable[Decision]:
        return self._decide(call, self._awaiting(deadline))

    def reset(self, call: Call) -> int:
        return _run_blocking(self._reset(call, self._blocking()))

    def areset(self, call: Call) -> Awaitable[int]:
        return self._reset(call, self._awaiting())

    def _masters(self) -> Collection[Address]:
        self.execute(b"EXISTS", b"0")  # The masters are known after any command.
        return self._cluster.masters

    def _exchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        return _run_blocking(self._blocking(deadline)(slot_of(command.key), command))

    def execute_all(
        self, commands: Sequence[Sequence[bytes]], deadline: Deadline | None = None
    ) -> list[Reply]:
        return [self.execute(*parts, deadline=deadline) for parts in commands]

    async def _aexchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        return await self._awaiting(deadline)(slot_of(command.key), command)

    def _portions(
        self, items: Sequence[tuple[bytes, ...]]
    ) -> Iterator[Sequence[tuple[bytes, ...]]]:
        """Yield the items in portions, each in one hash slot."""
        for places in _places_by_slot([item[0] for item in items]).values():
            yield from super()._portions([items[place] for place in places])

    def _server_of(self, key: bytes) -> Address | None:
        return self._cluster.master(slot_of(key))

    async def _decide(self, call: Call, send: Send) -> Decision:
        """Compare the rules if the call has no charges; otherwise decide its limits."""
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
        """Delete the state of every limit, and notify all processes."""
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
        """Return the function that sends the commands of one call, and blocks this thread."""
        call_deadline = self._deadline(deadline)
        page = current_page()
        if page is not None:
            call_deadline = page.limit(call_deadline)
        return partial(self._execute, self._send, call_deadline)

    def _awaiting(self, deadline: Deadline | None = None) -> Send:
        """Return the function that sends the commands of one call from a coroutine."""
        return partial(self._execute, self._asend, self._deadline(deadline))

    async def _execute(
        self, send: SendToNode, deadline: Deadline, slot: int, command: Command[T]
    ) -> T:
        """Send a command to the node of a hash slot, and report whether it failed."""
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
        return self._node_at(address).exchange(command, deadline)

    async def _asend(
        self, address: Address, command: Command[T], deadline: Deadline, pause: float
    ) -> T:
        """Send a command, without blocking the event loop."""
        if pause:
            await asyncio.sleep(pause)
        return await self._node_at(address).aexchange(command, deadline)

    def _record_reply(self, node: Address | None = None) -> None:
        """Drop what belongs to nodes that have left the cluster, and record the reply."""
        for address in list(self._nodes.keys() - self._cluster.nodes):
            gone = self._nodes.pop(address, None)
            if gone is not None:
                gone.close()
        with self._lock:  # A node that is no longer a master need not reply.
            self._failing &= self._cluster.masters
        super()._record_reply(node)


async def _decide_part(
    call: Call, decided: Sequence[HashSlotDecision], slot: int, places: Sequence[int], send: Send
) -> HashSlotDecision:
    """Decide the charges of a call that are in one hash slot, after other parts were decided."""
    charges = [call.charges[place] for place in places]
    is_hit = call.operation == "hit"
    if is_hit and call.partial and decided:
        granted = decided[-1].decision.granted or 1  # A refused partial hit counts one unit.
        charges = [charge._replace(cost=min(charge.cost, granted)) for charge in charges]
    part = call._replace(charges=charges)
    if is_hit and not all(each.decision.allowed for each in decided):
        refuses = Charge(REFUSES, charges[0].digest)
        part = call._replace(charges=[*charges, refuses], partial=False)
    decision = await send(slot, decision_command(part))
    states = decision.limits[: len(places)]  # Without that of `REFUSES`.
    limits = [DecidedLimit(*each) for each in zip(places, charges, states, strict=False)]
    return HashSlotDecision(slot, decision, limits)


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
    taken = part.decision.granted if call.partial else charge.cost
    is_refused_hit_counted = charge.limit.count_denied and keep == 0
    if not is_refused_hit_counted:
        return taken - keep
    if call.partial:  # A refused partial hit counts one unit.
        return taken - 1
    return 0


def _run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that blocks instead of suspending itself."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    raise AssertionError("a blocking exchange was suspended")


def _places_by_slot(keys: Sequence[bytes]) -> dict[int, list[int]]:
    """Return the positions of keys by their hash slots."""
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return places
