"""The configurations of proxies that use the gateway, as text."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib import parse

from django.template import Context, Engine

from ....conf import conf
from ..conf import CHECK, PROTOCOL
from ..conf import settings as gateway_settings
from ..dialects import DIALECTS
from ..secrets import SECRET_HEADER, secret_for

GRPC = "envoy-grpc"
"""Envoy over gRPC, which `manage.py ratelimit grpc` answers."""
FILES = {**{name: dialect.file for name, dialect in DIALECTS.items()}, GRPC: f"{GRPC}.yaml"}
LEFT = {
    "ietf": ("RateLimit", "RateLimit-Policy"),
    "x": ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
}
"""The rate-limit headers of answers, by `RATELIMIT_HEADERS`."""
MAX_TIMEOUT = 3600.0


def configuration(options: Mapping[str, Any], gateway: str, path: str) -> str:
    """Return the complete configuration of a proxy.

    Args:
        options: The options of `manage.py ratelimit proxy`. Over gRPC, no path or user is needed.
        gateway: The address of the gateway, as `host:port`.
        path: The path of `check`.

    Raises:
        ValueError: No secret is set, an address is invalid, or the timeout is too short.
    """
    proxy = options["proxy"]
    purpose = CHECK
    if proxy == GRPC:
        purpose = PROTOCOL
    context = {
        "listen": _listening(options["listen"]),
        "upstream": _address(options["upstream"]),
        "gateway": _address(gateway),
        "path": path,
        "is_open": options["fail"] == "open",
        "secret": secret_for(purpose),
        "secret_header": SECRET_HEADER,
        "beside": _address(options["beside"]),
        "user": options["user"],
        "user_header": gateway_settings.GATEWAY_USER_HEADER or "",
        "left": [
            {"header": header, "variable": header.lower().replace("-", "_")}
            for header in LEFT[conf.HEADERS or "ietf"]
        ],
        **_timeout(options["timeout"]),
    }
    template = Engine().from_string((Path(__file__).parent / FILES[proxy]).read_text())
    return template.render(Context(context, autoescape=False))


def _timeout(seconds: float) -> dict[str, str]:
    """Return the timeout in seconds for Envoy, and in milliseconds for the others."""
    if not conf.TIMEOUT < seconds <= MAX_TIMEOUT:
        raise ValueError(
            f"the timeout is {seconds:g} s: must be longer than RATELIMIT_TIMEOUT "
            f"({conf.TIMEOUT:g} s), and at most {MAX_TIMEOUT:g} s"
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
