"""The settings of this optional app."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...conf import Setting, Table
from ...conf.values import check_header, check_token, check_tokens
from ...limits.values import Choice, or_none
from .dialects import DIALECTS

CHECK = "check"
PROTOCOL = "protocol"
"""Envoy's rate limit service, over gRPC and as JSON."""


class Secret(NamedTuple):
    """A secret of `RATELIMIT_GATEWAY_SECRET`.

    - `name`: its name in the log;
    - `purpose`: the only use that it permits, `CHECK` or `PROTOCOL`; empty: both.
    """

    name: str
    text: str
    purpose: str = ""


def _secrets(value: object) -> tuple[Secret, ...]:
    if value and isinstance(value, dict):
        found = [_secret(name, each) for name, each in value.items()]
    else:
        found = [Secret(f"{place}", each) for place, each in enumerate(check_tokens(value), 1)]
    if len({secret.text for secret in found}) < len(found):
        raise ValueError("must not contain a secret twice")
    return tuple(found)


def _secret(name: object, value: Any) -> Secret:
    purpose = ""
    if isinstance(value, dict) and value.keys() == {"secret", "for"}:
        purpose = value["for"]
        value = value["secret"]
    if purpose not in ("", CHECK, PROTOCOL):
        raise ValueError("'for' must be 'check' or 'protocol'")
    return Secret(f"{name}", check_token(value), purpose)


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
        or_none(_secrets),
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
