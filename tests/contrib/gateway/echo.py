"""A service whose responses have the status of the path, and the head of the request as body."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer


class _Handler(StreamRequestHandler):
    def handle(self) -> None:
        head = b"".join(iter(self.rfile.readline, b"\r\n"))
        if not head:
            return
        path = head.split(b" ")[1]
        status = path.removeprefix(b"/status/") if path.startswith(b"/status/") else b"200"
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(head)
        self.wfile.write(b"HTTP/1.1 " + status + b" Status\r\n" + length + head)


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
