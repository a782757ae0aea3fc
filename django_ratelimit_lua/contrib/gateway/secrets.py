"""The secrets by which the gateway recognizes proxies and services."""

from __future__ import annotations

import logging
from hmac import compare_digest

from .conf import settings

SECRET_HEADER = "X-RateLimit-Secret"
SECRET_KEY = "HTTP_X_RATELIMIT_SECRET"
"""Its name in `META`."""
_MISSING = f"The gateway refused %s: {SECRET_HEADER} is missing, or not a secret of this site."
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


def secret_for(purpose: str) -> str:
    """Return the first secret that permits this purpose. Raises `ValueError` if none does."""
    for text in secrets_for(purpose):
        return text
    raise ValueError(f"RATELIMIT_GATEWAY_SECRET has no secret for {purpose}")


def find_secret(given: str, purpose: str, peer: object) -> str | None:
    """Return the name of a secret if it permits this purpose, otherwise None.

    Args:
        given: The secret of a request.
        purpose: `CHECK` or `PROTOCOL`.
        peer: The address of the client, for the log.
    """
    found = None
    # All secrets are compared, so that the time does not reveal which one is in use.
    for secret in settings.GATEWAY_SECRET or ():
        if compare_digest(given.encode(), secret.text.encode()):
            found = secret
    if found is None:
        log_once(purpose, logging.WARNING, _MISSING, peer)
        return None
    event = (found.name, purpose)
    if found.purpose not in ("", purpose):
        text = "The gateway refused %s: the secret %r is only for %s."
        log_once(event, logging.WARNING, text, peer, found.name, found.purpose)
        return None
    log_once(event, logging.INFO, "The secret %r is in use for %s by %s.", *event, peer)
    return found.name
