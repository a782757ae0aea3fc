"""A server that speaks Redis's protocol on a real socket, with replies from a script."""

from __future__ import annotations

import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Reply = Callable[["Scripted", socket.socket, list[bytes]], None]
"""Replies to a command; raises `OSError` to close the connection."""


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def mark(key: bytes) -> int:
    """Return the number that replies about a key contain."""
    return zlib.crc32(key)


def decision(
    command: list[bytes], *, numbers: int | None = None, fill: float | None = None
) -> bytes:
    """Return a valid reply to an EVALSHA of the program. Its numbers identify the keys."""
    count = int(command[2])
    token = command[-1]
    doubles = [1.0, 1.0, 1.0, 0.0]
    for key in command[3 : 3 + count]:
        doubles += [float(mark(key)), 0.0, *[float(mark(key))] * 3]
    if fill is not None:
        doubles[6] = fill
    if numbers is not None:
        doubles = (doubles * 9)[:numbers]
    return bulk(struct.pack(f"<{len(doubles)}d", *doubles) + token)


class Scripted:
    """A server on a free port, with a `script` that returns the reply to each command on any
    connection.
    """

    def __init__(self, script: Callable[[list[bytes]], Reply | bytes]) -> None:
        self.script = script
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *args: Any) -> None:
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @property
    def connected(self) -> int:
        """Return the number of connections that were made."""
        return len(self._connections)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as stream:
            while line := stream.readline():
                command = []
                for _ in range(int(line[1:])):
                    size = int(stream.readline()[1:])
                    command.append(stream.read(size + 2)[:-2])
                self.asked.append(command[0])
                reply = self.script(command)
                if isinstance(reply, bytes):
                    connection.sendall(reply)
                else:
                    reply(self, connection, command)


def usual(command: list[bytes], port: int = 0) -> bytes:
    """Return the reply of a healthy server: a master, or on that port a sentinel or a node of a
    cluster.
    """
    name = command[0].upper()
    host = b"127.0.0.1"
    if name in (b"EVALSHA", b"EVAL"):
        return decision(command)
    if name == b"PING":
        return b"+PONG\r\n"
    if name == b"DEL":
        return b":%d\r\n" % (len(command) - 1)
    if name == b"ROLE":
        return b"*3\r\n" + bulk(b"master") + b":0\r\n*0\r\n"
    if name == b"SENTINEL":
        return b"*2\r\n" + bulk(host) + bulk(b"%d" % port)
    if name == b"CLUSTER":
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + bulk(host) + b":%d\r\n" % port + bulk(b"id")
    return b"+OK\r\n"


def drip(data: bytes, pause: float) -> Reply:
    """Send the data one byte at a time, with pauses."""

    def reply(server: Scripted, connection: socket.socket, command: list[bytes]) -> None:
        for at in range(len(data)):
            connection.sendall(data[at : at + 1])
            time.sleep(pause)

    return reply


def late(data: bytes, seconds: float) -> Reply:
    """Send the data after a number of seconds."""

    def reply(server: Scripted, connection: socket.socket, command: list[bytes]) -> None:
        time.sleep(seconds)
        connection.sendall(data)

    return reply


def torn(data: bytes, at: int) -> Reply:
    """Send this number of bytes and close the connection."""

    def reply(server: Scripted, connection: socket.socket, command: list[bytes]) -> None:
        connection.sendall(data[:at])
        raise OSError

    return reply


def reset(data: bytes, at: int) -> Reply:
    """Send this number of bytes and reset the connection."""

    def reply(server: Scripted, connection: socket.socket, command: list[bytes]) -> None:
        connection.sendall(data[:at])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise OSError

    return reply


def followed(data: bytes, by: bytes, after: float) -> Reply:
    """Send the data, and later other data that is not a reply to a command."""

    def reply(server: Scripted, connection: socket.socket, command: list[bytes]) -> None:
        connection.sendall(data)

        def more() -> None:
            time.sleep(after)
            with suppress(OSError):
                connection.sendall(by)

        threading.Thread(target=more, daemon=True).start()

    return reply
