"""The gRPC server of one process."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from . import messages
from .answer import SlotEndedError, answer
from .question import MAX_BYTES, QuestionError

logger = logging.getLogger("django_ratelimit_lua")
MAX_AT_ONCE = 1000
"""Maximum number of concurrent requests in a process. Further ones are refused, to be repeated."""
GRACE_SECONDS = 5.0
"""How long running requests are still answered when the server stops."""
HEALTH_SECONDS = 1.0
"""How often it is looked whether limits can be decided."""
OPTIONS = [
    ("grpc.so_reuseport", 1),
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_concurrent_streams", MAX_AT_ONCE),
]


class Tls(NamedTuple):
    """A certificate, its key and, if clients need a certificate, the authority that signs it.

    All PEM.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


async def _should_rate_limit(data: bytes, context: Any) -> bytes:
    try:
        return await answer(data)
    except QuestionError as error:
        code, words = grpc.StatusCode.INVALID_ARGUMENT, str(error)
    except SlotEndedError as error:
        code, words = grpc.StatusCode.ABORTED, str(error)
    except Exception:
        logger.exception("A question of Envoy's could not be answered")
        code, words = grpc.StatusCode.INTERNAL, "this could not be decided"
    await _abort(context, code, words)


async def _abort(context: Any, code: grpc.StatusCode, words: str) -> NoReturn:
    await context.abort(code, words)
    raise AssertionError("abort raises")  # pragma: no cover


class Server:
    """The service on an address, and its health.

    `is_healthy` returns whether limits can be decided: the health service reports it, for all ("")
    and for the one service. Raises `OSError` if the address cannot be bound.
    """

    def __init__(
        self, address: str, is_healthy: Callable[[], Awaitable[bool]], tls: Tls | None = None
    ) -> None:
        self._server = aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_AT_ONCE)
        # As bytes, both ways: what cannot be read is a status of ours.
        handler: Any = grpc.unary_unary_rpc_method_handler(_should_rate_limit)
        service = grpc.method_handlers_generic_handler(messages.SERVICE, {messages.METHOD: handler})
        self._server.add_generic_rpc_handlers((service,))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._is_healthy = is_healthy
        self._said: bool | None = None
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials(
                    [(tls.key, tls.certificate)], tls.client_ca, tls.client_ca is not None
                )
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        if not port:
            raise OSError(f"cannot listen on {address}")

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT, and answer running requests then.

        `ready`: called when it serves.
        """
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        await self._look()
        await self._server.start()
        ready()
        while not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), HEALTH_SECONDS)
            await self._look()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(GRACE_SECONDS)

    async def _look(self) -> None:
        """Report the health, if it has changed."""
        is_healthy = await self._is_healthy()
        if is_healthy is not self._said:
            self._said = is_healthy
            serving = (
                health_pb2.HealthCheckResponse.SERVING
                if is_healthy
                else health_pb2.HealthCheckResponse.NOT_SERVING
            )
            for name in ("", messages.SERVICE):
                await self._health.set(name, serving)


def serve(
    address: str,
    is_healthy: Callable[[], Awaitable[bool]],
    ready: Callable[[], None],
    tls: Tls | None = None,
) -> None:
    """Serve in this process until a signal; see `Server`."""

    async def main() -> None:
        await Server(address, is_healthy, tls).run(ready)

    asyncio.run(main())
