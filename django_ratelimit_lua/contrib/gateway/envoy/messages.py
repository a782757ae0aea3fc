"""The messages of Envoy's rate limit service, without generated code and files of Envoy's.

An encoded message contains no names, only the numbers and types of its fields, so messages in this
package's own namespace are compatible with Envoy's. The numbers are those of
`envoy/service/ratelimit/v3/rls.proto` and `envoy/extensions/common/ratelimit/v3/ratelimit.proto`
(https://github.com/envoyproxy/envoy/tree/main/api). Text that clients may have sent has the type
`bytes`, which is encoded in the same way: otherwise a header that is not UTF-8 would make the
message unreadable, and Envoy admits a request without a response.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
# The codes of an answer.
OK = 1
OVER_LIMIT = 2
# The units of time.
SECOND = 1
MINUTE = 2
HOUR = 3
DAY = 4
MONTH = 5
YEAR = 6
WEEK = 7
_FILE = """
name: "django_ratelimit_lua/envoy.proto"
package: "django_ratelimit_lua.envoy"
syntax: "proto3"
message_type {
  name: "Entry"
  field { name: "key" number: 1 type: TYPE_BYTES }
  field { name: "value" number: 2 type: TYPE_BYTES }
}
message_type {
  name: "Override"
  field { name: "requests_per_unit" number: 1 type: TYPE_UINT32 }
  field { name: "unit" number: 2 type: TYPE_INT32 }
}
message_type {
  name: "Whole"
  field { name: "value" number: 1 type: TYPE_UINT64 }
}
message_type {
  name: "Descriptor"
  field { name: "entries" number: 1 type_name: "Entry" label: LABEL_REPEATED }
  field { name: "limit" number: 2 type_name: "Override" }
  field { name: "hits_addend" number: 3 type_name: "Whole" }
  field { name: "is_negative_hits" number: 4 type: TYPE_BOOL }
}
message_type {
  name: "Request"
  field { name: "domain" number: 1 type: TYPE_BYTES }
  field { name: "descriptors" number: 2 type_name: "Descriptor" label: LABEL_REPEATED }
  field { name: "hits_addend" number: 3 type: TYPE_UINT32 }
}
message_type {
  name: "Limit"
  field { name: "requests_per_unit" number: 1 type: TYPE_UINT32 }
  field { name: "unit" number: 2 type: TYPE_INT32 }
  field { name: "name" number: 3 type: TYPE_STRING }
}
message_type {
  name: "Duration"
  field { name: "seconds" number: 1 type: TYPE_INT64 }
  field { name: "nanos" number: 2 type: TYPE_INT32 }
}
message_type {
  name: "Status"
  field { name: "code" number: 1 type: TYPE_INT32 }
  field { name: "current_limit" number: 2 type_name: "Limit" }
  field { name: "limit_remaining" number: 3 type: TYPE_UINT32 }
  field { name: "duration_until_reset" number: 4 type_name: "Duration" }
}
message_type {
  name: "Header"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_STRING }
}
message_type {
  name: "Response"
  field { name: "overall_code" number: 1 type: TYPE_INT32 }
  field { name: "statuses" number: 2 type_name: "Status" label: LABEL_REPEATED }
  field { name: "response_headers_to_add" number: 3 type_name: "Header" label: LABEL_REPEATED }
  field { name: "request_headers_to_add" number: 4 type_name: "Header" label: LABEL_REPEATED }
  field { name: "raw_body" number: 5 type: TYPE_BYTES }
}
"""
"""The messages in the text format of protocol buffers. Of Envoy's fields, those that are used;
enumerations are numbers.
"""

_pool = DescriptorPool()
_pool.Add(text_format.Parse(_FILE, FileDescriptorProto()))


def _class_of(name: str) -> Any:
    return GetMessageClass(_pool.FindMessageTypeByName(f"django_ratelimit_lua.envoy.{name}"))


Request = _class_of("Request")
Response = _class_of("Response")
