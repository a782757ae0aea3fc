"""Connections for threads: a stack of idle ones, each used by one exchange at a time."""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..process.forks import renew_after_fork
from .alias import Alias, credentials
from .exchange import Address, Exchange, Question, Replies, Unreachable, ended_by, greet
from .patience import GRACE, Patience, Pulse
from .sentinel import Sentinels

READ_SIZE = 65_536
PROMPT = 0.002
"""Seconds within which a thread comes back from a step that did not have to wait for the interpreter."""
_LAST_DATA_RECEIVED, _ROUND_TRIP = slice(52, 56), slice(68, 72)
"""Where Linux's `struct tcp_info` has the milliseconds since the peer was heard, and a round trip's microseconds."""
ATTEMPTS = 3
"""How often a connection is tried to be made that others got meanwhile."""


class _Dial(AbstractConnection):
    """Mixed into the alias's connection class, which makes the socket (TLS and all) and nothing else: each of its steps
    may take what is left."""

    host: str
    port: int
    username: str | None
    password: str | None
    client_name: str | None
    db: int
    patience = Patience(0.0)
    began = 0.0

    @property
    def socket_timeout(self) -> float:
        return max(self.patience.left - (time.monotonic() - self.began), 0.001)

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        pass

    socket_connect_timeout = socket_timeout


@cache
def _dial_of(kind: Any) -> type[_Dial]:
    return type("Dial", (_Dial, kind), {})


