"""Connections for threads: a LIFO of idle ones, each used by one exchange at a time.

redis-py's own pool costs as much processor time as sending a command (`make bench`).
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..limits.call import StaleRules
from ..limits.program import PROGRAM
from ..process.forks import renew_after_fork
from .commands import (
    Address,
    Question,
    Unreachable,
    as_redis_error,
    to_check_master,
    to_find_master,
)
from .connection_params import ConnectionParams
from .flusher import flusher
from .patience import Patience, Pulse
from .redis_py import Turn

T = TypeVar("T")

BATCH_SIZE = 32
"""Commands of a pipeline that are sent together, so that the server begins while the rest is
encoded.
"""
IDLE_SECONDS = 60.0
"""A connection that was not used for this long is closed."""


class Link:
    """One connection, used by one thread at a time.

    It connects with the first exchange, and again after an error.
    """

    def __init__(self, params: ConnectionParams, pulse: Pulse) -> None:
        self._params = params
        self._pulse = pulse
        self.turn = Turn()
        self._has_input: Callable[[], object] = lambda: True
        self.connection: Any = None
        self.used_at = 0.0

    def ask(self, question: Question, patience: Patience) -> Any:
        """Send a command and return the answer.

        Raises `Unreachable` if nothing was sent, and the errors of the question and of redis-py.
        The connection is closed unless the reply was read completely.
        """
        self.begin(patience, has_token=question.program is PROGRAM)
        try:
            try:
                return self._exchange(question)
            except NoScriptError:  # It was not run.
                if question.program is None:
                    raise
                patience.was_answered()
                return self._exchange(question.with_source())
        except BaseException as error:
            raise self._ended(error)  # noqa: B904 - it has its cause

    def ask_all(self, questions: Iterable[Question], patience: Patience) -> list[Any]:
        """Send commands together and return their answers. All call the same program, or none.

        The first is sent with the source of the program: a command that did not find it could only
        be run after its successors.
        """
        self.begin(patience)
        asked: list[Question] = []
        remaining = iter(questions)
        try:
            while batch := list(islice(remaining, BATCH_SIZE)):
                if not asked and batch[0].program is not None:
                    batch[0] = batch[0].with_source()
                asked += batch
                data = b"".join([question.command for question in batch])
                self.connection.send_packed_command((data,), check_health=False)
            answers, errors = [], []
            for question in asked:
                try:
                    answers.append(
                        question.read(self.connection.read_response(disable_decoding=True))
                    )
                except ResponseError as error:
                    errors.append(error)
            self._pulse.heard_at = time.monotonic()
            if errors:
                raise errors[0]
            return answers
        except BaseException as error:
            raise self._ended(error)  # noqa: B904 - it has its cause

    def begin(self, patience: Patience, *, has_token: bool = False) -> None:
        """Begin an exchange.

        `has_token`: its reply shows by a token whether it is the reply to it.
        """
        self.turn.begin(patience)
        # Input that belongs to no command is the server hanging up, or was not meant for us.
        # redis-py may have read some of it already.
        if (
            self.connection is None
            or self._has_input()
            or (not has_token and self.connection.can_read(0))
        ):
            self._connect(patience)

    def close(self) -> None:
        """Close it. The next exchange connects again."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

    def _exchange(self, question: Question) -> Any:
        connection = self.connection
        connection.send_packed_command((question.ahead + question.command,), check_health=False)
        if question.ahead:
            try:
                connection.read_response(disable_decoding=True)
            except ResponseError:
                self.close()  # There is another reply.
                raise
        reply = connection.read_response(disable_decoding=True)
        self._pulse.heard_at = time.monotonic()
        return question.read(reply)

    def _ended(self, error: BaseException) -> BaseException:
        # A server that turns out to be a replica has to be replaced by the master.
        if not isinstance(error, (ResponseError, StaleRules)) or isinstance(error, ReadOnlyError):
            self.close()
        return as_redis_error(error)

    def _connect(self, patience: Patience) -> None:
        self.close()
        params = self._params
        try:
            if params.sentinels:
                params = params.at(self._master(patience))
            self.connection = params.connection(self.turn)
            self.connection.connect()
            self._has_input = has_input(self.connection.deadline_socket.sock)
            if params.sentinels:
                self._exchange(to_check_master())
        except BaseException as error:
            self.close()
            raise as_redis_error(error, Unreachable)  # noqa: B904 - it has its cause
        patience.was_answered()
        flusher.start()  # It closes the connection when it is idle.

    def _master(self, patience: Patience) -> Address:
        for sentinel, share in patience.shares(self._params.sentinels):
            link = Link(sentinel, Pulse())
            with suppress(RedisError, OSError), closing(link):
                master: Address | None = link.ask(to_find_master(self._params.service), share)
                if master is not None:
                    return master
        raise RedisConnectionError(f"no Sentinel knows the master of {self._params.service!r}")


