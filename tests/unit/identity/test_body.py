"""A key reads the same field of a body as the view."""

from __future__ import annotations

import base64
import json
import tempfile
from encodings.aliases import aliases
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory
from django.test.client import BOUNDARY, encode_multipart
from hypothesis import example, given
from hypothesis import strategies as st
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request

from django_ratelimit_lua.identity.body import UNREAD, agreed, data_values, form_values, json_values

FORM = "application/x-www-form-urlencoded"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
CHARSETS = sorted(
    {
        *aliases,
        *aliases.values(),
        "idna",
        "punycode",
        "undefined",
        "unicode_escape",
        "utf-8-sig",
        "nope",
    }
)
KINDS = [
    "application/json",
    "Application/JSON",
    "application/*",
    "*/*",
    "*/json",
    "application/vnd.api+json",
    "text/json",
    "application/x-json",
    FORM,
    "*/x-www-form-urlencoded",
    MULTIPART,
    f"multipart/*; boundary={BOUNDARY}",
    "text/plain",
    "*",
    "",
]


def form_field(request: Any, name: str) -> Any:
    return agreed(form_values(request, name))


def json_field(request: Any, name: str) -> Any:
    return agreed(json_values(request, name))


def data_field(request: Any, name: str) -> Any:
    return agreed(data_values(request, name))


def found(read: Any) -> Any:
    """Return the value that a view reads, or None if it cannot read the body."""
    try:
        return read()
    except Exception:
        return None


def text(value: Any) -> Any:
    return (
        value
        if value is None or isinstance(value, str)
        else json.dumps(value, separators=(",", ":"))
    )


def utf_7(name: str, mask: int) -> bytes:
    """Return JSON with a name in one of its many UTF-7 spellings."""
    letters = []
    for place, letter in enumerate(name):
        shifted = "+" + base64.b64encode(letter.encode("utf-16-be")).decode().rstrip("=") + "-"
        letters.append(shifted if mask >> place & 1 else letter)
    return json.dumps({"name": "".join(letters)}).encode()


NAMES = st.text(max_size=8) | st.sampled_from(
    ["ada", "+AGE-da", "\\x61da", "m\u00fcller", "%61da", "%FC"]
)


@st.composite
def bodies(draw: Any) -> tuple[str, bytes]:
    """Draw a charset and a body, which may be encoded differently."""
    charset = draw(st.sampled_from(CHARSETS))
    name = draw(NAMES)
    form = draw(
        st.sampled_from(
            [
                f"name={name}",
                json.dumps({"name": name}),
                json.dumps({"name": name}, ensure_ascii=False),
            ]
        )
    )
    if draw(st.booleans()):
        return charset, encode_multipart(BOUNDARY, {"name": name.encode("utf-8", "surrogatepass")})
    written = found(lambda: form.encode(draw(st.sampled_from([charset, "utf-8", "utf-16"]))))
    body = written if isinstance(written, bytes) else form.encode("utf-8", "surrogatepass")
    return charset, body + draw(st.sampled_from([b"", b"", b"\xc3", b"\n"]))


@example(sent=("utf-7", utf_7("bob", 5)), kind="application/json")
@example(sent=("utf-8", b'{"name": "ada"}\xc3'), kind="application/json")
@example(sent=("unicode_escape", b"name=%5Cx61da"), kind=FORM)
@example(sent=("unicode_escape", b'{"name": "\\\xff"}'), kind="application/*")
@example(sent=("koi8-r", '{"name": "m\u00fcller"}'.encode()), kind="application/json")
@example(sent=("utf-8", b'{"name": "ada"}'), kind="application/*")
@given(sent=bodies(), kind=st.sampled_from(KINDS))
def test_a_key_reads_the_same_value_as_views(sent: tuple[str, bytes], kind: str) -> None:
    """For any charset that Python knows and any type that DRF's parsers accept, a key counts the
    value that a view of Django or DRF reads, or the address. A block compares the value that the
    view reads.
    """
    charset, body = sent
    kind = f"{kind}; charset={charset}"

    def fresh() -> Any:
        return RequestFactory().generic("POST", "/", body, kind)

    def drf(*parsers: Any) -> Any:
        return found(
            lambda: text(
                Request(fresh(), parsers=[parser() for parser in parsers]).data.get("name")
            )
        )

    def check(field: Any, values: Any, seen: list[Any]) -> None:
        counted, looked_at = field(fresh(), "name"), values(fresh(), "name")
        for value in seen:
            assert value is None or counted is UNREAD or counted == value, (
                kind,
                body,
                counted,
                value,
            )
            if UNREAD not in looked_at:
                assert value is None or value in looked_at, (kind, body, looked_at, value)

    django_form = found(lambda: fresh().POST.get("name"))
    is_json = kind.partition(";")[0].lower().endswith("json")
    django_json = found(lambda: text(json.loads(fresh().body).get("name"))) if is_json else None
    forms = [drf(FormParser), drf(MultiPartParser)]
    check(form_field, form_values, [django_form, *forms])
    check(json_field, json_values, [django_json, drf(JSONParser)])
    check(
        data_field,
        data_values,
        [drf(JSONParser, FormParser, MultiPartParser), drf(JSONParser), *forms],
    )


TYPES = {
    "application/json; charset=utf-8": b'{"name": "%s"}',
    "Application/JSON": b'{"name": "%s"}',
    FORM + "; charset=UTF-8": b"name=%s",
    FORM.upper(): b"name=%s",
    MULTIPART: b"--BoUnDaRyStRiNg\r\nContent-Disposition: form-data; "
    b'name="name"\r\n\r\n%s\r\n--BoUnDaRyStRiNg--\r\n',
}


@pytest.mark.parametrize("kind", ["application/json", FORM, MULTIPART])
def test_a_large_body_is_not_read_through_the_drf_request(kind: str) -> None:
    """A large chunked body has no stated length. Not a byte of it is read, although DRF's request
    could parse it.
    """
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"content-type", kind.encode())],
    }
    with tempfile.TemporaryFile() as upload:
        upload.truncate(2**20)
        request = ASGIRequest(scope, upload)
        wrapped = Request(request, parsers=[JSONParser(), FormParser(), MultiPartParser()])
        for field in (data_field, form_field, json_field):
            field(wrapped, "name")
        assert data_field(wrapped, "name") is UNREAD
        assert upload.tell() == 0
        assert not request._read_started


UNREADABLE = [
    "hex",
    "idna",
    "undefined",
    "punycode",
    "base64",
    "zlib",
    "rot13",
    "uu",
    "quopri",
    "nope",
    "bz2",
]


def test_a_charset_that_is_not_decoded_counts_as_the_address(rf: RequestFactory) -> None:
    """Such requests are counted by address, so no client can use up the count of a missing value or
    gain another count.
    """
    for charset in set(UNREADABLE) - {"nope"}:  # Nobody goes by a charset that nobody knows.
        for kind in (FORM, MULTIPART, "application/json"):
            request = rf.generic(
                "POST", "/", TYPES[MULTIPART] % b"ada", f"{kind}; charset={charset}"
            )
            assert data_field(request, "name") is UNREAD
