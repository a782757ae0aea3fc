"""Envoy's requests, read and bounded.

Invalid values of Envoy's configuration are refused, so that they are noticed. Values of clients
never are, however odd: by default, Envoy admits a request that got no answer.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, NamedTuple

from django.http import HttpHeaders, HttpRequest
from google.protobuf.message import DecodeError

from ....conf import conf
from ....identity import Identity
from ....identity.address import address_as
from ....identity.keys import registered_keys
from ....identity.request_state import request_state
from ....limits.call import MAX_COST
from ....limits.rate import SECOND, LimitError, Rate
from ..descriptors import ADDRESS, CHARGE, Entries
from ..users import VouchedUser, log_in
from . import messages
from .lease import CONFIRM, LEASE

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a request; gRPC refuses more. Envoy accepts 60 KiB of headers from a client by
default.
"""
MAX_DESCRIPTORS, MAX_ENTRIES = 100, 100
MAX_VALUE_LENGTH = 16 * 1024
"""Characters of a value that count; of a longer one, also a digest of the whole."""
_DAY = 86_400 * SECOND
PERIODS = {
    messages.SECOND: SECOND,
    messages.MINUTE: 60 * SECOND,
    messages.HOUR: 3600 * SECOND,
    messages.DAY: _DAY,
    messages.WEEK: 7 * _DAY,
    messages.MONTH: 30 * _DAY,
    messages.YEAR: 365 * _DAY,
}
"""The units of Envoy's limits in microseconds, as long as its own service takes them for."""

_ADDRESS_HEADERS = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED")

Purpose = Literal["hit", "charge", "refund", "confirm", "release"]


class QuestionError(ValueError):
    """An invalid request; the message names the problem."""


class DescriptorCharge(NamedTuple):
    """A descriptor that is asked about: its `domain` and `entries`.

    How many `hits`, and for what: to be allowed, or as units that were used already, or are given
    back, or to confirm or release a slot; and the rate that Envoy's configuration gives it (None:
    that of the rules).
    """

    domain: str
    entries: Entries
    hits: int = 1
    purpose: Purpose = "hit"
    rate: Rate | None = None

    def identity(self) -> Identity:
        """The identity without a key: the descriptor, with its address in canonical form."""
        parts = [
            ("ip", address_as(value, "").network) if key == ADDRESS else ("entry", key, value)
            for key, value in self.entries
        ]
        return (("entry", "domain", self.domain), *parts)


def read_question(data: bytes) -> list[DescriptorCharge]:
    """The descriptors of a `RateLimitRequest`. Raises `QuestionError`."""
    try:
        request = messages.Request.FromString(data)
    except DecodeError:
        raise QuestionError("this is no RateLimitRequest") from None
    domain = _text(request.domain)
    if not domain:
        raise QuestionError("the domain is empty")
    if not 0 < len(request.descriptors) <= MAX_DESCRIPTORS:
        raise QuestionError(
            f"there are {len(request.descriptors)} descriptors; 1 to {MAX_DESCRIPTORS} are taken"
        )
    return [
        _asked(domain, descriptor, request.hits_addend or 1) for descriptor in request.descriptors
    ]


def _asked(domain: str, descriptor: Any, hits: int) -> DescriptorCharge:
    if not 0 < len(descriptor.entries) <= MAX_ENTRIES:
        raise QuestionError(
            f"a descriptor has {len(descriptor.entries)} entries; 1 to {MAX_ENTRIES} are taken"
        )
    entries = tuple([(_text(entry.key), _text(entry.value)) for entry in descriptor.entries])
    purpose: Purpose = "hit"
    if CHARGE in entries:
        purpose, entries = "charge", tuple([entry for entry in entries if entry != CHARGE])
    if not all(key for key, _ in entries) or not entries:
        raise QuestionError("an entry of a descriptor has no key")
    if descriptor.HasField("hits_addend"):
        hits = min(descriptor.hits_addend.value, MAX_COST)  # An explicit 0 takes nothing: it peeks.
    if descriptor.is_negative_hits:
        purpose = "refund"
    if any(key == LEASE for key, _ in entries):
        purpose = "release"
    elif any(key == CONFIRM for key, _ in entries):
        purpose = "confirm"
    return DescriptorCharge(
        domain,
        entries,
        hits,
        purpose,
        _rate(descriptor.limit) if descriptor.HasField("limit") else None,
    )


def _rate(limit: Any) -> Rate:
    if limit.unit not in PERIODS:
        raise QuestionError(
            f"the limit of a descriptor is for the unit {limit.unit}, which is none"
        )
    try:
        return Rate(limit.requests_per_unit, PERIODS[limit.unit])
    except LimitError as error:  # pragma: no cover - what fits in 32 bits is a rate.
        raise QuestionError(str(error)) from None


def _text(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    if len(text) > MAX_VALUE_LENGTH:
        text = text[:MAX_VALUE_LENGTH] + hashlib.blake2b(value, digest_size=16).hexdigest()
    return text


class DescribedRequest(HttpRequest):
    """The values of a descriptor as a request, for keys and overrides that read requests."""

    def __init__(self, asked: DescriptorCharge) -> None:
        super().__init__()
        self.path = asked.domain
        query: Any = self.GET
        self.META["SERVER_NAME"] = asked.domain
        for key, value in asked.entries:
            kind, _, name = key.partition(":")
            if key == "path":
                self.path = self.path_info = value
            elif key == "user":
                log_in(self, VouchedUser(value))
            elif kind.lower() == "header" and name:
                self.META[str(HttpHeaders.to_wsgi_name(name))] = value
            elif kind == "cookie" and name:
                self.COOKIES[name] = value
            elif kind == "get" and name:
                query[name] = value
            elif key in registered_keys():
                request_state(self).key_values[key] = value
        # Envoy reports the client's address. No header of the client is used.
        source = conf.IP_META_KEY if isinstance(conf.IP_META_KEY, str) else "REMOTE_ADDR"
        for name in (*_ADDRESS_HEADERS, source):
            self.META.pop(name, None)
        address = dict(asked.entries).get(ADDRESS)
        if address is not None:
            self.META["REMOTE_ADDR"] = self.META[source] = address
