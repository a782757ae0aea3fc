"""`grpc`: serve Envoy's rate limit service over gRPC."""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from ....management.verbs import Printer, argument, verb
from ....operations.health import ahealth

MAX_PROCESSES = 256


def _whole(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
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
        type=partial(_whole, least=0, most=65535),
        default=8081,
        help="the port to listen on (default: 8081); 0: any free port",
    ),
    argument(
        "--processes",
        type=partial(_whole, least=1, most=MAX_PROCESSES),
        metavar="N",
        help="the number of processes (default: the number of cores)",
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
    # Before gRPC is imported, which may not be forked.
    from ..envoy.processes import ProcessEndedError, fork_processes, reserve_port

    host = options["host"]
    count = options["processes"] or _cores()
    certificate = options["certificate"]
    key = options["key"]
    client_ca = options["client_ca"]
    tls = None
    if certificate and key:
        tls = (certificate, key, client_ca)
    elif certificate or key or client_ca:
        raise CommandError("TLS needs --certificate and --key")
    with ExitStack() as stack:
        try:
            port = stack.enter_context(reserve_port(host, options["port"]))
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}, port {options['port']}: {error}"
            ) from None
        address = f"{host}:{port}"
        if ":" in host:
            address = f"[{host}]:{port}"
        number: int | None = 0
        if count > 1:
            connections.close_all()
            try:
                number = fork_processes(count)
            except ProcessEndedError as error:
                raise CommandError(str(error)) from None
            if number is None:
                return
        from ..envoy.server import serve

        def ready() -> None:
            if number == 0:  # One process prints it for all.
                command.say(
                    f"Answering Envoy on {address}" + f", in {count} processes" * (count > 1)
                )
                command.stdout.flush()

        try:
            asyncio.run(serve(address, _is_healthy, ready, tls))
        except (ImproperlyConfigured, OSError) as error:
            raise CommandError(str(error)) from None


async def _is_healthy() -> bool:
    return (await ahealth()).ok


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return 1
