"""Envoy's rate limit service over gRPC: the server of one process."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from . import protocol
from .conf import PROTOCOL
from .secrets import SECRET_HEADER, authenticate
from .should_rate_limit import should_rate_limit

logger = logging.getLogger("django_ratelimit_lua")
MAX_CONCURRENT_CALLS = 1000
"""Maximum number of concurrent calls in a process. Further ones get RESOURCE_EXHAUSTED."""
GRACE_SECONDS = 5.0
"""How long running calls are still answered when the server stops."""
OPTIONS = [("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", protocol.MAX_BYTES)]


async def serve(
    address: str,
    ready: Callable[[int], None],
    credentials: grpc.ServerCredentials | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, and then complete the running calls.

    Args:
        address: The address to listen on. Several processes may listen on the same one.
        ready: Called with the port when the server is ready.
        credentials: Those of TLS.

    Raises:
        OSError: The address cannot be bound.
    """
    server = aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    # As bytes, both ways, so that invalid messages get a status of this service.
    handler: Any = grpc.unary_unary_rpc_method_handler(_answer_call)
    service = grpc.method_handlers_generic_handler(protocol.SERVICE, {protocol.METHOD: handler})
    server.add_generic_rpc_handlers((service,))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = _bind(server, address, credentials)
    # Also while Redis is unavailable, because the policies of the limits decide then.
    for name in ("", protocol.SERVICE):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    ready(port)
    await stopping.wait()
    await servicer.enter_graceful_shutdown()
    await server.stop(GRACE_SECONDS)


def _bind(server: aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind the server to an address, and return the port. Raises `OSError`."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None


async def _answer_call(message: bytes, context: Any) -> bytes:
    """Answer a call of `ShouldRateLimit`, if its metadata contains a secret."""
    metadata = context.invocation_metadata()
    # Repeated values are joined, as over HTTP.
    secret = ",".join([value for key, value in metadata if key == SECRET_HEADER.lower()])
    secret_name = authenticate(secret, PROTOCOL, context.peer())
    if secret_name is None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a secret of this site is required")
    try:
        response: bytes = (await should_rate_limit(message)).SerializeToString()
    except protocol.ProtocolError as error:
        logger.warning("The gateway refused a call with the secret %r: %s", secret_name, error)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception:
        logger.exception("A call could not be decided")
        await context.abort(grpc.StatusCode.INTERNAL, "the call could not be decided")
    return response
