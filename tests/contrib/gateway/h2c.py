"""A service that speaks HTTP/2 without TLS to any client that upgrades to it, and such a client."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded

SETTINGS = "AAMAAABkAAQAAP__"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class _Handler(StreamRequestHandler):
    """One request: over HTTP/1.1 it gets its headers as JSON, and the status of its path."""

    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n")).decode("latin-1")
        line, *fields = head.splitlines() or [""]
        if not line:
            return
        parts = [field.partition(": ") for field in fields]
        pairs = [(name.lower(), value) for name, _, value in parts]
        upgrades = ",".join([value for name, value in pairs if name == "upgrade"])
        if "h2c" in upgrades.lower():
            self._speak(dict(pairs).get("http2-settings", SETTINGS))
            return
        _, path, _ = line.split(" ")
        status = path.removeprefix("/status/") if path.startswith("/status/") else "200"
        body = json.dumps({"path": path, "headers": dict(pairs)}).encode()
        head = f"HTTP/1.1 {status} S\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def _speak(self, settings: str) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_upgrade_connection(settings.encode())
        self.wfile.write(SWITCHED)
        self._answer(connection, 1)
        while data := self.request.recv(65536):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    self._answer(connection, event.stream_id)

    def _answer(self, connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, [(":status", "200")], end_stream=True)
        self.wfile.write(connection.data_to_send())


@contextmanager
def serving() -> Iterator[int]:
    """Run the service, and yield its port."""
    with ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def tunnelled(port: int, *upgrades: str) -> int:
    """Return how many requests get a response after an upgrade with these `Upgrade` lines."""
    lines = [
        "GET /tunnel HTTP/1.1",
        "Host: a",
        "Connection: Upgrade, HTTP2-Settings",
        f"HTTP2-Settings: {SETTINGS}",
    ]
    head = "\r\n".join([*lines, *(f"Upgrade: {upgrade}" for upgrade in upgrades), "", ""])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer and (data := client.recv(65536)):
            answer += data
        if not answer.startswith(b"HTTP/1.1 101"):
            return 0
        connection = H2Connection()
        connection.initiate_upgrade_connection()
        for stream in (3, 5, 7):
            names = {":method": "GET", ":path": "/tunnel", ":scheme": "http", ":authority": "a"}
            connection.send_headers(stream, list(names.items()), end_stream=True)
        client.sendall(connection.data_to_send())
        answered, data = 0, answer.partition(b"\r\n\r\n")[2]
        while answered < 4:
            events = connection.receive_data(data)
            answered += sum([isinstance(event, StreamEnded) for event in events])
            data = client.recv(65536) if answered < 4 else b""
        return answered
