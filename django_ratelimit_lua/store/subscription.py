"""A connection that receives the messages of a channel as soon as they are published."""

from __future__ import annotations

import socket
from contextlib import suppress

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..conf import conf
from ..exceptions import StoreError
from ..process.clock import Clock
from ..process.forks import chance
from .availability import as_store_error
from .blocking import Connection
from .commands import encode, plain_command
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply
from .redis_py import BlockingConnection

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

    def __init__(self, channel: bytes, deadline: Deadline) -> None:
        self.channel = channel
        self.received_at = float("-inf")
        params = ConnectionParams.of(conf.USE_CACHE)
        self._is_complete = not params.nodes
        if params.nodes:
            params = params.at(chance.choice(params.nodes))
        self._subscriber = Connection(params, LastReply())
        self._pinged_at = float("-inf")
        self._is_open = self._is_pinged = False
        try:
            # To no subscriber. It fails for a user without the right to publish, which other
            # processes then lack as well.
            self._subscriber.execute(plain_command(b"PUBLISH", channel + b":test", b""), deadline)
            self._send(encode(b"SUBSCRIBE", channel))
            if not deadline.wait(self._read_confirmation):
                raise RedisConnectionError("no reply to SUBSCRIBE")
            sock = self._connection.deadline_socket.sock
            self._twin = socket.fromfd(sock.fileno(), sock.family, sock.type)
            self._twin.settimeout(0.0)
        except (RedisError, OSError) as error:
            raise self._close_after(error) from error

    def has_news(self) -> bool:
        """Return whether there is a message to receive, or the connection has ended.

        It neither waits nor receives. It is for other threads, because the receiving thread may
        have to wait for the interpreter.
        """
        try:
            # If the connection is encrypted, an answer to our PING looks like a message.
            return (
                self._twin is not None and self._twin.recv(len(PONG) + 1, socket.MSG_PEEK) != PONG
            )
        except BlockingIOError:
            return False
        except OSError:
            return True

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
                self._send(encode(b"PING"))
            messages = self._read(min(seconds, PING_SECONDS))
            # By the time before it was read: this process may have stood still, and the answer be
            # there.
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
        # Of one that was dropped, as after a fork. The connection closes itself.
        if self._twin is not None:
            self._twin.close()

    def hang_up(self) -> None:
        """End the connection from another thread. The receiving thread gets an error at once."""
        with suppress(RedisError, OSError):
            self._connection.deadline_socket.shutdown(socket.SHUT_RDWR)

    @property
    def _connection(self) -> BlockingConnection:
        connection: BlockingConnection | None = self._subscriber.redis_connection
        if connection is None:
            raise RedisConnectionError("the connection was closed")
        return connection

    def _close_after(self, error: Exception) -> StoreError:
        self.close()
        return as_store_error(error)

    def _send(self, data: bytes) -> None:
        self._subscriber.exchange.begin(Deadline(SILENT_SECONDS))
        self._connection.send_packed_command((data,), check_health=False)

    def _read_confirmation(self, seconds: float) -> bool:
        self._read(seconds)
        return self._is_open

    def _read(self, seconds: float) -> list[bytes]:
        """Return the first message that arrives within this time, and all that arrive with it."""
        messages: list[bytes] = []
        while True:
            self._subscriber.exchange.begin(Deadline(seconds))
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
            seconds = 0.0
