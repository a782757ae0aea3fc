"""The configurations of proxies that use the gateway, as text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib import parse

from django.template import Context, Engine, Template

from ....conf import conf
from ..conf import settings as gateway_settings
from ..described_request import SECRET_HEADER
from ..dialects import DIALECTS

FILES = {name: dialect.file for name, dialect in DIALECTS.items() if dialect.file}
GRPC = "envoy-grpc"
"""Envoy over gRPC, which `manage.py ratelimit grpc` answers."""
LEFT: dict[str, tuple[str, ...]] = {
    "draft-10": ("RateLimit", "RateLimit-Policy"),
    "x": ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
}
"""The rate-limit headers of answers, by `RATELIMIT_HEADERS`."""
BESIDE = "127.0.0.1:8082"
DEFAULT_TIMEOUT = 1.0
"""Seconds that a proxy waits for an answer of the gateway."""
MIN_TIMEOUT, MAX_TIMEOUT = 0.01, 3600.0


def configuration(
    proxy: str,
    *,
    listen: str,
    upstream: str,
    gateway: str,
    path: str,
    fail: Literal["open", "closed"],
    user: str = "",
    beside: str = BESIDE,
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """The complete configuration of a proxy.

    - `listen`: its own address; `upstream`: that of the service behind it; `gateway`, `path`: the
      URL of `check`;
    - `fail`: whether requests are admitted while the gateway does not answer;
    - `beside`: an internal address for Traefik, if `fail` is "open";
    - `user`: the proxy's expression for the signed-in user; empty: none;
    - `timeout`: seconds that the proxy waits for the gateway.

    Addresses are `host:port`. Raises `ValueError` if no secret is set, an address is invalid, or
    the timeout is too short.
    """
    if gateway_settings.GATEWAY_SECRET is None:
        raise ValueError("RATELIMIT_GATEWAY_SECRET is not set")
    context = {
        "listen": _listening(listen),
        "upstream": _address(upstream),
        "gateway": _address(gateway),
        "path": path,
        "is_open": fail == "open",
        "secret": gateway_settings.GATEWAY_SECRET[0],
        "secret_header": SECRET_HEADER,
        "beside": _address(beside),
        "user": user,
        "user_header": gateway_settings.GATEWAY_USER_HEADER or "",
        "left": [
            {
                "header": header,
                "variable": header.lower().replace("-", "_"),
                "canonical": header.title(),
            }
            for header in LEFT[conf.HEADERS or "draft-10"]
        ],
        **_timeout(timeout),
    }
    return _template(proxy).render(Context(context, autoescape=False))


def grpc_configuration(
    *,
    listen: str,
    upstream: str,
    gateway: str,
    fail: Literal["open", "closed"],
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """The complete configuration of an Envoy over gRPC; see `configuration`.

    It needs no secret: every client that reaches the service may use it.
    """
    context = {
        "listen": _listening(listen),
        "upstream": _address(upstream),
        "gateway": _address(gateway),
        "is_open": fail == "open",
        "user_header": gateway_settings.GATEWAY_USER_HEADER or "",
        **_timeout(timeout),
    }
    return _template(GRPC).render(Context(context, autoescape=False))


def _timeout(seconds: float) -> dict[str, str]:
    """The timeout as Envoy writes it, in seconds, and as the others do, in milliseconds."""
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        raise ValueError(
            f"A timeout of {seconds:g} s: write seconds from {MIN_TIMEOUT:g} to {MAX_TIMEOUT:g}"
        )
    if seconds <= conf.TIMEOUT:
        raise ValueError(
            f"A timeout of {seconds:g} s is too short: the gateway itself waits for Redis for "
            f"{conf.TIMEOUT:g} s "
            "(RATELIMIT_TIMEOUT)"
        )
    milliseconds = round(seconds * 1000)
    return {"seconds": f"{milliseconds / 1000:g}", "timeout": f"{milliseconds}ms"}


def _listening(text: str) -> dict[str, str]:
    """As `_address`; a port alone is all addresses, as Caddy, Traefik and Go have it."""
    return _address(f"0.0.0.0{text}" if text.startswith(":") else text)


def _address(text: str) -> dict[str, str]:
    parts = parse.urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.netloc != text or "@" in text:
        raise ValueError(f"{text!r} is no address; write host:port, such as 127.0.0.1:8000")
    return {"all": text, "host": host, "port": str(port)}


@lru_cache(maxsize=8)
def _template(proxy: str) -> Template:
    return Engine().from_string(
        (Path(__file__).parent / {**FILES, GRPC: f"{GRPC}.yaml"}[proxy]).read_text()
    )
