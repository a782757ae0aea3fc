"""The nodes of a cluster and their hash slots, read from any node and updated by redirections.

See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (MOVED, ASK, CLUSTER
SLOTS).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

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

from ..process.clock import Clock
from ..process.forks import chance
from .commands import Address, Command, Reply, Unreachable, encode
from .deadline import Deadline

T = TypeVar("T")

SLOTS = 16_384
MAX_REDIRECTIONS = 8
MAP_SECONDS = 0.2
"""Seconds between two readings of the map while a master does not answer."""
TRY_AGAIN = 0.005
"""Seconds between two attempts while a hash slot moves and some keys of a call do not exist yet."""
_ASKING = encode(b"ASKING")
_WHERE = encode(b"CLUSTER", b"SLOTS")


SendToNode = Callable[[Address, Command[Any], Deadline, float], Awaitable[Any]]
"""Sends a command to a node after a pause in seconds, and returns the answer."""


class Attempt(NamedTuple):
    """Where to send a command, what to send immediately before it, and how long to pause first."""

    address: Address
    ahead: bytes = b""
    pause: float = 0.0


class Cluster:
    """The nodes of a cluster that this process knows."""

    def __init__(self, nodes: Sequence[Address]) -> None:
        self._first = tuple(nodes)
        self._masters: list[Address | None] = []
        self._others: tuple[Address, ...] = ()
        self._failing: set[Address] = set()
        self._is_moved = False
        self._read_at = float("-inf")

    @property
    def masters(self) -> set[Address]:
        """Return the nodes that have hash slots."""
        return {address for address in self._masters if address is not None}

    @property
    def nodes(self) -> set[Address]:
        """Return all nodes, including replicas and the nodes that the alias names."""
        return {*self.masters, *self._others, *self._first}

    def master(self, slot: int) -> Address | None:
        """Return the node that has a hash slot, or None if it is not known."""
        if not self._masters:
            return None
        return self._masters[slot]

    async def exchange(
        self, slot: int, command: Command[T], deadline: Deadline, send: SendToNode
    ) -> T:
        """Send a command to the node that has the hash slot, and return the answer.

        Raises the errors of redis-py and of the command. A command that may have been executed is
        not sent again. One that was redirected, or could not be sent, is. One that has to wait for
        its hash slot to move is sent again until no time is left.
        """
        is_doubtful = bool(self._failing or self._is_moved)
        if not self._masters or (is_doubtful and self._may_read_map()):
            await self.read_map(deadline, send)
        attempt = Attempt(self._holder(slot))
        redirections = 0
        while redirections < MAX_REDIRECTIONS:
            address, ahead, pause = attempt
            try:
                answer: T = await send(address, command._replace(ahead=ahead), deadline, pause)
            except (RedisError, OSError) as raised:
                error = _with_kind(raised)
                if isinstance(error, TryAgainError) and deadline.left > TRY_AGAIN:
                    deadline.left -= TRY_AGAIN
                    attempt = Attempt(address, ahead, TRY_AGAIN)
                    continue
                redirections += 1
                if isinstance(error, AskError):
                    attempt = self._redirect(slot, address, error)
                    continue
                if _is_without_node(error):
                    other = await self._find_other_holder(slot, address, deadline, send)
                    if other is not None:
                        attempt = Attempt(other)
                        continue
                elif not isinstance(error, ResponseError):
                    self._failing.add(address)
                raise
            self._failing.discard(address)
            return answer
        raise RedisConnectionError(f"the cluster redirected a command {MAX_REDIRECTIONS} times")

    def _redirect(self, slot: int, address: Address, error: AskError) -> Attempt:
        """Return the attempt to which a node redirects a command."""
        to = (error.host or address[0], error.port)
        if not isinstance(error, MovedError):  # A subclass of `AskError`.
            return Attempt(to, _ASKING)
        self._masters[slot] = to
        self._is_moved = True
        return Attempt(to)

    async def _find_other_holder(
        self, slot: int, address: Address, deadline: Deadline, send: SendToNode
    ) -> Address | None:
        """Return the node that has the hash slot now, or None if it is still this failing one."""
        self._failing.add(address)
        if not self._may_read_map():
            return None
        await self.read_map(deadline, send)
        holder = self._holder(slot)
        return None if holder == address else holder

    async def read_map(self, deadline: Deadline, send: SendToNode) -> None:
        """Read the map of hash slots from the first node that replies.

        Raises `RedisError` if no node does.
        """
        last_error: Exception = RedisConnectionError("no node of the cluster could be reached")
        for address, share in deadline.shares(self._candidates()):
            try:
                learn = partial(self._learn, source=address)
                await send(address, Command(_WHERE, learn), share, 0.0)
            except (RedisError, OSError) as error:
                last_error = error
            else:
                return
        if not self._masters:
            raise RedisConnectionError(
                f"no node returned the map of the cluster: {last_error}"
            ) from last_error

    def _candidates(self) -> list[Address]:
        nodes = [*self.masters, *self._others]
        chance.shuffle(nodes)
        every = dict.fromkeys([*nodes, *self._first])
        return sorted(every, key=lambda address: address in self._failing)[:5]

    def _may_read_map(self) -> bool:
        now = Clock.monotonic()
        if now - self._read_at < MAP_SECONDS:
            return False
        self._read_at = now
        return True

    def _learn(self, reply: Reply, source: Address) -> None:
        masters: list[Address | None] = [None] * SLOTS
        others: set[Address] = set()
        for first, last, *nodes in reply:
            # A node without a known host is the one that was asked.
            addresses = [((node[0] or b"").decode() or source[0], int(node[1])) for node in nodes]
            masters[first : last + 1] = [addresses[0]] * (last + 1 - first)
            others.update(addresses[1:])
        if masters == [None] * SLOTS:
            raise ResponseError(f"{source[0]}:{source[1]} has no hash slots")
        self._masters = masters
        self._others = tuple(others)
        self._is_moved = False
        self._failing &= self.masters

    def _holder(self, slot: int) -> Address:
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
    is_down = isinstance(error, ClusterDownError) and not isinstance(error, MasterDownError)
    return is_down or isinstance(error, Unreachable)
