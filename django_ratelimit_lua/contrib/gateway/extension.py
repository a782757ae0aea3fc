"""The hooks of the optional app `gateway`."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from django.utils.translation import gettext as _

from ...extension import Extension
from ...rules.rule import Rule
from . import checks as checks
from .descriptors import DESCRIPTOR, WORD
from .proxy_rules import LACKS, lacks_values


class GatewayExtension(Extension):
    """Adds descriptors to rules, and two verbs."""

    name = "gateway"
    verbs = (
        "django_ratelimit_lua.contrib.gateway.verbs.proxy",
        "django_ratelimit_lua.contrib.gateway.verbs.grpc",
    )
    options = MappingProxyType({WORD: DESCRIPTOR})

    def notices(self, rule: Rule) -> Iterable[str]:
        if lacks_values(rule):
            yield _(LACKS)
