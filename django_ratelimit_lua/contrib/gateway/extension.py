"""What the gateway adds to the core."""

from __future__ import annotations

from ...extension import Extension
from . import checks as checks
from .descriptors import DESCRIPTOR


class GatewayExtension(Extension):
    name = "gateway"
    verbs = (
        "django_ratelimit_lua.contrib.gateway.verbs.proxy",
        "django_ratelimit_lua.contrib.gateway.verbs.grpc",
    )
    rule_fields = (DESCRIPTOR,)
