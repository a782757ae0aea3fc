"""The fields that a client sends: headers, cookies, the query and the body, within bounds.

A refusal must not cost more than the request that it refuses, so values that are longer than any
client needs are not parsed. The response to a longer header or query is 400, like Django's response
to too many parameters: ignoring it would let clients evade the limit.

A body is read without consuming it: a form or JSON of at most `MAX_BODY_BYTES` in UTF-8, by its
content type. Django keeps it, so the view finds everything as it would without this package:
`request.POST` by its own upload handlers, `request.body`, and the stream. A form or JSON is
`UNREAD` if it is larger, malformed or in another charset, or if its stream is already being read. A
body of another type has no fields.

Texts that the view treats as equal must share a count. A login form accepts a name with a trailing
space, in full-width letters or in capitals for the same user: Django's `UsernameField` strips and
applies NFKC, and many user models ignore case. So `normalize_text` makes one spelling of them.
"""

from __future__ import annotations

import codecs
import io
import json
import unicodedata
from enum import Enum
from typing import Final, Literal, NamedTuple

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import (
    HttpHeaders,
    HttpRequest,
    QueryDict,
    RawPostDataException,
    UnreadablePostError,
)
from django.http.multipartparser import MultiPartParser, MultiPartParserError

from .request_state import request_state, unwrap_request

MAX_HEADER_LENGTH = 64 * 1024
"""Characters of a header that are looked at; common servers take 8 to 64 KiB."""
MAX_PARSED_LENGTH = 16 * 1024
"""Characters of a query, or of cookies, that are parsed; common servers take 4 to 8 KiB."""
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MAX_BODY_BYTES = 64 * 1024
"""Maximum size of a body that is read."""
NO_NUMBER = "INVALID"
"""The spelling of every text that is no number. Normalized text has no capitals."""
MAX_NUMBER_LENGTH = 8600
"""Characters of a number: `int` accepts 4,300 digits with an underscore between each."""
MAX_TEXT_LENGTH = 1024
"""Characters beyond which text that is not ASCII is only stripped: NFKC takes quadratic time for
some of it.
"""
_MAX_ROUNDS = 10
"""Maximum number of times that case is folded; two are enough for every single character."""


class _Unread(Enum):
    UNREAD = "unread"


UNREAD: Final = _Unread.UNREAD
"""Stands for a body that was not read, and for the values of its fields."""
Value = str | Literal[_Unread.UNREAD] | None
"""The value of a field.

- text: the value, which may be empty;
- None: the request has no such field, or it is null in JSON;
- `UNREAD`: the body was not read, or the value is a list or an object.
"""


class JsonDocument(NamedTuple):
    """A JSON body that was read.

    - `value`: the parsed value. None also stands for a body of another type, without fields.
    """

    value: object = None


Body = QueryDict | JsonDocument | Literal[_Unread.UNREAD]
"""A body: a form, a JSON document, or `UNREAD`."""


def header_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a header; None if it is missing. Raises `RequestDataTooBig`."""
    # Not from request.headers, which converts every header of the request.
    key = HttpHeaders.to_wsgi_name(name)
    _raise_if_longer(request, key, MAX_HEADER_LENGTH)
    value: str | None = request.META.get(key)
    return value


def cookie_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a cookie; None if it is missing. Raises `RequestDataTooBig`."""
    _raise_if_longer(request, "HTTP_COOKIE", MAX_PARSED_LENGTH)
    return request.COOKIES.get(name)


