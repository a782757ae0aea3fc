"""`grpc`: answers Envoy's questions about limits, over gRPC."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from ....management.verbs import Printer, argument, verb
from ....operations.health import ahealth

MAX_PROCESSES = 256


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _count(text: str) -> int:
    return _whole(text, 1, MAX_PROCESSES)


def _whole(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"write a whole number from {least} to {most}")
    return int(text)


@verb(
    "grpc",
    "answer Envoy's rate limit filter over gRPC (envoy.service.ratelimit.v3), by the rules for "
    "descriptors; until "
    "SIGTERM or SIGINT, by which those who have asked are still answered",
    argument("--host", default="127.0.0.1", help="the address to listen on; 127.0.0.1 by default"),
    argument("--port", type=_port, default=8081, help="8081 by default; 0: one that is free"),
    argument(
        "--processes",
        type=_count,
        metavar="N",
        help="how many processes; by default, as many as there are cores",
    ),
    argument("--certificate", type=Path, metavar="FILE", help="PEM, for TLS; with --key"),
    argument("--key", type=Path, metavar="FILE", help="PEM, of the certificate"),
    argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="PEM; only clients that it has signed are answered",
    ),
)
def serve_grpc(command: Printer, options: dict[str, Any]) -> None:
    if find_spec("grpc") is None or find_spec("grpc_health") is None:
        raise CommandError("gRPC is not installed: pip install 'django-ratelimit-lua[grpc]'")
    # Before gRPC is imported, which may not be forked.
    from ..envoy.processes import ProcessEndedError, in_processes, reserved

    host, count = options["host"], options["processes"] or _cores()
    tls = _tls(options)
    with ExitStack() as stack:
        try:
            port = stack.enter_context(reserved(host, options["port"]))
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}, port {options['port']}: {error}"
            ) from None
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        number: int | None = 0
        if count > 1:
            connections.close_all()
            try:
                number = in_processes(count)
            except ProcessEndedError as error:
                raise CommandError(str(error)) from None
            if number is None:
                return
        from ..envoy.server import Tls, serve

        def ready() -> None:
            if number == 0:  # One process prints it for all.
                command.say(f"Answers Envoy on {where}" + f", in {count} processes" * (count > 1))
                command.stdout.flush()

        try:
            serve(where, _is_healthy, ready, Tls(*tls) if tls is not None else None)
        except (ImproperlyConfigured, OSError) as error:
            raise CommandError(str(error)) from None


async def _is_healthy() -> bool:
    return (await ahealth()).ok


def _tls(options: dict[str, Any]) -> tuple[bytes, bytes, bytes | None] | None:
    certificate, key, client_ca = options["certificate"], options["key"], options["client_ca"]
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise CommandError("TLS needs --certificate and --key")
    try:
        return (
            certificate.read_bytes(),
            key.read_bytes(),
            None if client_ca is None else client_ca.read_bytes(),
        )
    except OSError as error:
        raise CommandError(str(error)) from None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
