"""Connections that block a thread: for commands, and for the messages of a channel."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import StaleRules
from ..process import Clock
from ..process.forks import chance
from .availability import to_store_error
from .commands import (
    Command,
    Reply,
    Unreachable,
    encode,
    master_command,
    plain_command,
    role_command,
    to_redis_error,
)
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply
from .flusher import flusher
from .redis_py import BlockingConnection, Exchange

T = TypeVar("T")


class Connection:
    """One connection, used by one thread at a time.

    It connects with the first exchange, and again after an error.

    - `redis_connection`: the connection of redis-py; None if it is not connected;
    - `used_at`: the end of the last exchange (monotonic).
    """

    def __init__(self, params: ConnectionParams, last_reply: LastReply) -> None:
        self._params = params
        self._last_reply = last_reply
        self.exchange = Exchange()
        self._has_input: Callable[[], object] = lambda: True
        self.redis_connection: Any = None
        self.used_at = 0.0

    def execute(self, command: Command[T], deadline: Deadline) -> T:
        """Send a command and return the answer.

        Raises `Unreachable` if nothing was sent, and the errors of the command and of redis-py.
        The connection is closed unless the reply was read completely.
        """
        # `Exchange.begin`, inlined, because every hit does it.
        exchange = self.exchange
        exchange.deadline = deadline
        exchange.received = 0
        exchange.cpu = 0.0
        # Input before the command is the end of the connection, or a reply to another command.
        if (
            self.redis_connection is None
            or self._has_input()
            or (not command.has_token and self.redis_connection.can_read(0))
        ):
            self._connect(deadline)
        connection = self.redis_connection
        try:
            connection.send_packed_command((command.ahead + command.data,), check_health=False)
            if command.ahead:
                self._read_reply_ahead()
            if command.batch_size is None:
                reply = connection.read_response(disable_decoding=True)
            else:
                reply = self._read_replies(command.batch_size)
            self._last_reply.at = Clock.monotonic()
            return command.read(reply)
        except NoScriptError:  # It was not run.
            if command.program is None:
                raise
            deadline.extend()
            return self.execute(command.with_source(), deadline)
        except BaseException as error:
            raise self._close_after(error)  # noqa: B904 - it has its cause

    def close(self) -> None:
        """Close the connection. The next exchange connects again."""
        if self.redis_connection is not None:
            self.redis_connection.disconnect()
        self.redis_connection = None

    def _read_reply_ahead(self) -> None:
        """Read the reply to `Command.ahead`. Raises the errors of redis-py."""
        try:
            self.redis_connection.read_response(disable_decoding=True)
        except ResponseError:
            self.close()  # The reply to the command itself is not read.
            raise

    def _read_replies(self, count: int) -> list[Reply]:
        """Return the replies to commands that were sent together. Errors are among them."""
        replies = []
        for _ in range(count):
            try:
                reply = self.redis_connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
            replies.append(reply)
        return replies

    def _close_after(self, error: BaseException) -> BaseException:
        """Close the connection, unless the error is a complete reply. Return the error to raise."""
        # A server that turns out to be a replica has to be replaced by the master.
        if not isinstance(error, (ResponseError, StaleRules)) or isinstance(error, ReadOnlyError):
            self.close()
        return to_redis_error(error)

    def _connect(self, deadline: Deadline) -> None:
        """Connect to the server, or to the master that a Sentinel names. Raises `Unreachable`."""
        self.close()
        try:
            params = find_master(self._params, deadline)
            self.redis_connection = params.connection(self.exchange)
            self.redis_connection.connect()
            self._has_input = has_input(self.redis_connection.deadline_socket.sock)
            if params.sentinels:
                role = role_command()
                self.redis_connection.send_packed_command((role.data,), check_health=False)
                role.read(self.redis_connection.read_response(disable_decoding=True))
        except BaseException as error:
            self.close()
            raise to_redis_error(error, Unreachable)  # noqa: B904 - it has its cause
        deadline.extend()
        flusher.start()  # It closes the connection when it is idle.


def find_master(params: ConnectionParams, deadline: Deadline) -> ConnectionParams:
    """Return the parameters of the master that a Sentinel names; without Sentinels, the same.

    Raises `Unreachable`.
    """
    if not params.sentinels:
        return params
    for sentinel, share in deadline.shares(params.sentinels):
        connection = Connection(sentinel, LastReply())
        try:
            master = connection.execute(master_command(params.service), share)
        except (RedisError, OSError):
            continue
        finally:
            connection.close()
        if master is not None:
            return params.at(master)
    raise Unreachable(f"no Sentinel returned the master of {params.service!r}")


def has_input(sock: socket.socket) -> Callable[[], object]:
    """Return a function that returns whether a socket has input, without waiting or reading."""
    pending = getattr(sock, "pending", int)  # TLS: what is decrypted already.
    if not hasattr(select, "poll"):  # Windows, and greenlets of eventlet.
        return lambda: pending() or select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if pending is int:
        return partial(poll.poll, 0)
    return lambda: pending() or poll.poll(0)


PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
PING_SECONDS = 0.5
"""Interval of PINGs."""
SILENT_SECONDS = 4.0
"""Time without an answer to a PING after which the connection counts as dead."""


class Subscription:
    """Receives the messages of a channel until the connection ends.

    Raises `StoreError` if it cannot receive, now or later. The channel of a cluster is the same on
    all nodes, so any node that the alias lists is used. But a node that is cut off from the others
    no longer forwards their messages, though it replies to PINGs.

    - `received_at`: the monotonic time up to which all published messages were received; unknown
      in a cluster.
    """

    _twin: socket.socket | None = None
    """A copy of the socket, by which other threads check for messages."""

    def __init__(self, channel: bytes, deadline: Deadline) -> None:
        self.channel = channel
        self.received_at = float("-inf")
        params = ConnectionParams.of(conf.USE_CACHE)
        self._is_complete = not params.nodes
        """Whether a server that replies to a PING has sent all earlier messages."""
        if params.nodes:
            params = params.at(chance.choice(params.nodes))
        self._subscriber = Connection(params, LastReply())
        self._pinged_at = float("-inf")
        self._is_pinged = False
        self._is_open = False
        try:
            self._subscribe(deadline)
        except (RedisError, OSError) as error:
            raise self._close_after(error) from error

    def _subscribe(self, deadline: Deadline) -> None:
        """Connect and subscribe. Raises the errors of redis-py."""
        # A test, which no process receives. It fails for a user without the right to publish, which
        # other processes then lack as well.
        test = plain_command(b"PUBLISH", self.channel + b":test", b"")
        self._subscriber.execute(test, deadline)
        self._send_bytes(encode(b"SUBSCRIBE", self.channel))
        if not deadline.wait(self._read_confirmation):
            raise RedisConnectionError("no reply to SUBSCRIBE")
        sock = self._connection.deadline_socket.sock
        self._twin = socket.fromfd(sock.fileno(), sock.family, sock.type)
        self._twin.settimeout(0.0)

    def has_news(self) -> bool:
        """Return whether there is a message to receive, or the connection has ended.

        It neither waits nor receives. It is for other threads, because the receiving thread may
        have to wait for the interpreter.
        """
        if self._twin is None:
            return False
        try:
            arrived = self._twin.recv(len(PONG) + 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        # If the connection is encrypted, an answer to a PING looks like a message.
        return arrived != PONG

    def receive(self, seconds: float) -> list[bytes]:
        """Wait for messages for at most `seconds`, and return them.

        Raises `StoreError` if the connection has ended or the server does not reply. Then messages
        may be lost.
        """
        try:
            now = Clock.monotonic()
            if not self._is_pinged and now - self._pinged_at >= PING_SECONDS:
                self._pinged_at = now
                self._is_pinged = True
                self._send_bytes(encode(b"PING"))
            messages = self._read_messages(min(seconds, PING_SECONDS))
            # `now` is earlier than the read: this process may have stood still, and the answer may
            # have arrived meanwhile.
            if self._is_pinged and now - self._pinged_at > SILENT_SECONDS:
                raise RedisConnectionError("the server does not reply")
        except (RedisError, OSError) as error:
            raise self._close_after(error) from error
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._subscriber.close()
        if self._twin is not None:
            self._twin.close()

    def __del__(self) -> None:
        # If it was dropped, as after a fork. The connection closes itself.
        if self._twin is not None:
            self._twin.close()

    def hang_up(self) -> None:
        """End the connection from another thread. The receiving thread gets an error at once."""
        with suppress(RedisError, OSError):
            self._connection.deadline_socket.shutdown(socket.SHUT_RDWR)

    @property
    def _connection(self) -> BlockingConnection:
        """Return the connection of redis-py. Raises its `ConnectionError` if it is closed."""
        connection: BlockingConnection | None = self._subscriber.redis_connection
        if connection is None:
            raise RedisConnectionError("the connection was closed")
        return connection

    def _close_after(self, error: Exception) -> StoreError:
        """Close the connection, and return the error to raise."""
        self.close()
        return to_store_error(error)

    def _send_bytes(self, data: bytes) -> None:
        self._subscriber.exchange.begin(Deadline(SILENT_SECONDS))
        self._connection.send_packed_command((data,), check_health=False)

    def _read_confirmation(self, seconds: float) -> bool:
        """Read for at most `seconds`. Return whether the server has confirmed the subscription."""
        self._read_messages(seconds)
        return self._is_open

    def _read_messages(self, seconds: float) -> list[bytes]:
        """Wait for a message for at most `seconds`, and return it with all that arrive with it.

        Answers to SUBSCRIBE and PING are recorded: `_is_open`, `_is_pinged` and `received_at`.
        """
        messages: list[bytes] = []
        wait_seconds = seconds
        while True:
            self._subscriber.exchange.begin(Deadline(wait_seconds))
            try:
                # What has arrived of a reply stays in the parser.
                reply = self._connection.read_response(
                    disable_decoding=True, disconnect_on_error=False
                )
            except RedisTimeoutError:
                return messages
            except ResponseError:  # To a PING, if the user may not send one. It is an answer.
                if not self._is_open:
                    raise
                reply = [b"pong"]
            match reply:
                case [b"subscribe", self.channel, *_]:
                    self._is_open = True
                case [b"message", self.channel, bytes(message)]:
                    messages.append(message)
                case [b"pong", *_]:
                    self._is_pinged = False
                    # The answer comes after all that was published before the PING.
                    if self._is_complete:
                        self.received_at = self._pinged_at
            wait_seconds = 0.0  # For what has arrived already.
