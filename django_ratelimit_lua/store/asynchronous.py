"""Connections for coroutines: one for each event loop, shared by all of its coroutines.

A connection is closed with its loop. Commands that coroutines send in the same iteration of the
loop are written together. One task per connection reads the replies, in the order of the commands,
so a caller that is cancelled or times out disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import (
    InvalidResponse,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..limits.call import StaleRules
from ..limits.program import Program
from ..process import Clock
from ..process.forks import leave_to_parent, renew_after_fork
from .blocking import find_master
from .commands import Command, Reply, Unreachable, role_command, to_redis_error
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply
from .redis_py import AsyncConnection

T = TypeVar("T")

PendingCommand = tuple[Command[Any], asyncio.Future[Any], Deadline, float]
"""A command, the future of its answer, the deadline of its caller, and when the wait began."""

IDLE_SECONDS = 60.0
"""A connection that was not used for this long is closed."""
BATCH_SIZE = 32
"""Commands that are written together, so that the server begins while the loop gets to the other
coroutines.
"""
STEPS = 10
"""A wait is made of this many timers. A loop that is busy with something else is late for one of
them, not for all.
"""
QUIET_SECONDS = 1.0
"""After this time without a reply the loop looks for a closed connection before it is used."""


class Countdown:
    """Call a function after `seconds` in which the event loop had time, unless it is cancelled.

    Each reply that `last_reply` records restarts the wait.
    """

    __slots__ = (
        "_call",
        "_due",
        "_handle",
        "_last_reply",
        "_left",
        "_loop",
        "_replied_at",
        "_step",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        call: Callable[[], object],
        last_reply: LastReply,
    ) -> None:
        self._loop = loop
        self._call = call
        self._last_reply = last_reply
        self._replied_at = self._last_reply.at
        self._step = max(seconds, 0.0) / STEPS
        self._left = STEPS
        self._due = loop.time() + self._step
        self._handle = loop.call_at(self._due, self._fire)

    def cancel(self) -> None:
        self._handle.cancel()

    def _fire(self) -> None:
        """Begin the next step, or the first one after a reply. After the last one, call."""
        self._left -= 1
        if self._last_reply.at != self._replied_at:
            self._replied_at = self._last_reply.at
            self._left = STEPS
        if self._left:
            self._due = max(self._due + self._step, self._loop.time())
            self._handle = self._loop.call_at(self._due, self._fire)
        else:
            self._call()


async def await_within(deadline: Deadline, awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, which is cancelled if the deadline ends.

    Raises `TimeoutError` of redis-py.
    """
    began = Clock.monotonic()
    future = asyncio.ensure_future(awaitable)
    timer = Countdown(future.get_loop(), deadline.left, future.cancel, LastReply())
    try:
        await asyncio.wait((future,))
        if future.cancelled():
            raise RedisTimeoutError("no reply within the deadline")
        return future.result()
    finally:
        timer.cancel()
        if not future.cancel() and not future.cancelled():
            future.exception()  # asyncio logs an exception that no caller has read.
        deadline.spend(began, deadline.left)


