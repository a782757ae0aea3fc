"""The gRPC server of one process."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from . import messages
from .answer import answer
from .question import MAX_BYTES, QuestionError

logger = logging.getLogger("django_ratelimit_lua")
MAX_AT_ONCE = 1000
"""Maximum number of concurrent requests in a process. Further ones are refused, to be repeated."""
GRACE_SECONDS = 5.0
"""How long running requests are still answered when the server stops."""
HEALTH_SECONDS = 1.0
"""The interval between health checks."""
OPTIONS = [
    ("grpc.so_reuseport", 1),
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_concurrent_streams", MAX_AT_ONCE),
]


async def serve(
    address: str,
    is_healthy: Callable[[], Awaitable[bool]],
    ready: Callable[[int], None],
    tls: tuple[bytes, bytes, bytes | None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, and then complete the running requests.

    Args:
        address: The address to listen on. Several processes may listen on the same one.
        is_healthy: Returns whether limits can be decided. The health service reports that, for the
            whole server ("") and for the one service.
        ready: Called with the port when the server is ready.
        tls: A certificate, its key and, if clients need a certificate, the authority that signs it,
            each in PEM.

    Raises:
        OSError: The address cannot be bound.
    """
    server = aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_AT_ONCE)
    # As bytes, both ways: what cannot be read is a status of ours.
    handler: Any = grpc.unary_unary_rpc_method_handler(_should_rate_limit)
    service = grpc.method_handlers_generic_handler(messages.SERVICE, {messages.METHOD: handler})
    server.add_generic_rpc_handlers((service,))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            certificate, key, client_ca = tls
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], client_ca, client_ca is not None
            )
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await _report_health(servicer, is_healthy)
    await server.start()
    ready(port)
    while not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), HEALTH_SECONDS)
        await _report_health(servicer, is_healthy)
    await servicer.enter_graceful_shutdown()
    await server.stop(GRACE_SECONDS)


async def _should_rate_limit(data: bytes, context: Any) -> bytes:
    try:
        return await answer(data)
    except QuestionError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception:
        logger.exception("A request of Envoy could not be decided")
        await context.abort(grpc.StatusCode.INTERNAL, "the request could not be decided")
    raise AssertionError("abort raises")  # pragma: no cover


async def _report_health(
    servicer: health.HealthServicer, is_healthy: Callable[[], Awaitable[bool]]
) -> None:
    status: Any = health_pb2.HealthCheckResponse.NOT_SERVING
    if await is_healthy():
        status = health_pb2.HealthCheckResponse.SERVING
    for name in ("", messages.SERVICE):
        await servicer.set(name, status)
