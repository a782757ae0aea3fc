"""Connections for threads: a stack of idle ones, each used by one exchange at a time."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..process.forks import renew_after_fork
from .connection_params import ConnectionParams
from .exchange import Address, Exchange, Pipeline, Question, Replies, ended_by, greet, string_at, to_find_master
from .patience import Patience, Pulse
from .redis_py import open_socket

READ_SIZE = 16_384
PROMPT = 0.002
"""Seconds within which a thread comes back from a step that did not have to wait for the interpreter."""
_LAST_DATA_RECEIVED, _ROUND_TRIP = slice(52, 56), slice(68, 72)
"""Where Linux's `struct tcp_info` has the milliseconds since the peer was heard, and a round trip's microseconds."""
ATTEMPTS = 3
"""How often a connection is tried to be made that others got meanwhile."""


class Link:
    """One connection of one thread."""

    def __init__(self, params: ConnectionParams, pulse: Pulse) -> None:
        self._params = params
        self._pulse = pulse
        self._sock: Any = None
        self._timeout = -1.0
        self._sent = 0
        self._has_news: Callable[[], object] = lambda: True

    def ask(self, question: Question | Pipeline, patience: Patience) -> Any:
        """The answer to a question. Raises `Unreachable` where nothing was sent; else what the question or redis-py
        raises. Closes the connection unless it was answered fully and exactly."""
        # Whatever can be read where nothing was asked is the server hanging up, or not meant for us.
        if self._sock is None or self._has_news():
            self._connect(patience)
        if isinstance(question, Pipeline) or question.ahead:
            return self._perform(question.exchange(set()), patience)
        try:
            # Nearly every question is sent at once, and answered by one string that comes at once.
            self._sent = 0
            data = self._within(self._say, question.command, patience)
            first = string_at(data) if data else None
            if data and first is not None and first[1] == len(data):
                self._pulse.heard_at = time.monotonic()
                return question.read(first[0])
        except BaseException as error:
            raise ended_by(error, self.close)  # noqa: B904 - it knows its cause
        return self._perform(question.exchange(set()), patience, self._sent, data)

    @property
    def sock(self) -> Any:
        """The socket, of one that was asked something, for who goes on alone from there."""
        if self._sock is None:
            raise RedisConnectionError("the connection was closed")
        return self._sock

    def close(self) -> None:
        """Close it; the next question opens it anew."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def __del__(self) -> None:
        self.close()  # Of a store that was let go of while it was in use.

    def _say(self, command: bytes) -> bytes | None:
        """What comes for a command at once; None where it could not be sent as a whole."""
        self._sent = self._sock.send(command)
        return self._sock.recv(READ_SIZE) if self._sent == len(command) else None

    def _perform(self, exchange: Exchange, patience: Patience, sent: int = 0, data: bytes | None = None) -> Any:
        """The answer of an exchange, of whose first command so much was sent already, and this received."""
        try:
            to_send, owed = next(exchange)
            while True:
                while sent < len(to_send):
                    sent += self._within(self._sock.send, memoryview(to_send)[sent:], patience) or 0
                if owed.is_owed:
                    self._receive(owed, patience, data)
                    self._pulse.heard_at = time.monotonic()
                sent, data = 0, None
                to_send, owed = exchange.send(owed.found)
        except StopIteration as finished:
            return finished.value
        except BaseException as error:
            raise ended_by(error, self.close)  # noqa: B904 - it knows its cause

    def _receive(self, replies: Replies, patience: Patience, data: bytes | None) -> None:
        while True:
            if data is None:
                data = self._within(self._sock.recv, READ_SIZE, patience)
            if data == b"":
                raise RedisConnectionError("the server hung up")
            if data:
                # This thread's own work, without what it waits for the interpreter: what is always there is not free.
                began = time.thread_time()
                if replies.feed(data):
                    return
                patience.left -= time.thread_time() - began
                if patience.is_over:
                    raise RedisTimeoutError("the reply came too slowly")
            data = None

    def _within(self, step: Callable[[Any], Any], argument: Any, patience: Patience) -> Any:
        """What a step of the socket returns within a slice; None where that was too short. Raises where nothing was
        left, but for a look."""
        left, most = patience.left, patience.slice
        if left < most:
            most = max(0.0, left)
        if most != self._timeout:
            self._sock.settimeout(most)
            self._timeout = most
        began = time.monotonic()
        try:
            done = step(argument)
        except (TimeoutError, BlockingIOError):
            if not most:
                raise RedisTimeoutError("no answer within the deadline") from None
            patience.spend(began, most)
            return None
        took = time.monotonic() - began
        if took > PROMPT:
            took = max(0.0, took - _late_by(self._sock))
        patience.left = left - (took if took < most else most)
        return done

    def _connect(self, patience: Patience) -> None:
        self.close()
        params, needs_master = self._params, bool(self._params.sentinels)
        try:
            if needs_master:
                params = params.at(self._master(patience))
            self._sock = self._dialled(params, patience)
            self._timeout = -1.0
            self._has_news = has_news(self._sock)
            greeting = greet(params.credentials(), params.database, params.client_name, needs_master=needs_master)
            self._perform(greeting, patience)
        except BaseException as error:
            raise ended_by(error, self.close, connecting=True)  # noqa: B904 - it knows its cause

    def _dialled(self, params: ConnectionParams, patience: Patience) -> Any:
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            if patience.is_over:
                break
            try:
                time_left = partial(_left, patience, began)
                sock = open_socket(params.connection_class, params.options, time_left)
            except Exception as error:
                is_late = isinstance(error, (TimeoutError, RedisTimeoutError))
                if is_late and self._pulse.heard_at > began and attempt < ATTEMPTS - 1:
                    continue  # The server talks to others: it was this thread that came late.
                patience.spend(began, patience.left)
                raise
            took = time.monotonic() - began
            if took > PROMPT:
                took = _connecting(sock, took)
            # Where the system does not tell how late this thread came, there is time for an answer still.
            patience.left -= max(took, 0.0)
            patience.was_answered()
            return sock
        raise RedisTimeoutError("no time is left to connect")

    def _master(self, patience: Patience) -> Address:
        for sentinel, share in patience.shares(self._params.sentinels):
            link = Link(sentinel, Pulse())
            with suppress(RedisError, OSError), closing(link):
                master: Address | None = link.ask(to_find_master(self._params.service), share)
                if master is not None:
                    return master
        raise RedisConnectionError(f"no sentinel knows the master of {self._params.service!r}")


