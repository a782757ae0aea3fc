"""The headers by which each proxy describes a request, and its configuration in `proxies/`."""

from __future__ import annotations

from typing import NamedTuple


class Dialect(NamedTuple):
    """The headers by which a proxy describes a request.

    - `is_chain`: whether the address is the last of a list to which each proxy adds one, as in
      `X-Forwarded-For`; otherwise it is a single address;
    - `is_url`: whether the URI is a URL, including the host;
    - `file`: the name of its configuration in `proxies/`; may be empty.
    """

    method: str
    uri: str
    host: str
    address: str
    is_chain: bool = False
    is_url: bool = False
    file: str = ""

    @property
    def headers(self) -> tuple[str, ...]:
        return (self.method, self.uri, self.host, self.address)


_ORIGINAL = Dialect("X-Original-Method", "X-Original-URI", "X-Original-Host", "X-Original-Address")
_FORWARDED = Dialect(
    "X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host", "X-Forwarded-For", is_chain=True
)
DIALECTS = {
    "nginx": _ORIGINAL._replace(file="nginx.conf"),
    "traefik": _FORWARDED._replace(file="traefik.yaml"),
    "caddy": _FORWARDED._replace(file="Caddyfile"),
    "envoy": _ORIGINAL._replace(file="envoy.yaml"),
    "ingress-nginx": Dialect(
        "X-Original-Method", "X-Original-URL", "X-Original-URL", "X-Real-IP", is_url=True
    ),
}