def has_input(sock: Any) -> Callable[[], object]:
    """A function that returns whether there is something to read, without waiting and without
    reading it.
    """
    pending = getattr(sock, "pending", None)  # TLS: what is decrypted already.
    if not hasattr(select, "poll"):  # Windows, and greenlets of eventlet.
        return lambda: (pending is not None and pending()) or select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if pending is not None:
        return lambda: pending() or poll.poll(0)
    return partial(poll.poll, 0)


class Connections:
    """A process's connections to one server, for calls that block their thread."""

    def __init__(self, params: ConnectionParams, pulse: Pulse) -> None:
        self._params = params
        self._pulse = pulse
        self._begin()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        for link in self._idle:
            link.close()  # Only this process's copy; the parent's connection stays open.
        self._begin()

    def _begin(self) -> None:
        # list.append and list.pop are atomic, so that the lock is needed only by threads that wait.
        self._idle = [Link(self._params, self._pulse) for _ in range(self._params.max_connections)]
        self._freed = threading.Condition()
        self._waiting = 0

    def close(self, unused_since: float = float("inf")) -> bool:
        """Close the idle connections that were not used since a moment (monotonic).

        Return whether others are left.
        """
        for link in self._idle[:]:
            if link.connection is not None and link.used_at <= unused_since:
                with suppress(ValueError):  # A thread has taken it.
                    self._idle.remove(link)
                    link.close()
                    self._idle.insert(0, link)
        idle = self._idle[:]
        return len(idle) < self._params.max_connections or any(
            link.connection is not None for link in idle
        )

    def use(
        self,
        ask: Callable[[Link, T, Patience], Any],
        asked: T,
        patience: Patience,
        check: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call a method of a connection that is free, and return its result.

        Raises what the method raises, `TimeoutError` of redis-py if no connection gets free, and
        what `check` raises, which is called after waiting for one.
        """
        try:
            link = None if self._waiting else self._idle.pop()
        except IndexError:
            link = None
        is_late = link is None
        if link is None:
            link = self._wait(patience)
        try:
            if is_late:
                check()
            return ask(link, asked, patience)
        finally:
            link.used_at = time.monotonic()
            self._idle.append(link)
            if self._waiting:
                with self._freed:
                    self._freed.notify()

    def _wait(self, patience: Patience) -> Link:
        """Wait for a connection. Each reply of the server to another thread restarts the wait."""
        at_first = patience.left
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    with suppress(IndexError):
                        return self._idle.pop()
                    began, most = time.monotonic(), max(0.0, min(patience.left, patience.slice))
                    self._freed.wait(most)
                    patience.spend(began, most)
                    if self._pulse.heard_at > began:
                        patience.left = at_first - min(
                            time.monotonic() - self._pulse.heard_at, most
                        )
                    elif not most:
                        raise RedisTimeoutError(
                            "no connection is free, and the server answers no other thread"
                        )
            finally:
                self._waiting -= 1
