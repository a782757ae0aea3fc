"""System checks of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured

from ...checks import Problem
from ...conf import conf
from ...rules.ruleset import settings_rules
from .conf import CHECK, PROTOCOL, settings
from .descriptors import WORD
from .secrets import secrets_for

NO_GATEWAY = Problem(
    "E019",
    "Set RATELIMIT_GATEWAY_SECRET and, for a proxy, RATELIMIT_TRUSTED_PROXIES to its networks.",
)


@register(Tags.caches)
def check_gateway(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the secret, the trust in proxies, and that the rules in the settings apply."""
    with suppress(ImproperlyConfigured):  # The core's checks report it.
        rules = settings_rules()
        described = ", ".join(
            rule.name for rule in rules if WORD in rule.extra and rule.mode != "off"
        )
        accepts_proxies = secrets_for(CHECK) and conf.TRUSTED_PROXIES
        if settings.GATEWAY_DIALECT is not None and not accepts_proxies:
            yield NO_GATEWAY.message(
                "The gateway refuses every proxy, because RATELIMIT_GATEWAY_SECRET has no secret "
                "for check, or RATELIMIT_TRUSTED_PROXIES is not set."
            )
        if described and not secrets_for(PROTOCOL):
            yield NO_GATEWAY.message(
                "The gateway refuses every descriptor, because RATELIMIT_GATEWAY_SECRET has no "
                f"secret for protocol. These rules are for descriptors: {described}."
            )