class SharedConnection:
    """One connection of one event loop, which any number of coroutines may use at once.

    It is closed if a reply is malformed, or if the server does not reply for `timeout` seconds.
    In both cases, all waiting callers get an error.

    - `last_reply`: the last reply of the server on any connection;
    - `loop_ended`: called when the event loop ends;
    - `error`: why it was closed;
    - `is_usable`: whether it may get more commands.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        last_reply: LastReply,
        timeout: float,
        loop_ended: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._loop_ended = loop_ended
        self._loop = asyncio.get_running_loop()
        self._last_reply_of_server = last_reply
        self._last_reply = LastReply()
        self._timeout = timeout
        self._watch: Countdown | None = None
        self._to_send: list[PendingCommand] = []
        self._waiting: deque[PendingCommand] = deque()
        """The commands that were sent and have no reply yet, in this order."""
        self._last_reply.at = Clock.monotonic()
        self._source_sent_at: dict[Program | None, float] = {}
        self.error: BaseException | None = None
        self.is_usable = True
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether a command can be sent at once.

        After some time without use, the server may have closed the connection.
        """
        if self._waiting:
            return self.is_usable
        return self.is_usable and Clock.monotonic() - self._last_reply.at < QUIET_SECONDS

    async def open(self) -> None:
        """Connect."""
        await self._connection.connect()
        # In an empty context: the task must not keep values of the request that needs it first.
        self._reader = self._loop.create_task(self._deliver_replies(), context=Context())
        # The loop may be closed before the task ends, which asyncio would log.
        self._reader._log_destroy_pending = False  # type: ignore[attr-defined]
        self._close_if_idle()

    def execute(
        self,
        command: Command[T],
        deadline: Deadline,
        future: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Send a command and return the future of its answer; see `blocking.Connection.execute`.

        If a `future` is given, it gets the answer.
        """
        if self.error is not None:
            raise RedisConnectionError(f"the connection was closed: {self.error}")
        if deadline.left <= 0.0:
            raise RedisTimeoutError("the deadline has passed")
        if future is None:
            future = self._loop.create_future()
        is_idle = not (self._waiting or self._to_send)
        self._to_send.append((command, future, deadline, Clock.monotonic()))
        if is_idle or len(self._to_send) == BATCH_SIZE:
            self._write_batch()
        elif len(self._to_send) == 1:
            self._loop.call_soon(self._write_batch)
        if deadline.left < self._timeout:  # Otherwise `_watch` ends the wait.
            expire = partial(self._expire, future, deadline)
            timer = Countdown(self._loop, deadline.left, expire, self._last_reply)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _retry(
        self, command: Command[T], future: asyncio.Future[T], deadline: Deadline, began: float
    ) -> None:
        """Send a command again, because the server did not have its script and did not run it."""
        repeated = command
        # If another caller has sent the source since, the server has it now.
        if began >= self._source_sent_at.get(command.program, 0.0):
            self._source_sent_at[command.program] = Clock.monotonic()
            repeated = command.with_source()
        deadline.extend()
        self.execute(repeated._replace(program=None), deadline, future)

    def _expire(self, future: asyncio.Future[Any], deadline: Deadline) -> None:
        """End the wait of one caller. Other callers may still get their replies."""
        if not future.done():
            deadline.left = 0.0
            future.set_exception(RedisTimeoutError("no reply within the deadline"))
            future.exception()  # asyncio logs an exception that no caller has read.
            self.is_usable = False

    def _write_batch(self) -> None:
        """Write the commands of callers that still wait, and begin to watch for replies."""
        if self.error is not None:
            return
        if not self._waiting:
            self._last_reply.at = Clock.monotonic()  # The server is silent from now on.
        commands = []
        for pending in self._to_send:
            command, future, _, _ = pending
            if not future.done():
                self._waiting.append(pending)
                commands.append(command.ahead + command.data)
        self._to_send.clear()
        if commands:
            if self._watch is None:
                self._watch = Countdown(self._loop, self._timeout, self._give_up, self._last_reply)
            self._connection.write(b"".join(commands))

    def _give_up(self) -> None:
        """Close the connection, because the server was silent too long for a waiting caller."""
        self._watch = None
        if self._waiting:
            self.close(RedisTimeoutError("no reply within the deadline"))

    async def _deliver_replies(self) -> None:
        """Give each pending command its reply, in their order, until the connection is closed."""
        try:
            while True:
                reply = await self._connection.read_reply()
                if not self._waiting:
                    raise InvalidResponse("unexpected reply: no command is pending")
                pending = self._waiting[0]
                command = pending[0]
                if command.ahead:
                    next_reply = await self._connection.read_reply()
                    if not isinstance(reply, ResponseError):
                        reply = next_reply
                now = Clock.monotonic()
                self._last_reply.at = now
                self._last_reply_of_server.at = now
                self._settle(pending, reply)
                self._waiting.popleft()
                if not (self.is_usable or self._waiting or self._to_send):
                    self.close()
        except BaseException as error:
            self.close(error)
            if not isinstance(error, Exception):  # The end of the loop cancels its tasks.
                self._loop_ended()
                raise

    def _settle(self, pending: PendingCommand, reply: Reply) -> None:
        """Give a caller the answer to its command, or the error, or send the script's source."""
        command, future, deadline, began = pending
        deadline.left -= self._last_reply.at - began
        try:
            if isinstance(reply, ResponseError):
                raise reply
            answer = command.read(reply)
        except (ResponseError, StaleRules) as error:
            if isinstance(error, ReadOnlyError):  # A replica, to be replaced by the master.
                self.is_usable = False
            if future.done():
                return
            if isinstance(error, NoScriptError) and command.program is not None:
                self._retry(*pending)
            else:
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(answer)

    def close(self, error: BaseException | None = None) -> None:
        """Close the connection, because of an error or because it is not needed."""
        if self.error is not None:
            return
        self.error = error or RedisConnectionError("closed")
        self.is_usable = False
        self._connection.abort()
        if self._watch is not None:
            self._watch.cancel()
        self._fail_pending(self.error)

    def _fail_pending(self, error: BaseException) -> None:
        """Give the first waiting caller the error, and the others an error that contains it."""
        next_error = error
        if not isinstance(error, Exception):
            next_error = RedisConnectionError("the event loop has ended")
        message = f"the connection was closed before the reply: {next_error}"
        for _command, future, deadline, began in (*self._waiting, *self._to_send):
            if not future.done():
                deadline.spend(began, deadline.left)
                with suppress(RuntimeError):  # The loop is closed.
                    future.set_exception(to_redis_error(next_error))
                next_error = RedisConnectionError(message)
        self._waiting.clear()
        self._to_send.clear()

    def _close_if_idle(self) -> None:
        """Close the connection if it was not used for a while. Otherwise check again later."""
        left = IDLE_SECONDS - (Clock.monotonic() - self._last_reply.at)
        if left <= 0 and not self._waiting:
            self.close()
        if self.error is None:
            self._loop.call_later(max(left, 1.0), self._close_if_idle)


class LoopConnections:
    """The connection of one event loop to one server, reopened when needed.

    `check` raises an error if no command may be sent. It is called if another caller failed to
    connect.
    """

    def __init__(
        self,
        params: ConnectionParams,
        last_reply: LastReply,
        timeout: float,
        check: Callable[[], None],
        loop_ended: Callable[[], object],
    ) -> None:
        self._params = params
        self._last_reply = last_reply
        self._timeout = timeout
        self._check = check
        self._loop_ended = loop_ended
        self._connection: SharedConnection | None = None
        self._connecting: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def exchange(self, command: Command[T], deadline: Deadline) -> Awaitable[T]:
        """Send a command and return the answer.

        Raises `Unreachable` if nothing was sent, and the errors of the command, of redis-py and of
        `check`.
        """
        connection = self._connection
        if connection is None or not connection.is_ready:
            return self._connect_and_execute(command, deadline)
        return connection.execute(command, deadline)

    async def _connect_and_execute(self, command: Command[T], deadline: Deadline) -> T:
        """Send a command on a new connection, unless the present one turns out to be usable.

        All callers wait for the same task that connects.
        """
        for _ in range(3):  # The loop notices if the server has closed the connection.
            await asyncio.sleep(0)
        while (connection := self._connection) is None or not connection.is_usable:
            is_first = self._connecting is None
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect(), context=Context())
                self._connecting.add_done_callback(
                    lambda task: task.cancelled() or task.exception()
                )
            try:
                await await_within(deadline, asyncio.shield(self._connecting))
            except (RedisError, OSError, RuntimeError) as error:  # No thread can be started.
                if is_first or deadline.is_over:
                    raise to_redis_error(error, Unreachable)  # noqa: B904 - it has its cause
                self._check()
            deadline.extend()
        return await connection.execute(command, deadline)

    async def _connect(self) -> None:
        """Open the connection to the server, or to the master that a Sentinel names."""
        deadline = Deadline(self._timeout)
        params = self._params
        try:
            if params.sentinels:
                params = await asyncio.to_thread(find_master, params, deadline)
            connection = SharedConnection(
                params.async_connection(), self._last_reply, self._timeout, self._loop_ended
            )
            try:
                await await_within(deadline, connection.open())
                deadline.extend()
                if params.sentinels:
                    await connection.execute(role_command(), deadline)
            except BaseException as error:
                connection.close(error)
                raise
            self._connection = connection
        finally:
            self._connecting = None


class AsyncConnections:
    """The connections of a process to one server, for every event loop in any thread."""

    def __init__(self, new_connections: Callable[[Callable[[], object]], LoopConnections]) -> None:
        self._new_connections = new_connections
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        """Begin without connections in a child process."""
        # To close the connections would take them out of the selector, which a child shares with
        # its parent.
        leave_to_parent(self._loops)
        self._loops = {}

    def exchange(self, command: Command[T], deadline: Deadline) -> Awaitable[T]:
        """Send a command and return the answer; see `LoopConnections.exchange`."""
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop) or self._connect_loop(loop)
        return connections.exchange(command, deadline)

    def _connect_loop(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        """Store and return new connections for an event loop; close those of closed loops."""
        for other in list(self._loops):
            if other.is_closed():
                with suppress(KeyError):  # Another thread was faster.
                    self._loops.pop(other).close()
        # A loop that has ended is dropped at once: it may refer to its last requests.
        loop_ended = partial(self._loops.pop, loop, None)
        connections = self._new_connections(loop_ended)
        self._loops[loop] = connections
        return connections
