"""The hooks of the optional app `gateway`."""

from __future__ import annotations

from types import MappingProxyType

from ...extension import Extension
from . import checks as checks
from .descriptors import DESCRIPTOR, WORD


class GatewayExtension(Extension):
    """Adds descriptors to rules, and two verbs."""

    name = "gateway"
    verbs = (
        "django_ratelimit_lua.contrib.gateway.verbs.proxy",
        "django_ratelimit_lua.contrib.gateway.verbs.grpc",
    )
    options = MappingProxyType({WORD: DESCRIPTOR})
