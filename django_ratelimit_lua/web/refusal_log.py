"""Log refusals: the first of each identity under a limit in a minute, and fewer in a flood."""

from __future__ import annotations

import ipaddress
import logging
from contextlib import suppress

from django.http import HttpRequest

from ..engine.logs import LogSampler
from ..identity.address import client_address
from ..limits.decision import Decision

logger = logging.getLogger("django_ratelimit_lua.refused")
_MAX_PATH_LENGTH = 200
_SHOWN_BITS = {4: 24, 6: 48}
"""The prefix of an address in the log: it shows the origin, and does not identify the client."""


class RefusalLog(LogSampler):
    """Writes records, and skips some in a flood."""

    def write(
        self, request: HttpRequest, decision: Decision, rule: str | None, reference: str
    ) -> None:
        """Write one record, unless there were too many."""
        limit = next(iter(decision.denied_by), "")
        is_logged = logger.isEnabledFor(logging.WARNING)
        if not (is_logged and self.admit(limit, decision.identity)):
            return
        details = {
            "limit": limit,
            "rule": rule,
            "identity": decision.identity[:8].decode(),
            "client": _masked_address(request),
            "method": (request.method or "")[:20],
            "path": request.path[:_MAX_PATH_LENGTH]
            .encode("unicode_escape")
            .decode(),  # No line breaks of a client's.
            "reference": reference or None,
            "banned_until": str(decision.banned_until) if decision.banned_until else None,
            "skipped": self.take_skipped(limit),
        }
        logger.warning(
            "Refused by %(limit)s (rule: %(rule)s): %(method)s %(path)s of %(client)s, identity "
            "%(identity)s, "
            "reference %(reference)s; records dropped before: %(skipped)s",
            details,
            extra=details,
        )


def _masked_address(request: HttpRequest) -> str:
    with suppress(
        Exception
    ):  # A function for RATELIMIT_IP_META_KEY is the project's; no record is worth a 500.
        address = client_address(request).address
        if address is not None:
            return str(
                ipaddress.ip_network(f"{address}/{_SHOWN_BITS[address.version]}", strict=False)
            )
    return "unknown"


refusal_log = RefusalLog()
