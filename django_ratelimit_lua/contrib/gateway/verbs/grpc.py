"""`grpc`: serve Envoy's rate limit service over gRPC."""

from __future__ import annotations

import argparse
import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from ....management.verbs import Printer, argument, verb
from ....operations.health import ahealth

MAX_PORT = 65535


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {MAX_PORT}")
    return int(text)


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@verb(
    "grpc",
    "answer Envoy's rate limit filter over gRPC (envoy.service.ratelimit.v3) by the "
    "rules for descriptors. SIGTERM or SIGINT ends it after pending requests are answered",
    argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"),
    argument(
        "--port",
        type=_port,
        default=8081,
        help="the port to listen on (default: 8081), which several processes may share; 0: any "
        "free port",
    ),
    argument(
        "--certificate",
        type=_read_file,
        metavar="FILE",
        help="the certificate for TLS, in PEM format; needs --key",
    ),
    argument(
        "--key",
        type=_read_file,
        metavar="FILE",
        help="the private key of the certificate, in PEM format",
    ),
    argument(
        "--client-ca",
        type=_read_file,
        metavar="FILE",
        help="the certificate authority of clients, in PEM format; other clients are refused",
    ),
)
def serve_grpc(command: Printer, options: dict[str, Any]) -> None:
    """Serve until a signal. Raises `CommandError` if the server cannot start."""
    if find_spec("grpc") is None or find_spec("grpc_health") is None:
        raise CommandError("gRPC is not installed: pip install 'django-ratelimit-lua[grpc]'")
    from ..envoy.server import serve

    host = options["host"]
    certificate = options["certificate"]
    key = options["key"]
    client_ca = options["client_ca"]
    tls = None
    if certificate and key:
        tls = (certificate, key, client_ca)
    elif certificate or key or client_ca:
        raise CommandError("TLS needs --certificate and --key")
    if ":" in host:
        host = f"[{host}]"

    def ready(port: int) -> None:
        command.say(f"Answering Envoy on {host}:{port}")
        command.stdout.flush()

    try:
        asyncio.run(serve(f"{host}:{options['port']}", _is_healthy, ready, tls))
    except (ImproperlyConfigured, OSError) as error:
        raise CommandError(str(error)) from None


async def _is_healthy() -> bool:
    return (await ahealth()).ok
