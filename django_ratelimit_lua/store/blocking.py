"""Connections for threads: a stack of idle ones, each used by one call at a time, under one deadline."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..process import renew_after_fork
from .alias import Alias, Unreachable
from .sentinel import check_role


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise RedisTimeoutError("the deadline of the decision has passed")
    return left


class _Deadline(AbstractConnection):
    """Mixed into the alias's connection class: where a deadline is set, every step has only what is left of it."""

    _sock: Any
    host: str
    port: int
    deadline: float | None = None
    readable: Callable[[], bool] | None = None
    """Tells whether there is something to read, without waiting for it; None while not connected."""

    def _connect(self) -> Any:
        if self.deadline is not None:
            self.socket_connect_timeout = self.socket_timeout = _left(self.deadline)
        return super()._connect()  # type: ignore[safe-super]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.deadline is not None and self._sock is not None:
            self._sock.settimeout(_left(self.deadline))
        return super().read_response(*args, **kwargs)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.readable = None
        super().disconnect(*args, **kwargs)


class Connections:
    """A process's connections to one alias, for calls that block their thread."""

    def __init__(self, alias: Alias, timeout: float) -> None:
        self._alias = alias
        self._timeout = timeout
        self._class: type[_Deadline] = type("DeadlineConnection", (_Deadline, alias.connection_class), {})
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # list.append and list.pop are atomic: the lock is only for making connections and for waiting for one.
        self._idle: list[_Deadline] = []
        self._made = 0
        self._waiting = 0
        self._freed = threading.Condition()

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().disconnect()

    def exchange(self, command: bytes, load: bytes, until: float | None = None, ahead: bytes = b"") -> Any:
        """Send a command and return its reply; where its script is unknown, load it and ask again.

        Everything together ends within the timeout, or at the moment `until`. Raises what redis-py raises
        (`Unreachable` where nothing was sent); a command is never sent twice after it may have been carried out.
        `ahead`: another command, to be sent right before that one.
        """
        deadline = time.monotonic() + self._timeout if until is None else until
        connection = self._take(deadline)
        try:
            # Something to read where nothing was asked is the server hanging up.
            if connection.readable is None or connection.readable():
                self._connect(connection, deadline)
            if until is not None:
                connection.deadline = until
            connection.send_packed_command([ahead + command], check_health=False)
            try:
                if ahead:
                    connection.read_response(disable_decoding=True)
                reply = connection.read_response(disable_decoding=True)
            except NoScriptError:
                connection.deadline = deadline
                connection.send_packed_command([load, ahead + command], check_health=False)
                if ahead:
                    connection.read_response(disable_decoding=True)
                connection.read_response(disable_decoding=True)
                reply = connection.read_response(disable_decoding=True)
            if connection.deadline is not None:
                connection.deadline = None
                connection._sock.settimeout(self._timeout)
            return reply
        except ReadOnlyError:  # A master that was demoted: who asks next has to look for the new one.
            connection.disconnect()
            raise
        except ResponseError:
            raise
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._idle.append(connection)
            if self._waiting:
                with self._freed:
                    self._freed.notify()

    def _take(self, deadline: float) -> _Deadline:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    if self._idle:
                        return self._idle.pop()
                    if self._made < self._alias.most_connections:
                        connection = self._class(**self._alias.kwargs(self._timeout))
                        self._made += 1
                        return connection
                    self._freed.wait(_left(deadline))
            finally:
                self._waiting -= 1

    def _connect(self, connection: _Deadline, deadline: float) -> None:
        connection.disconnect()
        connection.deadline = deadline
        sentinels = self._alias.sentinels
        if sentinels is not None:
            connection.host, connection.port = sentinels.master(deadline)
        try:
            connection.connect()
        except RedisConnectionError as error:
            raise Unreachable(str(error)) from error
        if sentinels is not None:
            connection.send_command("ROLE")
            check_role(connection.read_response(disable_decoding=True))
        connection.readable = _readable(connection._sock)


def _readable(sock: Any) -> Callable[[], bool]:
    if not hasattr(select, "poll"):  # Windows.
        return lambda: bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return lambda: bool(poll.poll(0))