class Link:
    """One connection of one thread."""

    def __init__(
        self, kind: type[AbstractConnection], kwargs: dict[str, Any], pulse: Pulse, sentinels: Sentinels | None = None
    ) -> None:
        self._sock: Any = None
        self._pulse = pulse
        self._sentinels = sentinels
        self._dial = _dial_of(cast(Any, kind))(**kwargs)
        self._timeout = -1.0
        self._has_news: Callable[[], bool] = lambda: True

    def ask(self, question: Question, patience: Patience) -> Any:
        """The answer to a question. Raises `Unreachable` where nothing was sent; else what the question or redis-py
        raises. Closes the connection unless it was answered fully and exactly."""
        # Whatever can be read where nothing was asked is the server hanging up, or not meant for us.
        if self._sock is None or self._has_news():
            self._connect(patience)
        return self._perform(question.exchange(), patience)

    def close(self) -> None:
        """Close it; the next question opens it anew."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def __del__(self) -> None:
        self.close()  # Of a store that was let go of while it was in use.

    def _perform(self, exchange: Exchange, patience: Patience) -> Any:
        try:
            to_send, owed = next(exchange)
            while True:
                self._send(to_send, patience)
                self._receive(owed, patience)
                self._pulse.heard()
                to_send, owed = exchange.send(owed.found)
        except StopIteration as finished:
            return finished.value
        except BaseException as error:
            raise ended_by(error, self.close)  # noqa: B904 - it knows its cause

    def _send(self, data: bytes, patience: Patience) -> None:
        sent = self._within(self._sock.send, data, patience) or 0
        rest = memoryview(data)[sent:]
        while rest:
            rest = rest[self._within(self._sock.send, rest, patience) or 0 :]

    def _receive(self, replies: Replies, patience: Patience) -> None:
        while True:
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

    def _within(self, step: Callable[[Any], Any], argument: Any, patience: Patience) -> Any:
        """What a step of the socket returns within a slice; None where that was too short. Raises where nothing was
        left, but for a look."""
        most = patience.next_slice()
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
            took -= _late_by(self._sock)
        patience.left -= min(max(took, 0.0), most)
        return done

    def _connect(self, patience: Patience) -> None:
        self.close()
        if self._sentinels is not None:
            self._dial.host, self._dial.port = _master(self._sentinels, patience)
        self._sock = self._dialled(patience)
        self._timeout = -1.0
        self._has_news = _has_news(self._sock)
        try:
            self._perform(
                greet(
                    credentials(self._dial),
                    self._dial.db,
                    self._dial.client_name,
                    needs_master=self._sentinels is not None,
                ),
                patience,
            )
        except BaseException as error:
            raise ended_by(error, self.close, connecting=True)  # noqa: B904

    def _dialled(self, patience: Patience) -> Any:
        for attempt in range(ATTEMPTS):
            self._dial.patience, self._dial.began = patience, time.monotonic()
            if patience.is_over:
                break
            try:
                sock = self._dial._connect()
            except Exception as error:
                is_late = isinstance(error, (TimeoutError, RedisTimeoutError))
                if is_late and self._pulse.heard_at > self._dial.began and attempt < ATTEMPTS - 1:
                    continue  # The server talks to others: it was this thread that came late.
                patience.spend(self._dial.began, patience.left)
                raise Unreachable(f"{type(error).__name__}: {error}") from error
            took = time.monotonic() - self._dial.began
            if took > PROMPT:
                took = _connecting(sock, took)
            # Where the system does not tell how late this thread came, there is time for an answer still.
            patience.left = max(patience.left - max(took, 0.0), min(GRACE, patience.whole / 5))
            return sock
        raise Unreachable("no time is left to connect")


def _master(sentinels: Sentinels, patience: Patience) -> Address:
    search = sentinels.search(patience)
    try:
        kwargs, share = next(search)
        while True:
            link = Link(sentinels.classes[0], kwargs, Pulse())
            try:
                found = link.ask(sentinels.question, share)
            except (RedisError, OSError) as error:
                kwargs, share = search.throw(error)
            else:
                kwargs, share = search.send(found)
            finally:
                link.close()
    except StopIteration as finished:
        return cast(Address, finished.value)


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


def _has_news(sock: Any) -> Callable[[], bool]:
    """What tells whether there is something to read, without waiting for it."""
    pending = getattr(sock, "pending", None)  # Of TLS: what was decrypted already.
    if not hasattr(select, "poll"):  # Windows, and greenlets of eventlet.
        return lambda: bool((pending is not None and pending()) or select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if pending is not None:
        return lambda: bool(pending() or poll.poll(0))
    return lambda: bool(poll.poll(0))


class _Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("link", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.link: Link | None = None


class Connections:
    """A process's connections to one alias, for calls that block their thread."""

    def __init__(self, alias: Alias, pulse: Pulse) -> None:
        self._alias = alias
        self._pulse = pulse
        self._begin()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        for link in self._idle:
            link.close()  # Of this process's copy; the parent's connection stays open.
        self._begin()

    def _begin(self) -> None:
        # list.append and list.pop are atomic: the lock is only for making connections and for waiting for one.
        self._idle: list[Link] = []
        self._made = 0
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().close()
            with self._lock:
                self._made -= 1

    def exchange(self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None) -> Any:
        """The answer to a question.

        Raises what redis-py raises (`Unreachable` where nothing was sent), or what `check` does, which is asked after
        waiting for a connection; a command is never sent twice after it may have been carried out.
        """
        link, waited = self._free(), False
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

    def _free(self) -> Link | None:
        """One that is idle, or a new one; None where it is others' turn."""
        if not self._waiters:
            try:
                return self._idle.pop()
            except IndexError:
                pass
        with self._lock:
            if self._waiters or self._made >= self._alias.most_connections:
                return None
            self._made += 1
        try:
            alias = self._alias
            return Link(alias.connection_class, alias.kwargs(), self._pulse, alias.sentinels)
        except BaseException:
            with self._lock:
                self._made -= 1
            raise

    def _waited_for(self, patience: Patience) -> Link:
        waiter, at_first = _Waiter(), patience.left
        with self._lock:
            self._waiters.append(waiter)
        try:
            # Who came too late to be seen by the one that let go of the last connection finds it idle.
            self._hand_over()
            while True:
                began, most = time.monotonic(), patience.next_slice()
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
