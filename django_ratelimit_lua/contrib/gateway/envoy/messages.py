"""The messages of Envoy's rate limit service, made when they are imported: no generated code, no
files of Envoy's.

On the wire a message has no name, only the numbers and kinds of its fields, so ours are of a
package of our own and understand Envoy's. The numbers are those of
`envoy/service/ratelimit/v3/rls.proto` and `envoy/extensions/common/ratelimit/v3/ratelimit.proto`
(https://github.com/envoyproxy/envoy/tree/main/api). What text clients may have sent is of the kind
`bytes`, which is the same on the wire: a header that is no UTF-8 would otherwise make a message
that cannot be read, and Envoy lets through what it has no answer to.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
OK, OVER_LIMIT = 1, 2
"""The codes of an answer."""
SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = 1, 2, 3, 4, 5, 6, 7
"""The units of time."""
_PACKAGE = "django_ratelimit_lua.envoy"
_KINDS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Override": {"requests_per_unit": (1, "uint32"), "unit": (2, "int32")},
    "Whole": {"value": (1, "uint64")},
    "Descriptor": {
        "entries": (1, "Entry*"),
        "limit": (2, "Override"),
        "hits_addend": (3, "Whole"),
        "is_negative_hits": (4, "bool"),
    },
    "Request": {
        "domain": (1, "bytes"),
        "descriptors": (2, "Descriptor*"),
        "hits_addend": (3, "uint32"),
    },
    "Limit": {"requests_per_unit": (1, "uint32"), "unit": (2, "int32"), "name": (3, "string")},
    "Duration": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Status": {
        "code": (1, "int32"),
        "current_limit": (2, "Limit"),
        "limit_remaining": (3, "uint32"),
        "duration_until_reset": (4, "Duration"),
    },
    "Header": {"key": (1, "string"), "value": (2, "string")},
    "Response": {
        "overall_code": (1, "int32"),
        "statuses": (2, "Status*"),
        "response_headers_to_add": (3, "Header*"),
        "request_headers_to_add": (4, "Header*"),
        "raw_body": (5, "bytes"),
    },
}
"""Each message, and of its fields the number and kind; a star: any number of them. Of Envoy's
fields, those that are used; enumerations are numbers.
"""


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="django_ratelimit_lua/envoy.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, written) in fields.items():
            kind = written.removesuffix("*")
            label = (
                FieldDescriptorProto.LABEL_REPEATED
                if written != kind
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            described = message.field.add(name=field, number=number, label=label)
            if kind in _KINDS:
                described.type = _KINDS[kind]
            else:
                described.type, described.type_name = (
                    FieldDescriptorProto.TYPE_MESSAGE,
                    f".{_PACKAGE}.{kind}",
                )
    return file


_pool = DescriptorPool()
_pool.Add(_file())


def _class_of(name: str) -> Any:
    return GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Request: Any = _class_of("Request")
Response: Any = _class_of("Response")
