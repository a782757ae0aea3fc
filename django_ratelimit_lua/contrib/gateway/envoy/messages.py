"""The messages of Envoy's rate limit service, without generated code and files of Envoy's.

An encoded message contains no names, only the numbers and types of its fields, so messages in this
package's own namespace are compatible with Envoy's. The numbers are those of
`envoy/service/ratelimit/v3/rls.proto` and `envoy/extensions/common/ratelimit/v3/ratelimit.proto`
(https://github.com/envoyproxy/envoy/tree/main/api). Text that clients may have sent has the type
`bytes`, which is encoded in the same way: otherwise a header that is not UTF-8 would make the
message unreadable, and Envoy admits a request without a response. In JSON, it is text.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, json_format, text_format
from google.protobuf import duration_pb2 as duration_pb2
from google.protobuf import wrappers_pb2 as wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

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


def _messages(package: str, text_type: str) -> tuple[Any, Any]:
    """Return the classes of `Request` and `Response` in which client text has this type."""
    file = _FILE.replace("PACKAGE", package).replace("TYPE_TEXT", text_type)
    pool = descriptor_pool.Default()
    pool.Add(text_format.Parse(file, FileDescriptorProto()))
    names = [f"django_ratelimit_lua.{package}.{name}" for name in ("Request", "Response")]
    request, response = [GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return request, response


Request, Response = _messages("envoy", "TYPE_BYTES")
JsonRequest, _ = _messages("envoy_json", "TYPE_STRING")


def write_json(response: Any) -> bytes:
    """Return a response as JSON."""
    return json_format.MessageToJson(response, indent=None).encode()
