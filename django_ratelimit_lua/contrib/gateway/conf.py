"""The settings of this optional app."""

from __future__ import annotations

from ...conf import Setting, Table, header, tokens
from ...limits.values import Choice, or_none
from .dialects import DIALECTS


class GatewaySettings(Table):
    """The settings of the gateway. Reading an invalid value raises `ImproperlyConfigured`."""

    GATEWAY_DIALECT = Setting(
        None,
        Choice((None, *DIALECTS)),
        "the proxy that uses the gateway, which defines the headers that describe a request, see "
        ":doc:`gateway`",
    )
    GATEWAY_SECRET = Setting(
        None,
        or_none(tokens),
        "the secret that the proxy sends as ``X-RateLimit-Secret``; a list while it is rotated",
        is_secret=True,
    )
    GATEWAY_USER_HEADER = Setting(
        None,
        or_none(header),
        "the header in which the proxy sends the primary key of the signed-in user. If it is not "
        "set, no user is known",
    )


settings = GatewaySettings()
