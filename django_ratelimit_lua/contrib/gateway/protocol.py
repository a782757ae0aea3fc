"""Envoy's rate limit protocol: its messages, and requests that are parsed and bounded.

An encoded message contains no names, only the numbers and types of its fields, so messages in this
package's own namespace are compatible with Envoy's. The numbers are those of
`envoy/service/ratelimit/v3/rls.proto` and `envoy/extensions/common/ratelimit/v3/ratelimit.proto`
(https://github.com/envoyproxy/envoy/tree/main/api). Text that clients may have sent has the type
`bytes`, which is encoded in the same way: otherwise a header that is not UTF-8 would make the
message unreadable, and Envoy admits a request without a response. In JSON, it is text.

Invalid values in a configuration are refused, so that they are noticed. Values of clients are never
refused: by default, Envoy admits a request that gets no response.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, json_format, text_format
from google.protobuf import duration_pb2 as duration_pb2
from google.protobuf import wrappers_pb2 as wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ...identity import Identity
from ...identity.address import parse_client_address
from ...limits.call import MAX_COST
from ...limits.rate import SECOND, Rate
from .descriptors import ADDRESS, CHARGE, Entries

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
SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
OK = 1
OVER_LIMIT = 2
_FILE = """
name: "django_ratelimit_lua/PACKAGE.proto"
package: "django_ratelimit_lua.PACKAGE"
syntax: "proto3"
dependency: "google/protobuf/duration.proto"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "Entry"
  field { name: "key" number: 1 type: TYPE_TEXT }
  field { name: "value" number: 2 type: TYPE_TEXT }
}
message_type {
  name: "Override"
  field { name: "requests_per_unit" number: 1 type: TYPE_UINT32 }
  field { name: "unit" number: 2 type_name: "Limit.Unit" }
}
message_type {
  name: "Descriptor"
  field { name: "entries" number: 1 type_name: "Entry" label: LABEL_REPEATED }
  field { name: "limit" number: 2 type_name: "Override" }
  field { name: "hits_addend" number: 3 type_name: ".google.protobuf.UInt64Value" }
  field { name: "is_negative_hits" number: 4 type: TYPE_BOOL }
}
message_type {
  name: "Request"
  field { name: "domain" number: 1 type: TYPE_TEXT }
  field { name: "descriptors" number: 2 type_name: "Descriptor" label: LABEL_REPEATED }
  field { name: "hits_addend" number: 3 type: TYPE_UINT32 }
}
message_type {
  name: "Limit"
  enum_type {
    name: "Unit"
    value { name: "UNKNOWN" number: 0 }
    value { name: "SECOND" number: 1 }
    value { name: "MINUTE" number: 2 }
    value { name: "HOUR" number: 3 }
    value { name: "DAY" number: 4 }
    value { name: "MONTH" number: 5 }
    value { name: "YEAR" number: 6 }
    value { name: "WEEK" number: 7 }
  }
  field { name: "requests_per_unit" number: 1 type: TYPE_UINT32 }
  field { name: "unit" number: 2 type_name: "Unit" }
  field { name: "name" number: 3 type: TYPE_STRING }
}
message_type {
  name: "Status"
  field { name: "code" number: 1 type_name: "Response.Code" }
  field { name: "current_limit" number: 2 type_name: "Limit" }
  field { name: "limit_remaining" number: 3 type: TYPE_UINT32 }
  field { name: "duration_until_reset" number: 4 type_name: ".google.protobuf.Duration" }
}
message_type {
  name: "Header"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_STRING }
}
message_type {
  name: "Response"
  enum_type {
    name: "Code"
    value { name: "UNKNOWN" number: 0 }
    value { name: "OK" number: 1 }
    value { name: "OVER_LIMIT" number: 2 }
  }
  field { name: "overall_code" number: 1 type_name: "Code" }
  field { name: "statuses" number: 2 type_name: "Status" label: LABEL_REPEATED }
  field { name: "response_headers_to_add" number: 3 type_name: "Header" label: LABEL_REPEATED }
  field { name: "raw_body" number: 5 type: TYPE_BYTES }
}
"""
"""The messages in the text format of protocol buffers, with the fields of Envoy's that are used."""


