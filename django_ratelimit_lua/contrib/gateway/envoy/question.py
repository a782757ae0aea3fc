"""Requests of the protocol, parsed and bounded.

Invalid values in a configuration are refused, so that they are noticed. Values of clients are never
refused: by default, Envoy admits a request that gets no response.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from django.http import HttpHeaders, HttpRequest
from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError

from ....conf import conf
from ....identity import Identity
from ....identity.address import parse_client_address
from ....identity.keys import registered_keys
from ....identity.request_state import request_state
from ....limits.call import MAX_COST
from ....limits.rate import SECOND, Rate
from ..descriptors import ADDRESS, CHARGE, Entries
from ..users import VouchedUser, log_in
from . import messages

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a request over gRPC. Envoy accepts 60 KiB of headers from a client by default,
and a descriptor may contain each of them.
"""
MAX_DESCRIPTORS = 100
MAX_VALUE_LENGTH = 16 * 1024
"""Characters of a value that count; of a longer one, also a digest of the whole."""
_DAY = 86_400 * SECOND
PERIODS = (0, SECOND, 60 * SECOND, 3600 * SECOND, _DAY, 30 * _DAY, 365 * _DAY, 7 * _DAY)
"""The units of time in microseconds, by their number in the protocol: unknown, second, minute,
hour, day, month, year, week.
"""
_ADDRESS_HEADERS = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED")


class QuestionError(ValueError):
    """An invalid request; the message names the problem."""


class DescriptorCharge(NamedTuple):
    """A descriptor of a request.

    - `hits`: the number of units; 0 takes none;
    - `is_used`: whether the units were used already, so that they are charged in any case;
    - `rate`: the rate that the request brings (None: that of the rules).
    """

    domain: str
    entries: Entries
    hits: int = 1
    is_used: bool = False
    rate: Rate | None = None

    def identity(self) -> Identity:
        """Return the identity for limits without a key: the descriptor, its address normalized."""
        parts = [
            ("ip", parse_client_address(value, "").network)
            if key == ADDRESS
            else ("entry", key, value)
            for key, value in self.entries
        ]
        return (("entry", "domain", self.domain), *parts)


def read_json(body: bytes) -> bytes:
    """Return a `RateLimitRequest` in JSON as an encoded message. Raises `QuestionError`."""
    try:
        data: bytes = Parse(body, messages.JsonRequest()).SerializeToString()
    except (ParseError, ValueError, RecursionError) as error:
        # The error contains text of the body, which may have line breaks.
        problem = ascii(str(error)[:200])
        raise QuestionError(f"the body is not a RateLimitRequest: {problem}") from None
    return data


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
    if descriptor.is_negative_hits:
        raise QuestionError("is_negative_hits is not supported: units cannot be returned")
    every = [(_text(entry.key), _text(entry.value)) for entry in descriptor.entries]
    entries = tuple([entry for entry in every if entry != CHARGE])
    if not entries or not all(key for key, _ in entries):
        raise QuestionError("a descriptor has no entry, or an entry without a key")
    if descriptor.HasField("hits_addend"):
        hits = min(descriptor.hits_addend.value, MAX_COST)
    rate = None
    if descriptor.HasField("limit"):
        unit = descriptor.limit.unit
        if not 0 < unit < len(PERIODS):
            raise QuestionError(f"the limit of a descriptor has the unknown unit {unit}")
        rate = Rate(descriptor.limit.requests_per_unit, PERIODS[unit])
    return DescriptorCharge(domain, entries, hits, CHARGE in every, rate)


def _text(value: bytes) -> str:
    text = value.decode(errors="backslashreplace")
    if len(text) > MAX_VALUE_LENGTH:
        text = text[:MAX_VALUE_LENGTH] + hashlib.blake2b(value, digest_size=16).hexdigest()
    return text


class DescriptorRequest(HttpRequest):
    """The values of a descriptor as a request, for keys and overrides that read requests."""

    def __init__(self, requested: DescriptorCharge) -> None:
        super().__init__()
        values = dict(requested.entries)
        log_in(self, VouchedUser(values.get("user", "")))
        self.path = requested.domain
        query: Any = self.GET
        self.META["SERVER_NAME"] = requested.domain
        for key, value in requested.entries:
            kind, _, name = key.partition(":")
            if key == "path":
                self.path = self.path_info = value
            elif kind.lower() == "header" and name:
                self.META[str(HttpHeaders.to_wsgi_name(name))] = value
            elif kind == "cookie" and name:
                self.COOKIES[name] = value
            elif kind == "get" and name:
                query[name] = value
            elif key in registered_keys():
                request_state(self).key_values[key] = value
        # The address is that of the entry. No header of the client is used.
        source = "REMOTE_ADDR"
        if isinstance(conf.IP_META_KEY, str):
            source = conf.IP_META_KEY
        for header in (*_ADDRESS_HEADERS, source):
            self.META.pop(header, None)
        if ADDRESS in values:
            self.META["REMOTE_ADDR"] = self.META[source] = values[ADDRESS]
