"""The secrets by which the gateway recognizes proxies and services, and their system check."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from hmac import compare_digest

from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured

from ...checks import Problem
from ...conf import conf
from ...rules.ruleset import settings_rules
from .conf import CHECK, PROTOCOL, settings
from .descriptors import WORD

SECRET_HEADER = "X-RateLimit-Secret"
SECRET_KEY = "HTTP_X_RATELIMIT_SECRET"
"""Its name in `META`."""
NO_GATEWAY = Problem(
    "E019",
    "Set RATELIMIT_GATEWAY_SECRET and, for a proxy, RATELIMIT_TRUSTED_PROXIES to its networks.",
)
_MISSING = f"The gateway refused %s: {SECRET_HEADER} is missing, or not a secret of this site."
_WRONG_PURPOSE = "The gateway refused %s: the secret %r is only for %s."
_USED = "The secret %r is in use for %s by %s."
logger = logging.getLogger("django_ratelimit_lua")
_logged: set[object] = set()


def log_once(event: object, level: int, text: str, *details: object) -> None:
    """Log the first event of its kind in this process."""
    if event not in _logged:
        _logged.add(event)
        logger.log(level, f"{text} (Logged once per process.)", *details)


def secrets_for(purpose: str) -> list[str]:
    """Return the secrets that permit this purpose."""
    secrets = settings.GATEWAY_SECRET or ()
    return [secret.text for secret in secrets if secret.purpose in ("", purpose)]


def first_secret_for(purpose: str) -> str:
    """Return the first secret that permits this purpose. Raises `ValueError` if none does."""
    for text in secrets_for(purpose):
        return text
    raise ValueError(f"RATELIMIT_GATEWAY_SECRET has no secret for {purpose}")


def authenticate(text: str, purpose: str, peer: object) -> str | None:
    """Return the name of the secret with this text if it permits this purpose, otherwise None.

    The first use of a secret and the first refusal of each kind are logged.

    Args:
        text: The secret of a request.
        purpose: `CHECK` or `PROTOCOL`.
        peer: The address of the client, for the log.
    """
    matching = None
    # All secrets are compared, so that the time does not reveal which one is in use.
    for secret in settings.GATEWAY_SECRET or ():
        if compare_digest(text.encode(), secret.text.encode()):
            matching = secret
    if matching is None:
        log_once(purpose, logging.WARNING, _MISSING, peer)
        return None
    event = (matching.name, purpose)
    if matching.purpose not in ("", purpose):
        log_once(event, logging.WARNING, _WRONG_PURPOSE, peer, matching.name, matching.purpose)
        return None
    log_once(event, logging.INFO, _USED, matching.name, purpose, peer)
    return matching.name


@register(Tags.caches)
def check_gateway(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that requests of proxies, and descriptors for which there are rules, are accepted."""
    with suppress(ImproperlyConfigured):  # The core's checks report it.
        rules = [rule for rule in settings_rules() if WORD in rule.extra and rule.mode != "off"]
        accepts_proxies = secrets_for(CHECK) and conf.TRUSTED_PROXIES
        if settings.GATEWAY_DIALECT is not None and not accepts_proxies:
            yield NO_GATEWAY.message(
                "The gateway refuses every proxy, because RATELIMIT_GATEWAY_SECRET has no secret "
                "for check, or RATELIMIT_TRUSTED_PROXIES is not set."
            )
        if rules and not secrets_for(PROTOCOL):
            names = ", ".join(rule.name for rule in rules)
            yield NO_GATEWAY.message(
                "The gateway refuses every descriptor, because RATELIMIT_GATEWAY_SECRET has no "
                f"secret for protocol. These rules are for descriptors: {names}."
            )
