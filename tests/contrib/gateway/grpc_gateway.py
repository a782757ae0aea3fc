"""The gRPC service of a site in processes of its own, and a client of the protocol."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import grpc

from django_ratelimit_lua.contrib.gateway import protocol
from tests.contrib.gateway.proxies import SECRET, Processes
from tests.support.processes import ROOT

METHOD = f"/{protocol.SERVICE}/{protocol.METHOD}"
METADATA = (("x-ratelimit-secret", SECRET),)
Descriptor = list[tuple[Any, Any]]


def question(
    *descriptors: Descriptor | dict[str, Any], domain: str | bytes = "edge", hits: int = 0
) -> bytes:
    """Return an encoded `RateLimitRequest`."""
    request = protocol.Request(domain=_bytes(domain), hits_addend=hits)
    for given in descriptors:
        described = request.descriptors.add()
        more = given if isinstance(given, dict) else {"entries": given}
        for key, value in more["entries"]:
            described.entries.add(key=_bytes(key), value=_bytes(value))
        if "hits" in more:
            described.hits_addend.value = more["hits"]
        described.is_negative_hits = more.get("negative", False)
        if "limit" in more:
            described.limit.requests_per_unit, described.limit.unit = more["limit"]
    return request.SerializeToString()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


class Client:
    """A client of the service, with one connection."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None = None) -> None:
        # A connection of its own, which may meet another process.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        else:
            self.channel = grpc.secure_channel(f"localhost:{port}", credentials, options)

    def call(self, data: bytes, method: str = METHOD, metadata: Any = METADATA) -> bytes:
        """Return the response to these bytes. Raises `grpc.RpcError`."""
        call = self.channel.unary_unary(method)
        response: bytes = call(data, timeout=20, wait_for_ready=True, metadata=metadata)
        return response

    def ask(self, *descriptors: Descriptor | dict[str, Any], **more: Any) -> Any:
        """Return the response to a request with these descriptors."""
        return protocol.Response.FromString(self.call(question(*descriptors, **more)))

    def code(self, *descriptors: Descriptor | dict[str, Any], **more: Any) -> int:
        """Return the code of that response."""
        code: int = self.ask(*descriptors, **more).overall_code
        return code

    def left(self, *entries: tuple[str, str], domain: str = "edge") -> int:
        """Return the remaining units of a descriptor, without a hit."""
        found = self.ask({"entries": entries, "hits": 0}, domain=domain)
        remaining: int = found.statuses[0].limit_remaining
        return remaining

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *args: object) -> None:
        self.channel.close()


class Gateway(Processes):
    """The gRPC service of a site in several processes, on one port."""

    def __init__(
        self,
        folder: Path,
        rules: list[dict[str, Any]],
        *,
        processes: int = 1,
        options: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(folder, rules, **{"RATELIMIT_TIMEOUT": 5, **settings})
        self.port = 0
        self._processes, self._options = processes, options

    def start(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        for _ in range(self._processes):
            command = self.command("ratelimit", "grpc", f"--port={self.port}", *self._options)
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True
            )
            self.processes.append(process)
            self._gateway.callback(self._end, process)
            line = process.stdout.readline()
            assert line.startswith("Answering on "), line
            self.port = int(line.rpartition(":")[2])

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()

    def client(self, credentials: grpc.ChannelCredentials | None = None) -> Client:
        """Return a client of the service."""
        return Client(self.port, credentials)
