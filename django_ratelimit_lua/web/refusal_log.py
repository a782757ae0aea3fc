"""The log of refusals: the first refusal of an identity by a limit in a minute.

Records are sampled by limits in this process, so that a flood writes few of them, whether it comes
from one client or many. That needs no call to Redis. The next record about the same limit contains
the number of skipped records.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from contextlib import suppress
from threading import Lock

from django.http import HttpRequest

from ..engine.counters import Bucket
from ..engine.heartbeat import ProcessShare
from ..identity.address import client_address
from ..limits.call import Charge
from ..limits.decision import Decision
from ..limits.limit import Limit
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork

logger = logging.getLogger("django_ratelimit_lua.refused")
FOR_EACH = Limit("records about one limit", "10/m", algorithm="token_bucket")
FOR_ALL = Limit("records about all limits", "60/m", algorithm="token_bucket")
"""How many records a process writes."""
AGAIN_SECONDS = 60.0
"""Seconds until another refusal of the same identity by the same limit is logged."""
_MAX_LIMITS = 1_000
_MAX_IDENTITIES = 10_000
_MAX_PATH_LENGTH = 200
_SHOWN_BITS = {4: 24, 6: 48}
"""The prefix of an address in the log: it shows the origin, and does not identify the client."""


class RefusalLog:
    """Writes records of refusals, and skips some in a flood."""

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)

    def clear(self) -> None:
        self._lock = Lock()
        self._for_all = _bucket(FOR_ALL)
        self._by_limit: BoundedMap[str, _Tally] = BoundedMap(_MAX_LIMITS)
        self._written: BoundedMap[tuple[str, bytes], float] = BoundedMap(_MAX_IDENTITIES)

    def write(
        self, request: HttpRequest, decision: Decision, rule: str | None, reference: str
    ) -> None:
        """Write one record, unless there were too many."""
        if not logger.isEnabledFor(logging.WARNING):
            return
        limit = next(iter(decision.denied_by), "")
        left_out = self.left_out(limit, decision.identity, time.monotonic())
        if left_out is None:
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
            "left_out": left_out,
        }
        logger.warning(
            "Refused by %(limit)s (rule: %(rule)s): %(method)s %(path)s of %(client)s, identity "
            "%(identity)s, "
            "reference %(reference)s; records dropped before: %(left_out)s",
            details,
            extra=details,
        )

    def write_wrong_token(self, request: HttpRequest, token_digest: str, charge: Charge) -> None:
        """Write one record about an unknown token at the gateway, unless there were too many."""
        if not logger.isEnabledFor(logging.WARNING):
            return
        left_out = self.left_out(charge.limit.name, charge.digest, time.monotonic())
        if left_out is None:
            return
        details = {
            "client": _masked_address(request),
            "token": token_digest[:8],
            "left_out": left_out,
        }
        logger.warning(
            "Wrong token for the gateway from %(client)s, digest %(token)s; records dropped "
            "before: %(left_out)s",
            details,
            extra=details,
        )

    def left_out(self, limit: str, identity: bytes, now: float) -> int | None:
        """Return the number of records about the limit that were skipped before this one.

        None if this one is to be skipped, too. `now` is in seconds. `identity` is the digest of the
        refused identity, or empty if it is not known.
        """
        with self._lock:
            tally = self._by_limit.get(limit)
            if tally is None:
                tally = _Tally()
                self._by_limit.put(limit, tally)
            buckets = (tally.bucket, self._for_all)
            written = self._written.get((limit, identity)) if identity else None
            if written is not None and now - written < AGAIN_SECONDS:
                tally.left_out += 1
                return None
            if any(bucket.retry_after(now, 1) for bucket in buckets):
                tally.left_out += 1
                return None
            for bucket in buckets:
                bucket.take(now, 1)
            if identity:
                self._written.put((limit, identity), now)
            left_out = tally.left_out
            tally.left_out = 0
            return left_out


class _Tally:
    __slots__ = ("bucket", "left_out")

    def __init__(self) -> None:
        self.bucket = _bucket(FOR_EACH)
        self.left_out = 0


def _bucket(limit: Limit) -> Bucket:
    # The whole limit, because no other process shares it.
    return Bucket(limit, ProcessShare(0, 1, 1))


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
