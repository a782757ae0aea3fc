"""The hooks of the annex `gateway`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext as _

from ...extension import Extension
from . import checks as checks
from .clients import read_clients
from .descriptors import DESCRIPTOR
from .models import RateLimitClient
from .proxy_rules import lacking


class GatewayExtension(Extension):
    """Adds descriptors to rules, clients to the snapshot, and two verbs."""

    name = "gateway"
    verbs = (
        "django_ratelimit_lua.contrib.gateway.verbs.proxy",
        "django_ratelimit_lua.contrib.gateway.verbs.grpc",
    )
    rule_fields = (DESCRIPTOR,)

    def snapshot(self, using: str) -> Any:
        return [
            {
                "name": client.name,
                "digest": client.digest,
                "limits": client.names(),
                "may_refund": client.may_refund,
            }
            for client in RateLimitClient.objects.using(using).filter(is_active=True)
        ]

    def load(self, part: Any, before: Any, problems: list[str]) -> Any:
        return read_clients(part or ())

    def notices(self, rule: Any) -> Iterable[str]:
        if what := lacking(rule):
            text = _(
                "This rule does not limit requests from a proxy: the proxy does not know %(what)s."
            )
            yield text % {"what": what}
