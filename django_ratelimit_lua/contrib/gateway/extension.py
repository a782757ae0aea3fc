"""The hooks of the optional app `gateway`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from ...extension import Extension
from ...rules.rule import Rule
from . import checks as checks
from .clients import Client
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

    def snapshot(self, using: str) -> list[dict[str, object]]:
        return [
            {
                "name": client.name,
                "digest": client.digest,
                "limits": client.names(),
                "may_refund": client.may_refund,
            }
            for client in RateLimitClient.objects.using(using).filter(is_active=True)
        ]

    def load(
        self, part: Iterable[Mapping[str, Any]] | None, before: object, problems: list[str]
    ) -> dict[str, Client]:
        return {
            each["digest"]: Client(each["name"], tuple(each["limits"]), each["may_refund"] is True)
            for each in part or ()
        }

    def notices(self, rule: Rule) -> Iterable[str]:
        if what := lacking(rule):
            text = _(
                "This rule does not limit requests from a proxy: the proxy does not "
                "report %(what)s."
            )
            yield text % {"what": what}
