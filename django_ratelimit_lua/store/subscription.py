"""A connection of its own that hears what is published on a channel, as soon as it is."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from ..conf import conf
from ..exceptions import StoreError
from ..process.forks import chance
from .blocking import READ_SIZE, Link
from .connection_params import ConnectionParams
from .exchange import LARGEST_USUAL, PING, Replies, command, to_ping
from .patience import Patience, Pulse

PING_SECONDS = 2.0
"""After so long without a word the server is asked whether it is there still; and after as long again it is not."""
MANY = 2**62


class Subscription:
    """Hears a channel until the connection ends. Raises `StoreError` where that cannot be, now or later.

    The channel of a cluster is the same on all its nodes: any of those that the alias names will do.
    """

    def __init__(self, channel: bytes, patience: Patience) -> None:
        self.channel = channel
        params = ConnectionParams.of(conf.USE_CACHE)
        if params.nodes:
            params = params.at(chance.choice(params.nodes))
        self._link = Link(params, Pulse())
        self._replies = Replies(MANY, LARGEST_USUAL)
        self._heard: list[bytes] = []
        self._heard_at = time.monotonic()
        self._is_open = self._is_asked = False
        try:
            self._link.ask(to_ping(), patience)
            self._send(command(b"SUBSCRIBE", channel))
            while not self._is_open:
                if patience.is_over:
                    raise RedisConnectionError("no answer to SUBSCRIBE")
                began, most = time.monotonic(), patience.left
                self._read(most)
                patience.spend(began, most)
        except (RedisError, OSError) as error:
            raise self._ended(error) from error

    def receive(self, seconds: float) -> list[bytes]:
        """What was published: waits for it, at most for so many seconds. Raises `StoreError` when the connection has
        ended, or nobody is there any more: then something may have been published that was not heard."""
        try:
            if not self._heard:
                silent = time.monotonic() - self._heard_at
                if silent > 2 * PING_SECONDS:
                    raise RedisConnectionError("the server is silent")
                if silent > PING_SECONDS and not self._is_asked:
                    self._send(PING)
                    self._is_asked = True
                self._read(seconds)
        except (RedisError, OSError) as error:
            raise self._ended(error) from error
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def hang_up(self) -> None:
        """End it from another thread: whoever receives is told at once."""
        with suppress(RedisError, OSError):
            self._link.sock.shutdown(socket.SHUT_RDWR)

    def _ended(self, error: Exception) -> StoreError:
        self.close()
        failure = StoreError(f"{type(error).__name__}: {error}")
        failure.was_answered = isinstance(error, ResponseError)
        return failure

    def _send(self, data: bytes) -> None:
        self._link.sock.settimeout(PING_SECONDS)
        self._link.sock.sendall(data)

    def _read(self, seconds: float) -> None:
        self._link.sock.settimeout(max(seconds, 0.001))
        try:
            data = self._link.sock.recv(READ_SIZE)
        except (TimeoutError, BlockingIOError):
            return
        if not data:
            raise RedisConnectionError("the server hung up")
        self._heard_at, self._is_asked = time.monotonic(), False
        self._replies.feed(data)
        found, self._replies.found = self._replies.found, []
        for reply in found:
            self._note(reply)
        if self._replies.is_between:
            self._replies = Replies(MANY, LARGEST_USUAL)  # Each of them may have so many bytes, not all together.

    def _note(self, reply: Any) -> None:
        if isinstance(reply, ResponseError) and not self._is_open:
            raise reply  # That to a PING is an answer, too, from who is there.
        if isinstance(reply, list) and reply[:2] == [b"subscribe", self.channel]:
            self._is_open = True
        elif isinstance(reply, list) and reply[:2] == [b"message", self.channel] and isinstance(reply[-1], bytes):
            self._heard.append(reply[-1])
