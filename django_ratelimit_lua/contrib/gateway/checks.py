"""System checks of the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec

from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.utils import translation

from ...checks import Problem
from ...conf import conf
from ...models import RateLimitRule
from ...publishing.publish import primary
from ...rules.rule import Rule, RuleError
from ...rules.ruleset import settings_rules
from .conf import settings
from .descriptors import WORD
from .proxy_rules import lacking

NO_GRPC = Problem("W017", "Install django-ratelimit-lua[grpc].")
NO_GATEWAY = Problem(
    "E019",
    "Set RATELIMIT_GATEWAY_SECRET, and RATELIMIT_TRUSTED_PROXIES to the networks of the proxy.",
)
NOT_FOR_PROXIES = Problem(
    "I020",
    "Count by the address, a header or a cookie, or set RATELIMIT_GATEWAY_USER_HEADER to "
    "count by the user. Concurrency limits are only for views and for services.",
)


@register(Tags.caches)
def check_gateway(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the trust in proxies, that gRPC is installed, and that the settings' rules apply."""
    with suppress(ImproperlyConfigured):  # The core's checks report it.
        if settings.GATEWAY_DIALECT is not None and (
            settings.GATEWAY_SECRET is None or not conf.TRUSTED_PROXIES
        ):
            yield NO_GATEWAY.message(
                "The gateway answers 403 to every proxy, because "
                "RATELIMIT_GATEWAY_SECRET or RATELIMIT_TRUSTED_PROXIES is not set."
            )
        rules = settings_rules()
        described = ", ".join(
            rule.name for rule in rules if WORD in rule.extra and rule.mode != "off"
        )
        if described and find_spec("grpc") is None:
            text = (
                "These rules are for Envoy's descriptors, but grpcio is not installed: "
                f"{described}."
            )
            yield NO_GRPC.message(text)
        yield from _not_for_proxies(rules)


@register(Tags.database)
def check_gateway_rules(
    databases: Sequence[str] | None = None, **kwargs: object
) -> Iterator[CheckMessage]:
    """Check that rules of the admin apply to requests of proxies.

    It runs only with `manage.py check --database`.
    """
    using = primary()
    if using in (databases or ()):
        with suppress(ImproperlyConfigured, DatabaseError):
            for row in RateLimitRule.objects.using(using).prefetch_related("tiers"):
                with suppress(RuleError):  # It was made invalid by hand.
                    yield from _not_for_proxies([row.compiled()])


def _not_for_proxies(rules: Iterable[Rule]) -> Iterator[CheckMessage]:
    for rule in rules:
        with translation.override(None):  # Checks are in English.
            what = lacking(rule)
        if what:
            why = f"the proxy does not report {what}"
            yield NOT_FOR_PROXIES.message(
                f"The rule {rule.name!r} does not apply to requests from a proxy: {why}."
            )
