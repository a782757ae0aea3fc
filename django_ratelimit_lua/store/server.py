"""One server with its connections and its availability, and the store that uses one server."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Awaitable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from ..limits.program import Program
from ..process import Clock
from ..process.forks import renew_after_fork
from ..signals import store_down, store_up
from .asynchronous import IDLE_SECONDS, AsyncConnections, LoopConnections
from .availability import Availability, Paused, failures, kind_of, to_store_error
from .blocking import Connection
from .commands import (
    Address,
    Command,
    Reply,
    batch_command,
    decision_command,
    plain_command,
    reset_command,
    script_command,
)
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply, current_page

T = TypeVar("T")

logger = logging.getLogger("django_ratelimit_lua")

MAX_KEYS = 500
"""Keys of one command, so that it does not keep the server busy for long."""
STEADY_SECONDS = 1.0
"""Time without a failure after which Redis counts as up again, unless it was not asked in between.
"""


class Node:
    """Exchanges commands with one server. After repeated failures it sends none for a while.

    A background node does not pause. Threads share a LIFO of connections, each used by one exchange
    at a time. redis-py's own pool costs as much processor time as sending a command (`make bench`).
    """

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        self._params = params
        self._timeout = timeout
        self.last_reply = LastReply()
        self._async_connections = AsyncConnections(
            partial(LoopConnections, params, self.last_reply, timeout, self._raise_if_paused)
        )
        self.availability = Availability(self._answers_ping, never_pauses=background)
        self._begin()
        renew_after_fork(self._renew)

    def _begin(self) -> None:
        """Make the connections, none of which is connected, and their lock."""
        # list.append and list.pop are atomic, so that the lock is needed only by threads that wait.
        self._idle = [
            Connection(self._params, self.last_reply) for _ in range(self._params.max_connections)
        ]
        self._freed = threading.Condition()
        self._waiting = 0

    def _renew(self) -> None:
        """Make new connections in a child process."""
        for connection in self._idle:
            connection.close()  # Only this process's copy; the parent's connection stays open.
        self._begin()

    def exchange(self, command: Command[T], deadline: Deadline, *, is_trial: bool = False) -> T:
        """Send a command on a free connection, and return the answer.

        With `is_trial`, it is sent after repeated failures as well. Raises the errors of
        `Connection.execute`, and `TimeoutError` of redis-py if no connection becomes free.
        """
        if self.availability.is_paused and not is_trial:
            self._raise_if_paused()
        try:
            if self._waiting:  # These threads come first.
                connection = self._wait_for_connection(deadline)
            else:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    connection = self._wait_for_connection(deadline)
            try:
                if self.availability.is_paused and not is_trial:  # Others failed while it waited.
                    self._raise_if_paused()
                answer = connection.execute(command, deadline)
            finally:
                connection.used_at = Clock.monotonic()
                self._idle.append(connection)
                if self._waiting:
                    with self._freed:
                        self._freed.notify()
        except (RedisError, OSError) as error:
            self._record_error(error)
            raise
        if self.availability.failures:
            self.availability.record_reply()
        return answer

    async def aexchange(self, command: Command[T], deadline: Deadline) -> T:
        """`exchange`, without blocking the event loop."""
        if self.availability.is_paused:
            self._raise_if_paused()
        try:
            answer = await self._async_connections.exchange(command, deadline)
        except (RedisError, OSError) as error:
            self._record_error(error)
            raise
        if self.availability.failures:
            self.availability.record_reply()
        return answer

    def close(self) -> None:
        """Close the idle connections of threads, and stop trials.

        The connections of an event loop are closed with the loop.
        """
        self.availability.record_reply()
        self._close_connections(unused_since=float("inf"))

    def close_idle(self) -> bool:
        """Close the connections that were not used for a while. Return whether any are open."""
        return self._close_connections(unused_since=Clock.monotonic() - IDLE_SECONDS)

    def _close_connections(self, unused_since: float) -> bool:
        """Close the free connections not used after this moment. Return whether any are open."""
        for connection in self._idle[:]:
            if connection.redis_connection is not None and connection.used_at <= unused_since:
                with suppress(ValueError):  # A thread has taken it.
                    self._idle.remove(connection)
                    connection.close()
                    self._idle.insert(0, connection)
        idle = self._idle[:]
        if len(idle) < self._params.max_connections:  # The others are in use.
            return True
        return any(connection.redis_connection is not None for connection in idle)

    def _wait_for_connection(self, deadline: Deadline) -> Connection:
        """Wait for a connection. Each reply of the server to another thread restarts the wait."""
        seconds_at_first = deadline.left
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    try:
                        return self._idle.pop()
                    except IndexError:
                        self._wait_for_release(deadline, seconds_at_first)
            finally:
                self._waiting -= 1

    def _wait_for_release(self, deadline: Deadline, seconds_at_first: float) -> None:
        """Wait until a connection may be free, for one slice of the deadline.

        Raises `TimeoutError` of redis-py if no time is left.
        """
        began = Clock.monotonic()
        seconds = deadline.next_slice
        self._freed.wait(seconds)
        deadline.spend(began, seconds)
        if self.last_reply.at > began:
            silence = Clock.monotonic() - self.last_reply.at
            deadline.left = seconds_at_first - min(silence, seconds)
        elif not seconds:
            raise RedisTimeoutError("no connection is free, and the server does not reply")

    def _answers_ping(self) -> bool:
        """Send a PING, also during a pause. Return whether the server replies, even by an error."""
        try:
            self.exchange(plain_command(b"PING"), Deadline(self._timeout), is_trial=True)
        except ResponseError:
            return True
        except (RedisError, OSError):
            return False
        return True

    def _raise_if_paused(self) -> None:
        """Raise `Paused` during a pause, and ensure that trials are made."""
        if not self.availability.may_send():
            raise Paused("Redis has failed repeatedly; calls to it are paused for a moment")

    def _record_error(self, error: Exception) -> None:
        """Record an error of an exchange in `availability`."""
        # A server that answers with an error costs no deadline, and may answer the next call.
        if isinstance(error, ResponseError):
            self.availability.record_reply()
        elif not isinstance(error, Paused):
            self.availability.record_failure()


class Outage(NamedTuple):
    """A time in which Redis did not decide, in seconds since 1970; `end` is None while it lasts."""

    start: float
    end: float | None = None


class Store:
    """Performs calls on one server, or on the master that Sentinel names.

    Each call ends within `timeout` seconds. After repeated failures it sends nothing until the
    server replies again. A `background` store does not pause, and does not report failures itself.
    The log and the signals report each change of state once. A server that replies to some calls
    with errors is reported as available only when it has decided for a while without an error.

    - `last_outage`: the last one that this process has seen.
    """

    compares_rules = True
    """Whether the call that counts also compares the revision of the rules. Otherwise a call
    without charges does.
    """

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        self._params = params
        self._timeout = timeout
        self._is_background = background
        self._nodes: dict[Address | None, Node] = {}
        self.last_outage: Outage | None = None
        self._is_down = False
        self._failing: set[Address | None] = set()
        self._failed_at = float("-inf")
        self._down_since = 0.0
        self._was_paused = False
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    @property
    def is_paused(self) -> bool:
        """Return whether a server is not used at the moment, after repeated failures."""
        return any(node.availability.is_paused for node in list(self._nodes.values()))

    @property
    def replied_at(self) -> float:
        """Return when a server last replied to a caller in this process (monotonic)."""
        return max(
            (node.last_reply.at for node in list(self._nodes.values())), default=float("-inf")
        )

    def decide(self, call: Call, deadline: Deadline | None = None) -> Decision:
        """Decide a call within the given `Deadline`, or within the timeout.

        Raises `StoreError` or `StaleRules`.
        """
        return self._send_to(decision_command(call), deadline)

    def delete_keys(self, keys: Sequence[bytes]) -> None:
        """Delete keys. Raises `StoreError`."""
        for portion in self._portions([(key,) for key in keys]):
            self.execute(b"DEL", *[key for (key,) in portion])

    def find_keys(self, prefix: bytes, pattern: bytes = b"*") -> set[bytes]:
        """Return the keys that begin with a prefix and then match a pattern, from all masters.

        Raises `StoreError`.
        """
        escaped = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix)
        found: set[bytes] = set()
        for address in self._masters():
            cursor = b"0"
            while True:
                scan = (b"SCAN", cursor, b"MATCH", escaped + pattern, b"COUNT", b"1000")
                cursor, keys = self._send_to(plain_command(*scan), address=address)
                found.update(keys)
                if cursor == b"0":
                    break
        return found

    def _masters(self) -> Collection[Address | None]:
        """Return the addresses of all masters; None is the server of the alias."""
        return [None]

    def adecide(self, call: Call, deadline: Deadline | None = None) -> Awaitable[Decision]:
        """`decide`, without blocking the event loop."""
        return self._aexchange(decision_command(call), deadline)

    def channel(self, prefix: bytes) -> bytes:
        """Return the channel of the processes that share a database and a prefix.

        Its messages are: new rules (`RULES <revision>`), resets (`RESET <digest> <digest>
        ...`), and messages of an optional app (`ANNEX <app> <word> <word> ...`).
        """
        # Redis has the same channels in all databases.
        return b"%bchanges:%d" % (prefix, self._params.database)

    def reset(self, call: Call) -> int:
        """Delete the state of every limit of a call, and notify all processes.

        After an `unban` the state is kept. Return the number of deleted keys. Raises `StoreError`.
        """
        return self._exchange(reset_command(call, self.channel(call.prefix)))

    def areset(self, call: Call) -> Awaitable[int]:
        """`reset`, without blocking the event loop."""
        return self._aexchange(reset_command(call, self.channel(call.prefix)))

    def execute(self, *parts: bytes, deadline: Deadline | None = None) -> Reply:
        """Return the reply to any other command. Raises `StoreError`."""
        return self._exchange(plain_command(*parts), deadline)

    def run(
        self,
        program: Program,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        deadline: Deadline | None = None,
    ) -> list[Reply]:
        """Return the reply to a script. Its keys must be in one hash slot. Raises `StoreError`."""
        return self._exchange(script_command(program, keys, arguments), deadline)

    def arun(
        self,
        program: Program,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        deadline: Deadline | None = None,
    ) -> Awaitable[list[Reply]]:
        """`run`, without blocking the event loop."""
        return self._aexchange(script_command(program, keys, arguments), deadline)

    def execute_all(
        self, commands: Sequence[Sequence[bytes]], deadline: Deadline | None = None
    ) -> list[Reply]:
        """Return the replies to several other commands, sent together.

        Raises `StoreError` if one of the replies is an error.
        """
        batch = batch_command([plain_command(*parts) for parts in commands])
        return self._send_to(batch, deadline)

    def run_each(
        self,
        program: Program,
        common: Sequence[bytes],
        items: Sequence[tuple[bytes, ...]],
        deadline: Deadline,
    ) -> dict[tuple[bytes, ...], int]:
        """Return the results of a script that returns one for each item: a key and an argument.

        Its other arguments are the `common` ones. The items of a server that did not reply are
        missing.
        """
        results: dict[tuple[bytes, ...], int] = {}
        failing: set[Address | None] = set()  # A server that failed is not tried again.
        for portion in self._portions(items):
            keys = [item[0] for item in portion]
            arguments = [item[1] for item in portion]
            server = self._server_of(keys[0])
            if server in failing:
                continue
            try:
                replies = self.run(program, keys, [*common, *arguments], Deadline(deadline.whole))
            except StoreError:
                failing.add(server)
            else:
                results.update(zip(portion, replies, strict=True))
        return results

    def _portions(
        self, items: Sequence[tuple[bytes, ...]]
    ) -> Iterator[Sequence[tuple[bytes, ...]]]:
        """Yield the items, which begin with a key, in portions that one command may contain."""
        for first in range(0, len(items), MAX_KEYS):
            yield items[first : first + MAX_KEYS]

    def _server_of(self, key: bytes) -> Address | None:
        """Return the address of the server that has a key; None is the server of the alias."""
        return None

    def close(self) -> None:
        """Close the idle connections of threads. A loop's connections are closed with the loop."""
        for node in list(self._nodes.values()):
            node.close()

    def close_idle(self) -> bool:
        """Close the connections that were not used for a while. Return whether any are open."""
        has_open = [node.close_idle() for node in list(self._nodes.values())]
        return any(has_open)

    def _send_to(
        self,
        command: Command[T],
        deadline: Deadline | None = None,
        address: Address | None = None,
    ) -> T:
        """Send a command to a server and return the answer. Report whether it failed."""
        # `_deadline`, inlined: it is on the way of every hit.
        if deadline is None or deadline.left <= 0.0:
            deadline = self._deadline(deadline)
        page = current_page()
        if page is not None:
            deadline = page.limit(deadline)
        node = self._nodes.get(address) or self._node_at(address)
        try:
            answer = node.exchange(command, deadline)
        except (RedisError, OSError) as error:
            raise self._record_failure(error, address) from error
        if self._is_down:
            self._record_reply(address)
        return answer

    def _exchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        """Send a command to the server that has its key."""
        return self._send_to(command, deadline)

    async def _aexchange(self, command: Command[T], deadline: Deadline | None = None) -> T:
        """Async twin of `_exchange`."""
        # `_deadline`, inlined, as in `_send_to`.
        if deadline is None or deadline.left <= 0.0:
            deadline = self._deadline(deadline)
        try:
            answer = await self._node_at(None).aexchange(command, deadline)
        except (RedisError, OSError) as error:
            raise self._record_failure(error) from error
        if self._is_down:
            self._record_reply()
        return answer

    def _node_at(self, address: Address | None) -> Node:
        """Return the node with an address, which is made when it is first used."""
        node = self._nodes.get(address)
        if node is None:
            params = self._params
            if address is not None:
                params = params.at(address)
            new_node = Node(params, self._timeout, background=self._is_background)
            node = self._nodes.setdefault(address, new_node)  # Another thread may have been faster.
        return node

    def _deadline(self, deadline: Deadline | None = None) -> Deadline:
        """Return the deadline for a call. Raises `StoreError` if no time is left.

        That does not count as a failure of the server.
        """
        if deadline is None:
            return Deadline(self._timeout)
        if deadline.left <= 0.0:
            if not self._is_background:
                failures.add("timeout")
            raise StoreError("the deadline has passed before Redis was called")
        return deadline

    def _record_reply(self, node: Address | None = None) -> None:
        """Record a reply while Redis counts as down, and report if it is up again."""
        with self._lock:
            self._failing.discard(node)
            is_steady = self._was_paused or Clock.monotonic() - self._failed_at >= STEADY_SECONDS
            if not self._is_down or self._failing or not is_steady:
                return
            self._is_down = False
            seconds = Clock.monotonic() - self._down_since
            self.last_outage = Outage(Clock.time() - seconds, Clock.time())
        logger.warning(
            "Redis of cache %r is available again after %.1f s", self._params.name, seconds
        )
        store_up.send_robust(Store, alias=self._params.name)

    def _record_failure(self, error: Exception, node: Address | None = None) -> StoreError:
        """Record and report a failure of a call. Return the error to raise."""
        failure = to_store_error(error)
        page = current_page()
        if page is not None:
            page.error = failure
        if self._is_background:
            return failure
        failures.add(kind_of(error))
        with self._lock:
            was_down = self._is_down
            self._is_down = True
            self._failing.add(node)
            self._failed_at = Clock.monotonic()
            if not was_down:
                self._down_since = self._failed_at
                self.last_outage = Outage(Clock.time())
            # After a pause the first answer is enough: a trial has shown that Redis is back.
            # Without a pause, some calls were answered with errors or not at all: that has to end
            # first.
            self._was_paused = self.is_paused
        if not was_down:
            logger.error("Redis of cache %r cannot decide limits: %s", self._params.name, failure)
            store_down.send_robust(Store, alias=self._params.name, error=str(failure))
        return failure
