"""How support finds a refusal: by its reference, and by its record in the log.

A reference is the second, the limit and the client, in 12 letters and digits:

- 25 bits: the second, modulo 2**25 (about a year);
- 11 bits: a hash of the group, scope or rule with which the name of the limit begins;
- 24 bits: the beginning of the identity's digest.

The reference contains all of this itself, so a flood of refusals writes nothing. The log has the
first refusal of each identity under a limit in a minute, and fewer in a flood.
"""

from __future__ import annotations

import ipaddress
import logging
import time
import zlib
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..engine.logs import LogSampler
from ..identity.address import client_address
from ..limits.decision import Decision

logger = logging.getLogger("django_ratelimit_lua.refused")

_MAX_PATH_LENGTH = 200
_LOGGED_BITS = {4: 24, 6: 48}
"""The prefix of an address in the log: it shows the origin, and does not identify the client."""
LENGTH = 12
"""Letters and digits of a reference, without the hyphens."""
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O or U.
_CORRECTIONS = str.maketrans("OIL", "011", "- \t\r\n\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}")
"""Replaces letters that look like digits, and removes hyphens and spaces."""
_SECONDS = 1 << 25
_LIMITS = 1 << 11
_DAY = 86_400
_BLOCK = 0
"""Stands for the hash of the limit if a block refused."""


class BadReferenceError(ValueError):
    """A text is not a reference."""


class Reference(NamedTuple):
    """The contents of a reference.

    - `text`: the reference as shown to the client and written to the log;
    - `moment`: seconds since 1970;
    - `limit`: the hash of the limit;
    - `digest_prefix`: 6 of the 32 digits of the identity's digest.
    """

    text: str
    moment: int
    limit: int
    digest_prefix: str

    @property
    def is_block(self) -> bool:
        """Return whether a block refused, rather than a limit."""
        return self.limit == _BLOCK

    def is_of(self, name: str) -> bool:
        """Return whether a limit of this group, scope or rule may have refused the request.

        Another name has the same hash with a probability of 1 in 2,047.
        """
        return _hash_of_limit(name) == self.limit


def reference_of(decision: Decision) -> str:
    """Return the reference of a refusal; empty if the refused identity is not known."""
    if not decision.identity:
        return ""
    state = decision.refusing[0]
    second = (decision.moment // 1_000_000 or int(time.time())) % _SECONDS
    limit = _BLOCK
    if not state.is_block:
        limit = _hash_of_limit(state.name)
    return _format((second * _LIMITS + limit) << 24 | int(decision.identity[:6], 16))


def parse_reference(text: str) -> Reference:
    """Parse a reference, in capitals or not, with or without hyphens and spaces.

    Raises `BadReferenceError`.

    >>> parse_reference("7ZK4-0MQ2-1AB3").digest_prefix
    '20a963'
    >>> parse_reference("7ZK4-…")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.web.reference.BadReferenceError: a reference has 12 letters and digits
    """
    letters = text[:200].upper().translate(_CORRECTIONS)
    if len(letters) != LENGTH or not set(letters) <= set(_LETTERS):
        problem = _("a reference has %(number)d letters and digits")
        raise BadReferenceError(problem % {"number": LENGTH})
    number = 0
    for letter in letters:
        number = number << 5 | _LETTERS.index(letter)
    second, limit = divmod(number >> 24, _LIMITS)
    return Reference(_format(number), _latest_moment(second), limit, f"{number & 0xFFFFFF:06x}")


def _format(number: int) -> str:
    """Return a number of 60 bits as letters and digits, with hyphens."""
    letters = "".join([_LETTERS[number >> shift & 31] for shift in range(55, -1, -5)])
    return f"{letters[:4]}-{letters[4:8]}-{letters[8:]}"


def _latest_moment(second: int) -> int:
    """Return the latest moment with that remainder; clocks of several hosts may differ by a day."""
    latest = int(time.time()) + _DAY
    return latest - (latest - second) % _SECONDS


def _hash_of_limit(name: str) -> int:
    """Return the hash of the group, scope or rule in the name of a limit. It is never `_BLOCK`."""
    place, _colon, _rest = name.partition(":")
    return zlib.crc32(place.encode(errors="surrogatepass")) % (_LIMITS - 1) + 1


class RefusalLog(LogSampler):
    """Writes records, and skips some in a flood."""

    def write(
        self, request: HttpRequest, decision: Decision, rule: str | None, reference: str
    ) -> None:
        """Write one record about a refusal, unless there were too many.

        `rule` is the name of the rule that refuses; None for a limit in the code.
        """
        limit = next(iter(decision.denied_by), "")
        if not logger.isEnabledFor(logging.WARNING) or not self.admit(limit, decision.identity):
            return
        path = request.path[:_MAX_PATH_LENGTH].encode("unicode_escape")
        details = {
            "limit": limit,
            "rule": rule,
            "identity": decision.identity[:8].decode(),
            "client": _masked_address(request),
            "method": (request.method or "")[:20],
            "path": path.decode(),  # Escaped, so that a client cannot write a line break.
            "reference": reference or None,
            "banned_until": str(decision.banned_until) if decision.banned_until else None,
            "skipped": self.take_skipped(limit),
        }
        logger.warning(
            "Refused by %(limit)s (rule: %(rule)s): %(method)s %(path)s of %(client)s, identity "
            "%(identity)s, reference %(reference)s; records dropped before: %(skipped)s",
            details,
            extra=details,
        )


def _masked_address(request: HttpRequest) -> str:
    """Return the client's address with the prefix of `_LOGGED_BITS`, or "unknown"."""
    try:
        address = client_address(request).address
    except Exception:  # A function in RATELIMIT_IP_META_KEY may raise anything.
        return "unknown"
    if address is None:
        return "unknown"
    bits = _LOGGED_BITS[address.version]
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


refusal_log = RefusalLog()
