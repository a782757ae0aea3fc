"""Fields of a request's body, read without consuming the body.

Only small bodies (`MAX_BYTES`) of forms or JSON are read. Django keeps them, so the view finds
everything as it would without this package: `request.POST` by its own upload handlers,
`request.body`, and the stream. A larger body, or one whose stream is already being read, is not
read here: its fields are `UNREAD`. A body that is malformed, or of another type, has no fields.

The client also chooses the type and charset of its body, and not every view uses these. So a body
is parsed in each way in which a view may parse it (`form_values` and the like return all values,
which blocks compare). If the results differ in a field, the field is `UNREAD`.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final, Literal

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, QueryDict, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from .request_state import plain, request_state

JSON = "application/json"
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MAX_BYTES = 64 * 1024
"""The largest body that is looked at."""
SLOW = ("idna", "punycode")
"""Charsets that decode in quadratic time: 64 KiB take a third of a second."""


UNDECODABLE = (ValueError, DeprecationWarning)
"""`unicode_escape` warns of unknown escapes, which raises where warnings are errors."""


class _Unread(Enum):
    UNREAD = "unread"


UNREAD: Final = _Unread.UNREAD
"""A body that was not read, so its fields are unknown."""
Unread = Literal[_Unread.UNREAD]


Values = tuple[str | Unread | None, ...]
"""What views may find in one field, each once: most often one value, none where the body has no
fields.
"""


def form_values(request: HttpRequest, name: str) -> Values:
    """Return the values that views may find in a field of a form, whatever the method.

    Django parses only POST requests; other views also parse PUT and PATCH.

    >>> from django.test import RequestFactory
    >>> form_values(RequestFactory().post("/", {"name": "ada"}), "name")
    ('ada',)
    """
    posted = vars(plain(request)).get(
        "_post"
    )  # Set if it was parsed already, for example by Django's CSRF check.
    if posted:
        return (_text(posted, name),)
    return _values(request, (URLENCODED, MULTIPART), lambda fields: _text(fields, name))


def json_values(request: HttpRequest, path: str) -> Values:
    """Return the values that views may find in a field of a JSON object.

    The path is the name of the field, or names joined with dots.

    Text is returned as it is, anything else as JSON.

    >>> from django.test import RequestFactory
    >>> body = {"user": {"name": "ada"}}
    >>> request = RequestFactory().post("/", body, content_type="application/json")
    >>> json_values(request, "user.name"), json_values(request, "user"), json_values(request, "age")
    (('ada',), ('{"name":"ada"}',), (None,))
    """
    return _values(request, (JSON,), lambda fields: _at(fields, path))


def data_values(request: HttpRequest, path: str) -> Values:
    """Return the values that views of Django REST framework may find in a field.

    The body is a form or a JSON object.
    """
    return tuple(dict.fromkeys((*json_values(request, path), *form_values(request, path))))


def agreed(values: Values) -> str | Unread | None:
    """Return the value that every view reads, or `UNREAD` if views may read different values.

    It is unknown which of the different values is right. If only one of them were counted, a client
    could vary the others without being limited.
    """
    if len(values) > 1:
        return UNREAD
    return next(iter(values), None)


def _is_of(kind: str, request: HttpRequest) -> bool:
    """Return whether a parser of this kind would take the body.

    DRF's parsers also take a type that contains a `*`.
    """
    main, _, sub = str(request.content_type).partition("/")
    if kind == JSON:  # Also text/json, application/vnd.api+json and the like.
        return sub.endswith("json") or (sub == "*" and main in ("*", "application"))
    if kind == MULTIPART:
        return main == "multipart" and sub in ("*", "form-data")
    return main in ("*", "application") and sub in ("*", "x-www-form-urlencoded")


def _values(
    request: HttpRequest, kinds: Sequence[str], value_of: Callable[[Any], str | Unread | None]
) -> Values:
    request = plain(request)
    readings = [
        fields for kind in kinds if _is_of(kind, request) for fields in _readings(request, kind)
    ]
    values = [UNREAD if fields is UNREAD else value_of(fields) for fields in readings]
    return tuple(dict.fromkeys(values))


def _readings(request: HttpRequest, kind: str) -> Sequence[object]:
    """Return the results of parsing a body, which is parsed once for all keys."""
    charset = request.encoding or settings.DEFAULT_CHARSET
    readings = request_state(request).readings
    if (kind, charset) not in readings:
        body = _read(request)
        readings[kind, charset] = [UNREAD]
        if body is not UNREAD:
            readings[kind, charset] = _parsed(request, body, kind, charset)
    return readings[kind, charset]


def _read(request: HttpRequest) -> bytes | Unread:
    """Return a small body as a whole, or `UNREAD`."""
    most = MAX_BYTES
    if settings.DATA_UPLOAD_MAX_MEMORY_SIZE is not None:
        # If Django refuses a body, it may leave the stream at its end.
        most = min(MAX_BYTES, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
    try:
        if _length(request) > most:
            return UNREAD
        body = request.body
    except (ValueError, RawPostDataException, UnreadablePostError, RequestDataTooBig):
        return UNREAD
    if "wsgi.input" in request.META:  # For views that go past Django to the server's own stream.
        request.META["wsgi.input"] = io.BytesIO(body)
    return body


def _length(request: HttpRequest) -> int:
    """Return the size of the body in bytes. Raises `ValueError` if the stream is closed."""
    stream = getattr(request, "_stream", None)
    if stream is not None and hasattr(stream, "seekable") and stream.seekable():
        # Under ASGI Django has the full body already. A chunked body has no declared length.
        position = stream.tell()
        stream.seek(0, io.SEEK_END)
        size = int(stream.tell())
        stream.seek(position)
        return size
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # As in Django, which then reads no more than that.


def _parsed(request: HttpRequest, body: bytes, kind: str, charset: str) -> Sequence[object]:
    """Return the results of parsing a small body: with the charset that it names, and without.

    If a parser rejects the JSON, its result is left out.
    """
    is_decoded = _is_decoded(charset)
    if kind == JSON:
        return _json(body, charset if is_decoded else None)
    if kind == MULTIPART:
        return [_multipart(request, body, charset) if is_decoded else UNREAD]
    readings = [_urlencoded(body, "utf-8")]
    if not is_decoded:
        readings.append(UNREAD)
    elif codecs.lookup(charset).name != "utf-8":
        readings.append(_urlencoded(body, charset))
    return readings


def _is_decoded(charset: str) -> bool:
    """Return whether text in this charset is decoded here.

    Codecs from bytes to bytes are not charsets: DRF refuses them, and a few bytes could become
    gigabytes.
    """
    try:
        return "".encode(charset) is not None and codecs.lookup(charset).name not in SLOW
    except (LookupError, ValueError):  # A `UnicodeError` is a `ValueError`.
        return False


def _json(body: bytes, charset: str | None) -> list[object]:
    """Return what parsers make of JSON.

    A Django view calls `json.loads`, which detects the charset. DRF uses the charset of the
    request, and ignores a character that is cut off at the end, as stream readers do.
    """
    texts = []
    with suppress(ValueError):
        texts.append(body.decode(json.detect_encoding(body), "surrogatepass"))
    if charset is not None:
        with suppress(*UNDECODABLE):
            texts.append(codecs.getreader(charset)(io.BytesIO(body)).read())
    readings: list[object] = []
    for text in dict.fromkeys(texts):
        with suppress(ValueError, RecursionError):
            readings.append(json.loads(text))
    if charset is None:
        readings.append(UNREAD)
    return readings


def _urlencoded(body: bytes, charset: str) -> QueryDict | Unread:
    try:
        return QueryDict(body, encoding=charset)
    except (SuspiciousOperation, *UNDECODABLE):
        return UNREAD  # Django refuses it when the view reads it.


def _multipart(request: HttpRequest, body: bytes, charset: str) -> QueryDict | Unread:
    try:
        # Without upload handlers: files in it are passed over, and kept nowhere.
        return MultiPartParser(request.META, io.BytesIO(body), [], charset).parse()[0]
    except (SuspiciousOperation, MultiPartParserError, *UNDECODABLE):
        return UNREAD


def _text(fields: QueryDict, name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    return str(value)


def _at(value: object, path: str) -> str | Unread | None:
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:  # Written deeper than it could be read.
        return UNREAD
