"""`grpc`: serve Envoy's rate limit service over gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from ....management.verbs import Printer, argument, verb
from ..conf import PROTOCOL
from ..secrets import secret_for

MAX_PORT = 65535


@verb(
    "grpc",
    "answer Envoy's rate limit service over gRPC (envoy.service.ratelimit.v3) by the rules for "
    "descriptors. SIGTERM or SIGINT ends it after pending calls are answered",
    argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"),
    argument(
        "--port",
        type=int,
        default=8081,
        help="the port to listen on (default: 8081), which several processes may share; 0: any "
        "free port",
    ),
    argument(
        "--tls",
        nargs=2,
        type=Path,
        metavar=("CERTIFICATE", "KEY"),
        help="serve over TLS, with the certificate and its private key in these PEM files",
    ),
)
def serve_grpc(command: Printer, options: dict[str, Any]) -> None:
    """Serve until a signal. Raises `CommandError` if the server cannot start."""
    host = options["host"]
    if ":" in host:
        host = f"[{host}]"

    def ready(port: int) -> None:
        command.say(f"Answering on {host}:{port}")
        command.stdout.flush()

    try:
        secret_for(PROTOCOL)
        if not 0 <= options["port"] <= MAX_PORT:
            raise CommandError(f"the port must be from 0 to {MAX_PORT}")
        import grpc

        from ..envoy.server import serve

        credentials = None
        if options["tls"]:
            certificate, key = [path.read_bytes() for path in options["tls"]]
            credentials = grpc.ssl_server_credentials([(key, certificate)])
        asyncio.run(serve(f"{host}:{options['port']}", ready, credentials))
    except ImportError as error:
        raise CommandError(f"{error}: pip install 'django-ratelimit-lua[gateway]'") from None
    except (ImproperlyConfigured, OSError, ValueError) as error:
        raise CommandError(str(error)) from None
