"""The headers by which each proxy describes a request, and its configuration in `proxies/`."""

from __future__ import annotations

from typing import NamedTuple


class Dialect(NamedTuple):
    """The headers by which a proxy describes a request.

    - `is_chain`: whether the address is the last of a list to which each proxy adds one, as in
      `X-Forwarded-For`; otherwise it is a single address;
    - `file`: the name of its configuration in `proxies/`.
    """

    file: str
    method: str = "X-Original-Method"
    uri: str = "X-Original-URI"
    host: str = "X-Original-Host"
    address: str = "X-Original-Address"
    is_chain: bool = False

    @property
    def headers(self) -> tuple[str, ...]:
        return (self.method, self.uri, self.host, self.address)


_FORWARDED = Dialect(
    "traefik.yaml",
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-Forwarded-Host",
    "X-Forwarded-For",
    is_chain=True,
)
DIALECTS = {
    "nginx": Dialect("nginx.conf"),
    "traefik": _FORWARDED,
    "caddy": _FORWARDED._replace(file="Caddyfile"),
    "envoy": Dialect("envoy.yaml"),
}
