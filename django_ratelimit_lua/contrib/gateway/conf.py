"""The settings of this optional app, and the types of their values."""

from __future__ import annotations

from typing import NamedTuple

from ...conf import Setting, Table
from ...conf.values import check_header, check_token, check_tokens
from ...limits.values import Choice, or_none

CHECK = "check"
PROTOCOL = "protocol"
"""Envoy's rate limit service, over gRPC and as JSON."""


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


class Secret(NamedTuple):
    """A secret of `RATELIMIT_GATEWAY_SECRET`.

    - `name`: its name in the log;
    - `purpose`: the only use that it permits, `CHECK` or `PROTOCOL`; empty: both.
    """

    name: str
    text: str
    purpose: str = ""


def _read_secrets(value: object) -> tuple[Secret, ...]:
    """Return the secrets of a setting: one text, a list, or a dict by name.

    Raises `ValueError` if a secret is invalid, or occurs twice.
    """
    if value and isinstance(value, dict):
        secrets = [_read_named_secret(name, secret) for name, secret in value.items()]
    else:
        secrets = [Secret(f"{number}", text) for number, text in enumerate(check_tokens(value), 1)]
    if len({secret.text for secret in secrets}) < len(secrets):
        raise ValueError("must not contain a secret twice")
    return tuple(secrets)


def _read_named_secret(name: object, value: object) -> Secret:
    """Return the secret of a name: a text, or a dict with the keys "secret" and "for"."""
    if not isinstance(value, dict) or value.keys() != {"secret", "for"}:
        return Secret(f"{name}", check_token(value))
    purpose = value["for"]
    if purpose not in ("", CHECK, PROTOCOL):
        raise ValueError("'for' must be 'check' or 'protocol'")
    return Secret(f"{name}", check_token(value["secret"]), purpose)


class GatewaySettings(Table):
    """The settings of the gateway. Reading an invalid value raises `ImproperlyConfigured`."""

    GATEWAY_DIALECT = Setting(
        None,
        Choice((None, *DIALECTS)),
        "the proxy that uses the gateway, which defines the headers that describe a request, see "
        ":doc:`/annexes/gateway`",
    )
    GATEWAY_SECRET = Setting(
        None,
        or_none(_read_secrets),
        "the secret that proxies and services send as ``X-RateLimit-Secret``; a list while it is "
        "rotated, or secrets by name, see :doc:`/annexes/gateway`. If it is not set, all are "
        "refused",
        is_secret=True,
    )
    GATEWAY_USER_HEADER = Setting(
        None,
        or_none(check_header),
        "the header in which the proxy sends the primary key of the signed-in user. If it is not "
        "set, no user is known",
    )


settings = GatewaySettings()
