"""Fields of a request's body, read without taking the body from the view.

Only a small body (`RATELIMIT_BODY_BYTES`) of a form or of JSON is looked at. Django keeps what was read, so the view
finds everything as it would without us: `request.POST` by upload handlers of its own, `request.body`, and the stream.
A larger body, or one whose stream somebody has begun to read, is left alone: `UNREAD`.

A body that was looked at and is malformed, or of another kind, has no fields.
"""

from __future__ import annotations

import io
import json
from enum import Enum
from typing import Any, Final, Literal

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, QueryDict, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from ..conf import conf

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class _Unread(Enum):
    UNREAD = "unread"


UNREAD: Final = _Unread.UNREAD
"""A body that was not looked at, so that nobody knows what its fields are."""
Unread = Literal[_Unread.UNREAD]


def form_field(request: HttpRequest, name: str) -> str | Unread | None:
    """A field of a form, whatever the method: Django parses only what is posted, others parse PUT and PATCH as well.

    >>> from django.test import RequestFactory
    >>> form_field(RequestFactory().post("/", {"name": "ada"}), "name")
    'ada'
    """
    posted = vars(request).get("_post")  # There if somebody, say Django's CSRF check, has parsed it already.
    if posted:
        return _text(posted, name)
    if request.content_type not in (URLENCODED, MULTIPART):
        return None
    fields = _parsed(request)
    return UNREAD if fields is UNREAD else _text(fields, name)


def json_field(request: HttpRequest, path: str) -> str | Unread | None:
    """A field of a JSON object, by its name or by names joined with dots; text as it is, anything else as JSON.

    >>> from django.test import RequestFactory
    >>> request = RequestFactory().post("/", {"user": {"name": "ada"}}, content_type="application/json")
    >>> json_field(request, "user.name"), json_field(request, "user"), json_field(request, "age")
    ('ada', '{"name":"ada"}', None)
    """
    if not _is_json(request):
        return None
    fields = _parsed(request)
    return UNREAD if fields is UNREAD else _at(fields, path)


def data_field(request: HttpRequest, path: str) -> str | Unread | None:
    """A field of the body as Django REST framework parses it: of a form or of a JSON object."""
    return json_field(request, path) if _is_json(request) else form_field(request, path)


def _is_json(request: HttpRequest) -> bool:
    kind = str(request.content_type)
    return kind == "application/json" or kind.endswith("+json")


def _parsed(request: HttpRequest) -> Any:
    """The fields of a body, parsed once for all keys that name one."""
    kept = vars(request)
    if "_ratelimit_fields" not in kept:
        body = _read(request)
        kept["_ratelimit_fields"] = UNREAD if body is UNREAD else _fields(request, body)
    return kept["_ratelimit_fields"]


def _read(request: HttpRequest) -> bytes | Unread:
    """A small body as a whole."""
    try:
        if _length(request) > _bound():
            return UNREAD
        body = request.body
    except (ValueError, RawPostDataException, UnreadablePostError, RequestDataTooBig):
        return UNREAD
    if "wsgi.input" in request.META:  # For views that go past Django to the server's own stream.
        request.META["wsgi.input"] = io.BytesIO(body)
    return body


def _bound() -> int:
    """Not more than Django would read: where it refuses a body, it may leave the stream at its end."""
    largest = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return conf.BODY_BYTES if largest is None else min(conf.BODY_BYTES, largest)


def _length(request: HttpRequest) -> int:
    """How many bytes the body has. Raises `ValueError` for a stream that was closed."""
    stream = getattr(request, "_stream", None)
    if stream is not None and hasattr(stream, "seekable") and stream.seekable():
        # Under ASGI Django has the whole body before anybody is asked. A chunked one does not say how long it is.
        position = stream.tell()
        stream.seek(0, io.SEEK_END)
        size = int(stream.tell())
        stream.seek(position)
        return size
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # As Django has it, which then gives nobody more than that.


def _fields(request: HttpRequest, body: bytes) -> Any:
    if _is_json(request):
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            return None
    try:
        if request.content_type == URLENCODED:
            return QueryDict(body, encoding="utf-8")
        # Without upload handlers: files in it are passed over, and kept nowhere.
        return MultiPartParser(request.META, io.BytesIO(body), [], request.encoding).parse()[0]
    except (SuspiciousOperation, MultiPartParserError):
        return UNREAD  # Django refuses it when the view reads it.


def _text(fields: Any, name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else str(value)


def _at(value: Any, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