def query_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a query parameter; None if missing. Raises `RequestDataTooBig`."""
    _raise_if_longer(request, "QUERY_STRING", MAX_PARSED_LENGTH)
    return request.GET.get(name)


def _raise_if_longer(request: HttpRequest, key: str, max_length: int) -> None:
    if len(request.META.get(key) or "") > max_length:
        raise RequestDataTooBig(f"{key} is longer than {max_length} characters")


def form_value(request: HttpRequest, name: str) -> Value:
    """Return the value of a field of a form, whatever the method.

    >>> from django.test import RequestFactory
    >>> form_value(RequestFactory().post("/", {"name": "ada"}), "name")
    'ada'
    """
    body = _load_body(request)
    if isinstance(body, JsonDocument):
        return None
    return UNREAD if body is UNREAD else body.get(name)


def json_value(request: HttpRequest, path: str) -> Value:
    """Return the value of a field of a JSON object: text, or a number or truth value as JSON.

    The path is the name of the field, or names joined with dots. A list or an object is `UNREAD`.

    >>> from django.test import RequestFactory
    >>> body = {"user": {"name": "ada", "id": 7}}
    >>> request = RequestFactory().post("/", body, content_type="application/json")
    >>> json_value(request, "user.name"), json_value(request, "user.id"), json_value(request, "age")
    ('ada', '7', None)
    """
    body = _load_body(request)
    if isinstance(body, QueryDict):
        return None
    return UNREAD if body is UNREAD else _find_json_value(body, path)


def data_value(request: HttpRequest, path: str) -> Value:
    """Return the value of a field of a form or a JSON object, as Django REST framework does."""
    body = _load_body(request)
    if isinstance(body, QueryDict):
        return body.get(path)
    return UNREAD if body is UNREAD else _find_json_value(body, path)


def _find_json_value(document: JsonDocument, path: str) -> Value:
    """Return the value at a path of a JSON document: text, or a number or truth value as JSON.

    None if it is missing or null; `UNREAD` if it is a list or an object.
    """
    value = document.value
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    if isinstance(value, (dict, list)):
        return UNREAD
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _load_body(request: HttpRequest) -> Body:
    """Parse the body of a request at the first call, for all keys, and return it.

    `UNREAD` if `_parse_body` does not read it, or if Django or a parser raises an error.
    """
    # A form that was parsed already, for example by Django's CSRF check, is used at any size.
    parsed: object = getattr(unwrap_request(request), "_post", None)
    if parsed:
        # A parser of the project for DRF may return another type.
        return parsed if isinstance(parsed, QueryDict) else JsonDocument(parsed)
    state = request_state(request)
    if state.body is None:
        try:
            state.body = _parse_body(unwrap_request(request))
        except (
            ValueError,
            RecursionError,
            SuspiciousOperation,
            MultiPartParserError,
            RawPostDataException,
            UnreadablePostError,
        ):
            state.body = UNREAD
    body: Body = state.body
    return body


def _parse_body(request: HttpRequest) -> Body:
    """Parse a body by its content type. One of another type has no fields.

    The result is `UNREAD` for another charset and for a body that is too large. Raises the errors
    of Django and of the parsers.
    """
    content_type = request.content_type or ""
    if "*" in content_type:  # DRF parses such a body by its first parser.
        return UNREAD
    if content_type not in (URLENCODED, MULTIPART) and not content_type.endswith("json"):
        return JsonDocument()
    charset = codecs.lookup(request.encoding or settings.DEFAULT_CHARSET)
    if charset.name != "utf-8" or _body_size(request) > MAX_BODY_BYTES:
        return UNREAD
    content = request.body
    if "wsgi.input" in request.META:  # Some views read the stream of the server.
        request.META["wsgi.input"] = io.BytesIO(content)
    if content_type == URLENCODED:
        return QueryDict(content, encoding="utf-8")
    if content_type == MULTIPART:
        # Without upload handlers, files are skipped.
        form, _files = MultiPartParser(request.META, io.BytesIO(content), [], "utf-8").parse()
        return form
    return JsonDocument(json.loads(content or b"null"))


def _body_size(request: HttpRequest) -> int:
    """Return the bytes of a body, without reading it."""
    stream = request._stream
    if not stream.seekable():
        return int(request.META.get("CONTENT_LENGTH") or 0)
    # Under ASGI, Django has received the whole body. A chunked one has no declared length.
    position = stream.tell()
    size: int = stream.seek(0, io.SEEK_END)
    stream.seek(position)
    return size


def normalize_text(text: str) -> str:
    r"""Return the normalized spelling of a text: stripped, NFKC and in lower case.

    Normalizing the result again does not change it.

    >>> normalize_text(" Ada\u3000") == normalize_text("\uff21\uff44\uff41") == "ada"
    True
    """
    spelling = text.strip()
    if spelling.isascii():
        return spelling.lower()
    if len(spelling) > MAX_TEXT_LENGTH:
        return spelling
    for _round in range(_MAX_ROUNDS):
        folded = _fold_case(spelling)
        if folded == spelling:
            break
        spelling = folded
    return spelling


def _fold_case(text: str) -> str:
    """Apply NFKC, fold the case, and apply NFKC to the result, which may join other characters."""
    # Through capitals, because some databases compare capitals: the dotless i and i have no other
    # form in common.
    folded = unicodedata.normalize("NFKC", text).upper().casefold()
    return unicodedata.normalize("NFKC", folded).strip()


def normalize_number(text: str) -> str:
    """Return the one spelling of all texts that Python reads as the same whole number.

    Python's `int` cuts off the fraction of a JSON number, so the fraction is cut off here as well.
    The spelling of all other texts is `NO_NUMBER`.

    >>> [normalize_number(text) for text in ("7", " +0_7 ", "\uff17", "7.5", "seven")]
    ['7', '7', '7', '7', 'INVALID']
    """
    if len(text.strip()) > MAX_NUMBER_LENGTH:
        return NO_NUMBER
    for parse in (int, float):
        try:
            return str(int(parse(text)))
        except (ValueError, OverflowError):
            continue
    return NO_NUMBER
