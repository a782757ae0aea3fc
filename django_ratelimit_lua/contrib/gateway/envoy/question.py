"""Envoy's requests, parsed and bounded.

Invalid values in Envoy's configuration are refused, so that they are noticed. Values of clients are
never refused: by default, Envoy admits a request that gets no response.
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
from ....limits.rate import SECOND, Rate
from ..descriptors import ADDRESS, CHARGE, Entries
from ..users import VouchedUser, log_in
from . import messages

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a request; gRPC refuses more. Envoy accepts 60 KiB of headers from a client by
default.
"""
MAX_DESCRIPTORS = 100
MAX_ENTRIES = 100
MAX_VALUE_LENGTH = 16 * 1024
"""Characters of a value that count; of a longer one, also a digest of the whole."""
PERIODS = {
    messages.SECOND: SECOND,
    messages.MINUTE: 60 * SECOND,
    messages.HOUR: 3600 * SECOND,
    messages.DAY: 86_400 * SECOND,
    messages.WEEK: 7 * 86_400 * SECOND,
    messages.MONTH: 30 * 86_400 * SECOND,
    messages.YEAR: 365 * 86_400 * SECOND,
}
"""The units of Envoy's limits in microseconds, as long as its own service takes them for."""

_ADDRESS_HEADERS = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED")

Purpose = Literal["hit", "charge", "refund"]


class QuestionError(ValueError):
    """An invalid request; the message names the problem."""


class DescriptorCharge(NamedTuple):
    """A descriptor of a request.

    - `hits`: the number of units;
    - `purpose`: whether the units are to be allowed, were used already, or are refunded;
    - `rate`: the rate in Envoy's configuration (None: that of the rules).
    """

    domain: str
    entries: Entries
    hits: int = 1
    purpose: Purpose = "hit"
    rate: Rate | None = None

    def identity(self) -> Identity:
        """Return the identity for limits without a key: the descriptor, its address normalized."""
        parts = [
            ("ip", address_as(value, "").network) if key == ADDRESS else ("entry", key, value)
            for key, value in self.entries
        ]
        return (("entry", "domain", self.domain), *parts)


def read_question(data: bytes) -> list[DescriptorCharge]:
    """Return the descriptors of a `RateLimitRequest`. Raises `QuestionError`."""
    try:
        request = messages.Request.FromString(data)
    except DecodeError:
        raise QuestionError("the message is not a RateLimitRequest") from None
    domain = _text(request.domain)
    if not domain:
        raise QuestionError("the domain is empty")
    number = len(request.descriptors)
    if not 0 < number <= MAX_DESCRIPTORS:
        raise QuestionError(
            f"the request has {number} descriptors: must be from 1 to {MAX_DESCRIPTORS}"
        )
    hits = request.hits_addend or 1
    return [_read_descriptor(domain, descriptor, hits) for descriptor in request.descriptors]


def _read_descriptor(domain: str, descriptor: Any, hits: int) -> DescriptorCharge:
    number = len(descriptor.entries)
    if not 0 < number <= MAX_ENTRIES:
        raise QuestionError(f"a descriptor has {number} entries: must be from 1 to {MAX_ENTRIES}")
    every = [(_text(entry.key), _text(entry.value)) for entry in descriptor.entries]
    entries = tuple([entry for entry in every if entry != CHARGE])
    keys = [key for key, _ in entries]
    if "" in keys or not keys:
        raise QuestionError("an entry of a descriptor has no key")
    purpose: Purpose = "hit"
    if descriptor.is_negative_hits:
        purpose = "refund"
    elif CHARGE in every:
        purpose = "charge"
    if descriptor.HasField("hits_addend"):
        hits = min(descriptor.hits_addend.value, MAX_COST)  # An explicit 0 takes nothing: it peeks.
    rate = None
    if descriptor.HasField("limit"):
        rate = _rate(descriptor.limit)
    return DescriptorCharge(domain, entries, hits, purpose, rate)


def _rate(limit: Any) -> Rate:
    if limit.unit not in PERIODS:
        raise QuestionError(f"the limit of a descriptor has the unknown unit {limit.unit}")
    return Rate(limit.requests_per_unit, PERIODS[limit.unit])


def _text(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    if len(text) > MAX_VALUE_LENGTH:
        text = text[:MAX_VALUE_LENGTH] + hashlib.blake2b(value, digest_size=16).hexdigest()
    return text


class DescriptorRequest(HttpRequest):
    """The values of a descriptor as a request, for keys and overrides that read requests."""

    def __init__(self, requested: DescriptorCharge) -> None:
        super().__init__()
        self.path = requested.domain
        query: Any = self.GET
        self.META["SERVER_NAME"] = requested.domain
        for key, value in requested.entries:
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
        source = "REMOTE_ADDR"
        if isinstance(conf.IP_META_KEY, str):
            source = conf.IP_META_KEY
        for name in (*_ADDRESS_HEADERS, source):
            self.META.pop(name, None)
        address = dict(requested.entries).get(ADDRESS)
        if address is not None:
            self.META["REMOTE_ADDR"] = self.META[source] = address
