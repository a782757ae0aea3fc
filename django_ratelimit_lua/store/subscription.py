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
from .exchange import LARGEST_USUAL, PING, Replies, command, to_execute
from .patience import Patience, Pulse

PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
PING_SECONDS, SILENT_SECONDS = 0.5, 4.0
"""How often the server is asked whether it is there still; and how long after that it is not, without an answer."""
MANY = 2**62


class Subscription:
    """Hears a channel until the connection ends. Raises `StoreError` where that cannot be, now or later.

    The channel of a cluster is the same on all its nodes: any of those that the alias names will do. But a node that is
    cut off from the others passes on what is published there no more, and answers as ever.

    `heard_at`: until when (monotonic) everything was heard that was published; never known in a cluster.
    """

    _twin: socket.socket | None = None

    def __init__(self, channel: bytes, patience: Patience) -> None:
        self.channel = channel
        self.heard_at = float("-inf")
        params = ConnectionParams.of(conf.USE_CACHE)
        self._hears_all = not params.nodes
        if params.nodes:
            params = params.at(chance.choice(params.nodes))
        self._link = Link(params, Pulse())
        self._replies = Replies(MANY, LARGEST_USUAL)
        self._heard: list[bytes] = []
        self._pinged_at = float("-inf")
        self._is_open = self._is_pinged = False
        try:
            # To nobody. It fails for a user who may not publish: of others of that user, nothing would be heard.
            self._link.ask(to_execute(b"PUBLISH", channel + b":test", b""), patience)
            self._send(command(b"SUBSCRIBE", channel))
            while not self._is_open:
                if patience.is_over:
                    raise RedisConnectionError("no answer to SUBSCRIBE")
                began, most = time.monotonic(), patience.left
                self._read(most)
                patience.spend(began, most)
            sock = self._link.sock
            self._twin = socket.fromfd(sock.fileno(), sock.family, sock.type)
            self._twin.settimeout(0.0)
        except (RedisError, OSError) as error:
            raise self._ended(error) from error

    def has_news(self) -> bool:
        """Whether there is something to be received, or the connection has ended; waits for nothing, and takes nothing.
        For the other threads: who receives may have to wait until it is its turn."""
        try:
            # Of what is encrypted nobody can tell whether it is only the answer to our own question.
            return self._twin is not None and self._twin.recv(len(PONG) + 1, socket.MSG_PEEK) != PONG
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self, seconds: float) -> list[bytes]:
        """What was published: waits for it, at most for so many seconds. Raises `StoreError` when the connection has
        ended, or nobody is there any more: then something may have been published that was not heard."""
        try:
            if not self._heard:
                now = time.monotonic()
                if not self._is_pinged and now - self._pinged_at >= PING_SECONDS:
                    self._pinged_at, self._is_pinged = now, True
                    self._send(PING)
                self._read(min(seconds, PING_SECONDS))
                # By the time before it was read: this process may have stood still, and the answer be there.
                if self._is_pinged and now - self._pinged_at > SILENT_SECONDS:
                    raise RedisConnectionError("the server is silent")
        except (RedisError, OSError) as error:
            raise self._ended(error) from error
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        self._link.close()
        if self._twin is not None:
            self._twin.close()

    def __del__(self) -> None:
        if self._twin is not None:  # Of one that was let go of, as after a fork; the link closes itself.
            self._twin.close()

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
        self._link.sock.settimeout(SILENT_SECONDS)
        self._link.sock.sendall(data)

    def _read(self, seconds: float) -> None:
        self._link.sock.settimeout(max(seconds, 0.001))
        try:
            data = self._link.sock.recv(READ_SIZE)
        except (TimeoutError, BlockingIOError):
            return
        if not data:
            raise RedisConnectionError("the server hung up")
        self._replies.feed(data)
        replies, self._replies.found = self._replies.found, []
        for reply in replies:
            self._note(reply)
        if self._replies.is_between:
            self._replies = Replies(MANY, LARGEST_USUAL)  # Each of them may have so many bytes, not all together.

    def _note(self, reply: Any) -> None:
        if isinstance(reply, ResponseError) and not self._is_open:
            raise reply
        match reply:
            case [b"subscribe", self.channel, *_]:
                self._is_open = True
            case [b"message", self.channel, bytes(message)]:
                self._heard.append(message)
            case [b"pong", *_] | ResponseError():  # An error is an answer as well.
                self._is_pinged = False
                if self._hears_all:  # Answers come behind whatever was published before the question.
                    self.heard_at = self._pinged_at