def _make_messages(package: str, text_type: str) -> tuple[Any, Any]:
    """Return the classes of `Request` and `Response` in which client text has this type."""
    file = _FILE.replace("PACKAGE", package).replace("TYPE_TEXT", text_type)
    pool = descriptor_pool.Default()
    pool.Add(text_format.Parse(file, FileDescriptorProto()))
    request = pool.FindMessageTypeByName(f"django_ratelimit_lua.{package}.Request")
    response = pool.FindMessageTypeByName(f"django_ratelimit_lua.{package}.Response")
    return GetMessageClass(request), GetMessageClass(response)


Request, Response = _make_messages("envoy", "TYPE_BYTES")
JsonRequest, _ = _make_messages("envoy_json", "TYPE_STRING")


class ProtocolError(ValueError):
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
        parts: list[tuple[str | None, ...]] = []
        for key, value in self.entries:
            if key == ADDRESS:
                parts.append(("ip", parse_client_address(value, "").network))
            else:
                parts.append(("entry", key, value))
        return (("entry", "domain", self.domain), *parts)


def encode_json(body: bytes) -> bytes:
    """Return a `RateLimitRequest` in JSON as an encoded message. Raises `ProtocolError`."""
    try:
        message: bytes = json_format.Parse(body, JsonRequest()).SerializeToString()
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # The error contains text of the body, which may have line breaks.
        problem = ascii(str(error)[:200])
        raise ProtocolError(f"the body is not a RateLimitRequest: {problem}") from None
    return message


def write_json(response: Any) -> bytes:
    """Return a response as JSON."""
    return json_format.MessageToJson(response, indent=None).encode()


def read_request(message: bytes) -> list[DescriptorCharge]:
    """Return the descriptors of an encoded `RateLimitRequest`. Raises `ProtocolError`."""
    try:
        request = Request.FromString(message)
    except DecodeError:
        raise ProtocolError("the message is not a RateLimitRequest") from None
    domain = _decode_text(request.domain)
    if not domain:
        raise ProtocolError("the domain is empty")
    number = len(request.descriptors)
    if not 0 < number <= MAX_DESCRIPTORS:
        raise ProtocolError(
            f"the request has {number} descriptors: must be from 1 to {MAX_DESCRIPTORS}"
        )
    hits = request.hits_addend or 1
    return [_read_descriptor(domain, descriptor, hits) for descriptor in request.descriptors]


def _read_descriptor(domain: str, descriptor: Any, hits: int) -> DescriptorCharge:
    """Return a descriptor, which takes `hits` units unless it has its own number."""
    if descriptor.is_negative_hits:
        raise ProtocolError("is_negative_hits is not supported: units cannot be returned")
    entries = [(_decode_text(entry.key), _decode_text(entry.value)) for entry in descriptor.entries]
    counted = tuple([entry for entry in entries if entry != CHARGE])
    if not counted or not all(key for key, _ in counted):
        raise ProtocolError("a descriptor has no entry, or an entry without a key")
    if descriptor.HasField("hits_addend"):
        hits = min(descriptor.hits_addend.value, MAX_COST)
    rate = None
    if descriptor.HasField("limit"):
        unit = descriptor.limit.unit
        if not 0 < unit < len(PERIODS):
            raise ProtocolError(f"the limit of a descriptor has the unknown unit {unit}")
        rate = Rate(descriptor.limit.requests_per_unit, PERIODS[unit])
    return DescriptorCharge(domain, counted, hits, CHARGE in entries, rate)


def _decode_text(value: bytes) -> str:
    """Return bytes of a client as text of a bounded length."""
    text = value.decode(errors="backslashreplace")
    if len(text) > MAX_VALUE_LENGTH:
        text = text[:MAX_VALUE_LENGTH] + hashlib.blake2b(value, digest_size=16).hexdigest()
    return text
