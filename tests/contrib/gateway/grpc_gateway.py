"""The gRPC service of a site in processes of its own, and a client that asks as Envoy does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from django_ratelimit_lua.contrib.gateway.envoy import messages
from django_ratelimit_lua.testing.server import Server
from tests.demo import ROOT

Descriptor = list[tuple[Any, Any]]


def question(
    *descriptors: Descriptor | dict[str, Any], domain: str | bytes = "edge", hits: int = 0
) -> bytes:
    """A `RateLimitRequest`, as it is on the wire. A descriptor: its entries; or a dict with
    `entries`, and what else is said of it: `hits`, `negative`, `limit` (how many, and the number of
    the unit).
    """
    request = messages.Request(domain=_bytes(domain), hits_addend=hits)
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
    """Who asks the service, by one connection."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials | None = None) -> None:
        where = f"localhost:{port}" if credentials is not None else f"127.0.0.1:{port}"
        # A connection of its own, which may meet another process.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.insecure_channel(where, options)
            if credentials is None
            else grpc.secure_channel(where, credentials, options)
        )
        self._ask = self.channel.unary_unary(f"/{messages.SERVICE}/{messages.METHOD}")

    def raw(self, data: bytes, timeout: float = 20.0) -> Any:
        """The answer to these bytes. Raises `grpc.RpcError`."""
        return messages.Response.FromString(self._ask(data, timeout=timeout, wait_for_ready=True))

    def ask(self, *descriptors: Descriptor | dict[str, Any], **more: Any) -> Any:
        """The answer to a question about these."""
        return self.raw(question(*descriptors, **more))

    def code(self, *descriptors: Descriptor | dict[str, Any], **more: Any) -> int:
        """The code of that answer."""
        code: int = self.ask(*descriptors, **more).overall_code
        return code

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *args: object) -> None:
        self.channel.close()


class Gateway:
    """The service of a site with these rules, its Redis, and a client of it. `settings`:
    Django's."""

    def __init__(
        self,
        folder: Path,
        rules: list[dict[str, Any]],
        *,
        processes: int = 1,
        options: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.redis = Server()
        self.settings = {
            "DATABASES": {
                "default": {
                    "ENGINE": "django.db.backends.sqlite3",
                    "NAME": str(folder / "db.sqlite3"),
                }
            },
            "RATELIMIT_RULES": rules,
            "RATELIMIT_TIMEOUT": 5,
            **settings,
        }
        self.port = 0
        self._processes, self._options = processes, options
        self._all, self._service = ExitStack(), ExitStack()

    def __enter__(self) -> Gateway:
        with self._all as stack:
            stack.enter_context(self.redis)
            self.settings.setdefault(
                "CACHES",
                {
                    "default": {
                        "BACKEND": "django_redis.cache.RedisCache",
                        "LOCATION": self.redis.url,
                    }
                },
            )
            self.run("migrate", "--verbosity=0")
            self.start()
            self._all = stack.pop_all()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
        self._all.close()

    @property
    def environment(self) -> dict[str, str]:
        """That of its processes."""
        found = {**os.environ, "GRPC_SETTINGS": json.dumps(self.settings)}
        found.pop("DJANGO_SETTINGS_MODULE", None)
        return found

    def command(self, *arguments: str) -> list[str]:
        """A management command of the site, as a shell has it."""
        return [sys.executable, "-m", "tests.contrib.gateway.grpc_site", *arguments]

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a management command prints."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def start(self) -> None:
        """Start the processes of the service, on the port that it had."""
        self.processes: list[subprocess.Popen[str]] = []
        for _number in range(self._processes):
            self._start_process()

    def _start_process(self) -> None:
        arguments = [
            "ratelimit",
            "grpc",
            f"--port={self.port}",
            *self._options,
        ]
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        self._service.callback(self._end, process)
        said = process.stdout.readline()
        assert said.startswith("Answering Envoy on "), said
        self.port = int(said.rpartition(":")[2])

    def stop(self) -> None:
        """Stop it, and wait for that."""
        self._service.close()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()

    def client(self, credentials: grpc.ChannelCredentials | None = None) -> Client:
        """Somebody who asks it."""
        return Client(self.port, credentials)
