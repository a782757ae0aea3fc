"""Connections for threads, each used by one exchange at a time."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from ..limits.call import StaleRules
from ..limits.program import Program
from ..process.clock import Clock
from .commands import (
    Question,
    Unreachable,
    as_redis_error,
    to_check_master,
    to_find_master,
)
from .connection_params import ConnectionParams
from .deadline import Deadline, LastReply
from .flusher import flusher
from .redis_py import Turn

T = TypeVar("T")

BATCH_SIZE = 32
"""Commands of a pipeline that are sent together, so that the server begins while the rest is
encoded.
"""


class Link:
    """One connection, used by one thread at a time.

    It connects with the first exchange, and again after an error.
    """

    def __init__(self, params: ConnectionParams, last_reply: LastReply) -> None:
        self._params = params
        self._last_reply = last_reply
        self.turn = Turn()
        self._has_input: Callable[[], object] = lambda: True
        self.connection: Any = None
        self.used_at = 0.0

    def ask(self, question: Question[T], deadline: Deadline) -> T:
        """Send a command and return the answer.

        Raises `Unreachable` if nothing was sent, and the errors of the question and of redis-py.
        The connection is closed unless the reply was read completely.
        """
        self.begin(deadline, has_token=question.has_token)
        try:
            try:
                return self._exchange(question)
            except NoScriptError:  # It was not run.
                if question.program is None:
                    raise
                deadline.extend()
                return self._exchange(question.with_source())
        except BaseException as error:
            raise self._ended(error)  # noqa: B904 - it has its cause

    def ask_all(self, questions: Iterable[Question[T]], deadline: Deadline) -> list[T]:
        """Send commands together and return their answers.

        The first that calls a script is sent with its source: if the server did not have the
        script, a command that is sent again would run after its successors.
        """
        self.begin(deadline)
        asked: list[Question[T]] = []
        sent: set[Program] = set()
        remaining = iter(questions)
        try:
            while batch := list(islice(remaining, BATCH_SIZE)):
                for place, question in enumerate(batch):
                    if question.program is not None and question.program not in sent:
                        sent.add(question.program)
                        batch[place] = question.with_source()
                asked += batch
                data = b"".join([question.command for question in batch])
                self.connection.send_packed_command((data,), check_health=False)
            answers = []
            errors = []
            for question in asked:
                try:
                    answers.append(
                        question.read(self.connection.read_response(disable_decoding=True))
                    )
                except ResponseError as error:
                    errors.append(error)
            self._last_reply.at = Clock.monotonic()
            if errors:
                raise errors[0]
            return answers
        except BaseException as error:
            raise self._ended(error)  # noqa: B904 - it has its cause

    def begin(self, deadline: Deadline, *, has_token: bool = False) -> None:
        """Begin an exchange.

        With `has_token`, the reply contains a token that proves that it belongs to the command.
        """
        # `Turn.begin`, inlined: it is on the way of every hit.
        turn = self.turn
        turn.deadline = deadline
        turn.received = 0
        turn.cpu = 0.0
        # Input that belongs to no command is the server hanging up, or was not meant for us.
        # redis-py may have read some of it already.
        if (
            self.connection is None
            or self._has_input()
            or (not has_token and self.connection.can_read(0))
        ):
            self._connect(deadline)

    def close(self) -> None:
        """Close the connection. The next exchange connects again."""
        if self.connection is not None:
            self.connection.disconnect()
        self.connection = None

    def _exchange(self, question: Question[T]) -> T:
        connection = self.connection
        connection.send_packed_command((question.ahead + question.command,), check_health=False)
        if question.ahead:
            try:
                connection.read_response(disable_decoding=True)
            except ResponseError:
                self.close()  # There is another reply.
                raise
        reply = connection.read_response(disable_decoding=True)
        self._last_reply.at = Clock.monotonic()
        return question.read(reply)

    def _ended(self, error: BaseException) -> BaseException:
        # A server that turns out to be a replica has to be replaced by the master.
        if not isinstance(error, (ResponseError, StaleRules)) or isinstance(error, ReadOnlyError):
            self.close()
        return as_redis_error(error)

    def _connect(self, deadline: Deadline) -> None:
        self.close()
        try:
            params = find_master(self._params, deadline)
            self.connection = params.connection(self.turn)
            self.connection.connect()
            self._has_input = has_input(self.connection.deadline_socket.sock)
            if params.sentinels:
                self._exchange(to_check_master())
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
        with suppress(RedisError, OSError), closing(Link(sentinel, LastReply())) as link:
            master = link.ask(to_find_master(params.service), share)
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
