"""The settings of this annex."""

from __future__ import annotations

from ...conf import Setting, Table, header, tokens
from ...limits.values import Choice, or_none
from .dialects import DIALECTS


class GatewaySettings(Table):
    """`RATELIMIT_*`. An attribute raises `ImproperlyConfigured` for a value it cannot take."""

    # fmt: off
    GATEWAY_DIALECT = Setting(None, Choice((None, *DIALECTS)),
        "which proxy asks the gateway about requests, and so which headers describe them, see :doc:`gateway`")
    GATEWAY_SECRET = Setting(None, or_none(tokens),
        "what that proxy says as ``X-RateLimit-Secret``; a list while it is exchanged", is_secret=True)
    GATEWAY_USER_HEADER = Setting(None, or_none(header),
        "the header in which that proxy names who is logged in, by primary key; not set: nobody is known to be")
    # fmt: on


settings = GatewaySettings()
