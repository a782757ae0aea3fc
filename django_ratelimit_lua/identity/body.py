"""Fields of a request's body, read without consuming the body.

A form or JSON of at most `MAX_BYTES` in UTF-8 is read, by its content type. Django keeps it, so the
view finds everything as it would without this package: `request.POST` by its own upload handlers,
`request.body`, and the stream. A form or JSON is `UNREAD` if it is larger, malformed or in another
charset, or if its stream is already being read. A body of another type has no fields.
"""

from __future__ import annotations

import codecs
import io
import json
from enum import Enum
from typing import Any, Final, Literal

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, QueryDict, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from .request_state import plain, request_state

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MAX_BYTES = 64 * 1024
"""Maximum size of a body that is read."""


class _Unread(Enum):
    UNREAD = "unread"


UNREAD: Final = _Unread.UNREAD
"""The value of a field in a body that was not read."""
Value = str | Literal[_Unread.UNREAD] | None
"""The value of a field; None if the request has no such field."""


def form_value(request: HttpRequest, name: str) -> Value:
    """Return the value of a field of a form, whatever the method.

    >>> from django.test import RequestFactory
    >>> form_value(RequestFactory().post("/", {"name": "ada"}), "name")
    'ada'
    """
    return _value(request, name, has_json=False)


def json_value(request: HttpRequest, path: str) -> Value:
    """Return the value of a field of a JSON object: text, or a number or truth value as JSON.

    The path is the name of the field, or names joined with dots. A list or an object is `UNREAD`.

    >>> from django.test import RequestFactory
    >>> body = {"user": {"name": "ada", "id": 7}}
    >>> request = RequestFactory().post("/", body, content_type="application/json")
    >>> json_value(request, "user.name"), json_value(request, "user.id"), json_value(request, "age")
    ('ada', '7', None)
    """
    return _value(request, path, has_forms=False)


def data_value(request: HttpRequest, path: str) -> Value:
    """Return the value of a field of a form or a JSON object, as Django REST framework does."""
    return _value(request, path)


def _value(
    request: HttpRequest, path: str, *, has_forms: bool = True, has_json: bool = True
) -> Value:
    # A form that was parsed already, for example by Django's CSRF check, is used at any size.
    fields: object = getattr(plain(request), "_post", None) or _fields(request)
    if fields is UNREAD:
        return UNREAD
    if isinstance(fields, QueryDict):
        return fields.get(path) if has_forms else None
    if not has_json:
        return None
    for name in path.split("."):
        if not isinstance(fields, dict):
            return None
        fields = fields.get(name)
    if isinstance(fields, (dict, list)):
        return UNREAD
    if fields is None or isinstance(fields, str):
        return fields
    return json.dumps(fields)


def _fields(request: HttpRequest) -> Any:
    """Return the result of parsing a body, which is parsed once for all keys."""
    state = request_state(request)
    if state.fields is None:
        try:
            state.fields = _parsed(plain(request))
        except (
            ValueError,
            RecursionError,
            SuspiciousOperation,
            MultiPartParserError,
            RawPostDataException,
            UnreadablePostError,
        ):
            state.fields = UNREAD
    return state.fields


def _parsed(request: HttpRequest) -> Any:
    kind = request.content_type or ""
    if "*" in kind:  # DRF takes it for the type of its first parser.
        return UNREAD
    if kind not in (URLENCODED, MULTIPART) and not kind.endswith("json"):
        return None
    charset = codecs.lookup(request.encoding or settings.DEFAULT_CHARSET)
    if charset.name != "utf-8" or _size(request) > MAX_BYTES:
        return UNREAD
    body = request.body
    if "wsgi.input" in request.META:  # Some views read the stream of the server.
        request.META["wsgi.input"] = io.BytesIO(body)
    if kind == URLENCODED:
        return QueryDict(body, encoding="utf-8")
    if kind == MULTIPART:
        # Without upload handlers, files are skipped.
        return MultiPartParser(request.META, io.BytesIO(body), [], "utf-8").parse()[0]
    return json.loads(body or b"null")


def _size(request: HttpRequest) -> int:
    stream = request._stream
    if not stream.seekable():
        return int(request.META.get("CONTENT_LENGTH") or 0)
    # Under ASGI, Django has received the whole body. A chunked one has no declared length.
    position = stream.tell()
    size: int = stream.seek(0, io.SEEK_END)
    stream.seek(position)
    return size