def _left(patience: Patience, began: float) -> float:
    return patience.left - (time.monotonic() - began)


def _late_by(sock: Any) -> float:
    """For how many seconds what the server said last has waited for this thread; 0.0 where the system does not tell."""
    return _told(sock, _LAST_DATA_RECEIVED) / 1000


def _connecting(sock: Any, took: float) -> float:
    """How many seconds a connection took to be made, of those that its thread took."""
    round_trip = _told(sock, _ROUND_TRIP) / 1_000_000
    if round_trip and not hasattr(sock, "pending"):  # Of TLS: there is more to it than one round trip.
        return min(took, round_trip)
    return took - _late_by(sock)


def _told(sock: Any, field: slice) -> int:
    """What the system tells of a connection; 0 where it does not."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.stop)
    except (AttributeError, OSError):  # Not of TCP, or not on Linux.
        return 0
    return int.from_bytes(info[field], sys.byteorder)


def has_news(sock: Any) -> Callable[[], object]:
    """What tells whether there is something to read, without waiting for it."""
    pending = getattr(sock, "pending", None)  # Of TLS: what was decrypted already.
    if not hasattr(select, "poll"):  # Windows, and greenlets of eventlet.
        return lambda: (pending is not None and pending()) or select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if pending is not None:
        return lambda: pending() or poll.poll(0)
    return partial(poll.poll, 0)


class _Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("link", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.link: Link | None = None


class Connections:
    """A process's connections to one server, for calls that block their thread."""

    def __init__(self, params: ConnectionParams, pulse: Pulse) -> None:
        self._params = params
        self._pulse = pulse
        self._begin()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        for link in self._idle:
            link.close()  # Of this process's copy; the parent's connection stays open.
        self._begin()

    def _begin(self) -> None:
        # A stack, so that no more are opened than are used at once. list.append and list.pop are atomic: the lock is
        # only for waiting for one.
        self._idle = [Link(self._params, self._pulse) for _ in range(self._params.most_connections)]
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that are idle."""
        for link in self._idle[:]:
            with suppress(ValueError):  # Somebody has taken it.
                self._idle.remove(link)
                link.close()
                self._idle.append(link)
                self._hand_over()

    def exchange(
        self, question: Question | Pipeline, patience: Patience, check: Callable[[], None] = lambda: None
    ) -> Any:
        """The answer to a question.

        Raises what redis-py raises (`Unreachable` where nothing was sent), or what `check` does, which is asked after
        waiting for a connection; a command is never sent twice after it may have been carried out.
        """
        try:
            link, waited = None if self._waiters else self._idle.pop(), False
        except IndexError:
            link = None
        if link is None:
            link, waited = self._waited_for(patience), True
        try:
            if waited:
                check()
            return link.ask(question, patience)
        finally:
            self._idle.append(link)
            if self._waiters:
                self._hand_over()

    def _waited_for(self, patience: Patience) -> Link:
        waiter, at_first = _Waiter(), patience.left
        with self._lock:
            self._waiters.append(waiter)
        try:
            # Who came too late to be seen by the one that let go of the last connection finds it idle.
            self._hand_over()
            while True:
                began, most = time.monotonic(), max(0.0, min(patience.left, patience.slice))
                if waiter.turn.acquire(timeout=most):
                    patience.spend(began, most)
                    if self._pulse.heard_at > began:
                        patience.left = at_first
                    link, waiter.link = waiter.link, None
                    assert link is not None
                    return link
                patience.spend(began, most)
                if self._pulse.heard_at > began:
                    patience.left = at_first - min(time.monotonic() - self._pulse.heard_at, most)
                elif not most:
                    raise RedisTimeoutError("no connection is free, and nobody is answered")
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.link is not None:  # Handed over too late.
                self._idle.append(waiter.link)
                self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            while self._waiters:
                try:
                    link = self._idle.pop()
                except IndexError:
                    return
                waiter = self._waiters.popleft()
                waiter.link = link
                waiter.turn.release()
