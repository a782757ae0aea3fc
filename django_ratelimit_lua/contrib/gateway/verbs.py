"""The verbs `proxy` and `grpc` of `manage.py ratelimit`.

`proxy` prints the configuration of a proxy that uses the gateway, and `grpc` serves Envoy's rate
limit service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib import parse

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.template import Context, Engine
from django.urls import NoReverseMatch, reverse

from ...conf import conf
from ...management.arguments import require_urlconf
from ...management.verbs import Printer, VerbOptions, argument, verb
from .conf import CHECK, DIALECTS, PROTOCOL, settings
from .secrets import SECRET_HEADER, first_secret_for

FOLDER = Path(__file__).parent / "proxies"
"""The templates of the configurations."""
GRPC = "envoy-grpc"
"""Envoy over gRPC, which `manage.py ratelimit grpc` answers."""
FILES = {**{name: dialect.file for name, dialect in DIALECTS.items()}, GRPC: f"{GRPC}.yaml"}
"""The file of each configuration, by the name of the proxy."""
LIMIT_HEADERS = {
    "ietf": ("RateLimit", "RateLimit-Policy"),
    "x": ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
}
"""The rate-limit headers of answers, by `RATELIMIT_HEADERS`."""
MAX_TIMEOUT = 3600.0
MAX_PORT = 65535


@verb(
    "proxy",
    "print the configuration of a proxy that asks the gateway of this site about every request",
    argument("proxy", choices=[*FILES], help="which proxy"),
    argument("--listen", default="0.0.0.0:80", help="where the proxy listens: host:port"),
    argument("--upstream", default="127.0.0.1:3000", help="the service behind it: host:port"),
    argument(
        "--gateway",
        help="this site, as the proxy reaches it: host:port (default: 127.0.0.1:8000, over "
        "gRPC 127.0.0.1:8081)",
    ),
    argument(
        "--fail",
        choices=("open", "closed"),
        default="closed",
        help="while the gateway does not answer: pass requests on (open), or answer 503 (closed)",
    ),
    argument(
        "--timeout",
        type=float,
        default=1.0,
        help="seconds that the proxy waits for the gateway: more than RATELIMIT_TIMEOUT and "
        "any max_wait. Traefik supports it only with --fail open, and waits 30 s "
        "otherwise",
    ),
    argument(
        "--beside",
        default="127.0.0.1:8082",
        help="an internal address of Traefik, which --fail open needs: host:port",
    ),
    argument(
        "--user",
        default="",
        help="the value of RATELIMIT_GATEWAY_USER_HEADER, as the proxy's configuration writes "
        "it; for Traefik, the name of the middleware that sets it. Default: no user",
    ),
)
def print_proxy(command: Printer, options: VerbOptions) -> None:
    """Print the configuration. Raises `CommandError` if a setting or an option is invalid."""
    path = ""
    gateway = "127.0.0.1:8081"
    if options["proxy"] != GRPC:
        path = _find_check_path(command, options)
        gateway = "127.0.0.1:8000"
    elif options["user"]:
        raise CommandError("--user is not supported over gRPC: a descriptor contains the user.")
    try:
        text = render_configuration(options, options["gateway"] or gateway, path)
    except ValueError as error:
        raise CommandError(f"{error}.") from None
    command.write(text)


def _find_check_path(command: Printer, options: VerbOptions) -> str:
    """Return the path of the check URL, and report settings that do not fit the proxy.

    Raises `CommandError` if the URL or a required setting is missing.
    """
    require_urlconf()
    try:
        path = reverse("ratelimit-check")
    except NoReverseMatch:
        raise CommandError(
            'The URLs of the gateway are missing. Add to urlpatterns: path("ratelimit/", '
            'include("django_ratelimit_lua.contrib.gateway.urls"))'
        ) from None
    proxy = options["proxy"]
    dialect = settings.GATEWAY_DIALECT
    if proxy != dialect:
        command.stderr.write(f'Set RATELIMIT_GATEWAY_DIALECT = "{proxy}": it is {dialect!r}.')
    if options["user"] and settings.GATEWAY_USER_HEADER is None:
        raise CommandError("--user needs RATELIMIT_GATEWAY_USER_HEADER, which is not set.")
    return path


def render_configuration(options: Mapping[str, Any], gateway: str, path: str) -> str:
    """Return the complete configuration of a proxy.

    Args:
        options: The options of `manage.py ratelimit proxy`. Over gRPC, no path or user is needed.
        gateway: The address of the gateway, as `host:port`.
        path: The path of `check`.

    Raises:
        ValueError: No secret is set, an address is invalid, or the timeout is too short.
    """
    proxy = options["proxy"]
    timeout_ms = _read_timeout(options["timeout"])
    context = {
        "listen": _read_listen_address(options["listen"]),
        "upstream": _read_address(options["upstream"]),
        "gateway": _read_address(gateway),
        "path": path,
        "is_open": options["fail"] == "open",
        "secret": first_secret_for(PROTOCOL if proxy == GRPC else CHECK),
        "secret_header": SECRET_HEADER,
        "beside": _read_address(options["beside"]),
        "user": options["user"],
        "user_header": settings.GATEWAY_USER_HEADER or "",
        "limit_headers": [
            {"name": header, "variable": header.lower().replace("-", "_")}
            for header in LIMIT_HEADERS[conf.HEADERS or "ietf"]
        ],
        "seconds": f"{timeout_ms / 1000:g}",
        "timeout": f"{timeout_ms}ms",
    }
    template = Engine().from_string((FOLDER / FILES[proxy]).read_text())
    return template.render(Context(context, autoescape=False))


def _read_timeout(seconds: float) -> int:
    """Return a timeout in milliseconds. Raises `ValueError` if it is too short or too long."""
    if not conf.TIMEOUT < seconds <= MAX_TIMEOUT:
        raise ValueError(
            f"the timeout is {seconds:g} s: must be longer than RATELIMIT_TIMEOUT "
            f"({conf.TIMEOUT:g} s), and at most {MAX_TIMEOUT:g} s"
        )
    return round(seconds * 1000)


class Address(NamedTuple):
    """An address: `all` is `host:port`."""

    all: str
    host: str
    port: str


def _read_listen_address(text: str) -> Address:
    """Return an address to listen on. A port alone stands for all addresses of the host."""
    return _read_address(f"0.0.0.0{text}" if text.startswith(":") else text)


def _read_address(text: str) -> Address:
    """Return the parts of `host:port`. Raises `ValueError` if the text is not an address."""
    parts = parse.urlsplit(f"//{text}")
    with suppress(ValueError):  # The port is not a number.
        if parts.hostname and parts.port and parts.netloc == text and "@" not in text:
            return Address(text, parts.hostname, str(parts.port))
    raise ValueError(f"{text!r} is not an address; write host:port, such as 127.0.0.1:8000")


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
def serve_grpc(command: Printer, options: VerbOptions) -> None:
    """Serve until a signal. Raises `CommandError` if the server cannot start."""
    host = options["host"]
    if ":" in host:
        host = f"[{host}]"

    def report_port(port: int) -> None:
        command.write(f"Answering on {host}:{port}")
        command.stdout.flush()

    try:
        first_secret_for(PROTOCOL)
        if not 0 <= options["port"] <= MAX_PORT:
            raise CommandError(f"the port must be from 0 to {MAX_PORT}")
        import grpc

        from .grpc_server import serve

        credentials = None
        if options["tls"]:
            certificate, key = [path.read_bytes() for path in options["tls"]]
            credentials = grpc.ssl_server_credentials([(key, certificate)])
        asyncio.run(serve(f"{host}:{options['port']}", report_port, credentials))
    except ImportError as error:
        raise CommandError(f"{error}: pip install 'django-ratelimit-lua[gateway]'") from None
    except (ImproperlyConfigured, OSError, ValueError) as error:
        raise CommandError(str(error)) from None
