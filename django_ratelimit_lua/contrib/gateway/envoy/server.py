"""The gRPC server of one process."""

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

from ..conf import PROTOCOL
from ..secrets import SECRET_HEADER, find_secret
from . import messages
from .answer import answer
from .question import MAX_BYTES, QuestionError

logger = logging.getLogger("django_ratelimit_lua")
MAX_CONCURRENT_CALLS = 1000
"""Maximum number of concurrent calls in a process. Further ones get RESOURCE_EXHAUSTED."""
GRACE_SECONDS = 5.0
"""How long running calls are still answered when the server stops."""
OPTIONS = [("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", MAX_BYTES)]


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
    handler: Any = grpc.unary_unary_rpc_method_handler(_should_rate_limit)
    service = grpc.method_handlers_generic_handler(messages.SERVICE, {messages.METHOD: handler})
    server.add_generic_rpc_handlers((service,))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # Also while Redis is unavailable, because the policies of the limits decide then.
    for name in ("", messages.SERVICE):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    ready(port)
    await stopping.wait()
    await servicer.enter_graceful_shutdown()
    await server.stop(GRACE_SECONDS)


async def _should_rate_limit(data: bytes, context: Any) -> bytes:
    metadata = context.invocation_metadata()
    # Repeated ones are joined, as over HTTP.
    given = ",".join([value for key, value in metadata if key == SECRET_HEADER.lower()])
    name = find_secret(given, PROTOCOL, context.peer())
    if name is None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a secret of this site is required")
    try:
        response: bytes = (await answer(data)).SerializeToString()
    except QuestionError as error:
        logger.warning("The gateway refused a call with the secret %r: %s", name, error)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception:
        logger.exception("A call could not be decided")
        await context.abort(grpc.StatusCode.INTERNAL, "the call could not be decided")
    return response
