"""The configurations of proxies that use the gateway, as text."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib import parse

from django.template import Context, Engine

from ....conf import conf
from ..conf import settings as gateway_settings
from ..described_request import SECRET_HEADER
from ..dialects import DIALECTS

GRPC = "envoy-grpc"
"""Envoy over gRPC, which `manage.py ratelimit grpc` answers."""
FILES = {name: dialect.file for name, dialect in DIALECTS.items() if dialect.file}
LEFT = {
    "draft-10": ("RateLimit", "RateLimit-Policy"),
    "x": ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
}
"""The rate-limit headers of answers, by `RATELIMIT_HEADERS`."""
BESIDE = "127.0.0.1:8082"
DEFAULT_TIMEOUT = 1.0
"""Seconds that a proxy waits for an answer of the gateway."""
MIN_TIMEOUT = 0.01
MAX_TIMEOUT = 3600.0


def configuration(
    proxy: str,
    *,
    listen: str,
    upstream: str,
    gateway: str,
    is_open: bool,
    path: str = "",
    user: str = "",
    beside: str = BESIDE,
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """Return the complete configuration of a proxy.

    Addresses are `host:port`.

    Args:
        proxy: One of `FILES`, or `GRPC`, which needs no secret, path or user.
        listen: The proxy's own address.
        upstream: The address of the service behind it.
        gateway: The address of the gateway.
        is_open: Whether requests are admitted while the gateway does not reply.
        path: The path of `check`.
        user: The proxy's expression for the signed-in user; may be empty.
        beside: An internal address for Traefik, if `is_open`.
        timeout: Seconds that the proxy waits for the gateway.

    Raises:
        ValueError: No secret is set, an address is invalid, or the timeout is too short.
    """
    secrets = gateway_settings.GATEWAY_SECRET
    if secrets is None and proxy != GRPC:
        raise ValueError("RATELIMIT_GATEWAY_SECRET is not set")
    file = FILES.get(proxy, f"{GRPC}.yaml")
    context = {
        "listen": _listening(listen),
        "upstream": _address(upstream),
        "gateway": _address(gateway),
        "path": path,
        "is_open": is_open,
        "secret": (secrets or ("",))[0],
        "secret_header": SECRET_HEADER,
        "beside": _address(beside),
        "user": user,
        "user_header": gateway_settings.GATEWAY_USER_HEADER or "",
        "left": [
            {"header": header, "variable": header.lower().replace("-", "_")}
            for header in LEFT[conf.HEADERS or "draft-10"]
        ],
        **_timeout(timeout),
    }
    template = Engine().from_string((Path(__file__).parent / file).read_text())
    return template.render(Context(context, autoescape=False))


def _timeout(seconds: float) -> dict[str, str]:
    """Return the timeout in seconds for Envoy, and in milliseconds for the others."""
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        raise ValueError(
            f"the timeout is {seconds:g} s: must be from {MIN_TIMEOUT:g} to {MAX_TIMEOUT:g} s"
        )
    if seconds <= conf.TIMEOUT:
        raise ValueError(
            f"the timeout is {seconds:g} s: must be longer than RATELIMIT_TIMEOUT "
            f"({conf.TIMEOUT:g} s)"
        )
    milliseconds = round(seconds * 1000)
    return {"seconds": f"{milliseconds / 1000:g}", "timeout": f"{milliseconds}ms"}


def _listening(text: str) -> dict[str, str]:
    """Return the parts of an address. A port alone stands for all addresses."""
    if text.startswith(":"):
        text = f"0.0.0.0{text}"
    return _address(text)


def _address(text: str) -> dict[str, str]:
    parts = parse.urlsplit(f"//{text}")
    with suppress(ValueError):
        if parts.hostname and parts.port and parts.netloc == text and "@" not in text:
            return {"all": text, "host": parts.hostname, "port": str(parts.port)}
    raise ValueError(f"{text!r} is not an address; write host:port, such as 127.0.0.1:8000")
