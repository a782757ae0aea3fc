"""Connections for threads, each used by one exchange at a time."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from ..limits.call import StaleRules
from ..process.clock import Clock
from .commands import (
    Command,
    Unreachable,
    as_redis_error,
    master_command,
    role_command,
)
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply
from .flusher import flusher
from .redis_py import Exchange

T = TypeVar("T")


class Connection:
    """One connection, used by one thread at a time.

    It connects with the first exchange, and again after an error.
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
        self.begin(deadline, has_token=command.has_token)
        try:
            try:
                return self._send(command)
            except NoScriptError:  # It was not run.
                if command.program is None:
                    raise
                deadline.extend()
                return self._send(command.with_source())
        except BaseException as error:
            raise self._close_after(error)  # noqa: B904 - it has its cause

    def execute_all(self, commands: Sequence[Command[T]], deadline: Deadline) -> list[T]:
        """Send commands together and return their answers. None of them calls a script."""
        self.begin(deadline)
        data = b"".join([command.data for command in commands])
        answers: list[T] = []
        errors: list[ResponseError] = []
        try:
            self.redis_connection.send_packed_command((data,), check_health=False)
            for command in commands:
                try:
                    reply = self.redis_connection.read_response(disable_decoding=True)
                except ResponseError as error:
                    errors.append(error)
                else:
                    answers.append(command.read(reply))
            self._last_reply.at = Clock.monotonic()
            if errors:
                raise errors[0]
        except BaseException as error:
            raise self._close_after(error)  # noqa: B904 - it has its cause
        return answers

    def begin(self, deadline: Deadline, *, has_token: bool = False) -> None:
        """Begin an exchange.

        With `has_token`, the reply contains a token that proves that it belongs to the command.
        """
        # `Exchange.begin`, inlined: it is on the way of every hit.
        exchange = self.exchange
        exchange.deadline = deadline
        exchange.received = 0
        exchange.cpu = 0.0
        # Input that belongs to no command is the server hanging up, or was not meant for us.
        # redis-py may have read some of it already.
        if (
            self.redis_connection is None
            or self._has_input()
            or (not has_token and self.redis_connection.can_read(0))
        ):
            self._connect(deadline)

    def close(self) -> None:
        """Close the connection. The next exchange connects again."""
        if self.redis_connection is not None:
            self.redis_connection.disconnect()
        self.redis_connection = None

    def _send(self, command: Command[T]) -> T:
        connection = self.redis_connection
        connection.send_packed_command((command.ahead + command.data,), check_health=False)
        if command.ahead:
            try:
                connection.read_response(disable_decoding=True)
            except ResponseError:
                self.close()  # There is another reply.
                raise
        reply = connection.read_response(disable_decoding=True)
        self._last_reply.at = Clock.monotonic()
        return command.read(reply)

    def _close_after(self, error: BaseException) -> BaseException:
        # A server that turns out to be a replica has to be replaced by the master.
        if not isinstance(error, (ResponseError, StaleRules)) or isinstance(error, ReadOnlyError):
            self.close()
        return as_redis_error(error)

    def _connect(self, deadline: Deadline) -> None:
        self.close()
        try:
            params = find_master(self._params, deadline)
            self.redis_connection = params.connection(self.exchange)
            self.redis_connection.connect()
            self._has_input = has_input(self.redis_connection.deadline_socket.sock)
            if params.sentinels:
                self._send(role_command())
        except BaseException as error:
            self.close()
            raise as_redis_error(error, Unreachable)  # noqa: B904 - it has its cause
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
