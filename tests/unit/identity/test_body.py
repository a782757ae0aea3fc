"""A key reads the same field of a body as the view, or the request counts as the address."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import RequestFactory
from django.test.client import BOUNDARY, encode_multipart
from hypothesis import example, given
from hypothesis import strategies as st
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request

from django_ratelimit_lua.identity.fields import UNREAD, data_value, form_value, json_value

FORM = "application/x-www-form-urlencoded"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
CHARSETS = ["utf-8", "UTF8", "utf-16", "utf-7", "latin-1", "cp037", "unicode_escape", "hex", "nope"]
KINDS = ["application/json", "Application/JSON", "application/vnd.api+json", "text/json", FORM]
KINDS += [MULTIPART, f"multipart/*; boundary={BOUNDARY}", "*/x-www-form-urlencoded"]
KINDS += ["application/*", "*/*", "text/plain", "*", ""]


def attempt(read: Any) -> Any:
    """Return the value that a view reads, or None if it cannot read the body."""
    try:
        return read()
    except Exception:
        return None


@st.composite
def bodies(draw: Any) -> bytes:
    """Draw a body in any charset."""
    name = draw(st.text(max_size=8) | st.sampled_from(["ada", "+AGE-da", "\\x61da", "%61da"]))
    texts = [f"name={name}", json.dumps({"name": name}), json.dumps({"name": name}, indent=1)]
    if draw(st.booleans()):
        return encode_multipart(BOUNDARY, {"name": name.encode("utf-8", "surrogatepass")})
    charset = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-7", "latin-1", "cp037"]))
    written: bytes = draw(st.sampled_from(texts)).encode(charset, "replace")
    return written + draw(st.sampled_from([b"", b"\xc3", b"\n"]))


@example(body=b'{"name": "+AGE-da"}', charset="utf-7", kind="application/json")
@example(body=b'{"name": "ada"}\xc3', charset="utf-8", kind="application/json")
@example(body=b'{"name": "ada"}', charset="utf-8", kind="application/*")
@example(body='{"name": "ada"}'.encode("utf-16"), charset="utf-8", kind="application/json")
@example(body=b"name=%5Cx61da", charset="unicode_escape", kind=FORM)
@given(body=bodies(), charset=st.sampled_from(CHARSETS), kind=st.sampled_from(KINDS))
def test_a_key_reads_the_same_value_as_views(body: bytes, charset: str, kind: str) -> None:
    """Whatever charset and type a client sends, a key never reads another value than a view of
    Django or DRF that accepts the type.
    """

    def fresh() -> Any:
        return RequestFactory().generic("POST", "/", body, f"{kind}; charset={charset}")

    def drf(*parsers: Any) -> Any:
        request = Request(fresh(), parsers=[parser() for parser in parsers])
        return attempt(lambda: request.data.get("name"))

    forms = [attempt(lambda: fresh().POST.get("name")), drf(FormParser), drf(MultiPartParser)]
    every = [drf(JSONParser, FormParser, MultiPartParser), drf(JSONParser)]
    if kind.lower().endswith("json"):
        every.append(attempt(lambda: json.loads(fresh().body).get("name")))
    for read, values in ((form_value, forms), (json_value, every), (data_value, [*every, *forms])):
        counted = read(fresh(), "name")
        if read is json_value and kind in (FORM, MULTIPART):
            assert counted in (None, UNREAD)
        else:
            assert {value for value in values if value is not None} <= {counted} or (
                counted is UNREAD
            ), (read, values)


TYPES = {
    "application/json; charset=utf-8": b'{"name": "%s"}',
    "Application/JSON": b'{"name": "%s"}',
    FORM + "; charset=UTF-8": b"name=%s",
    FORM.upper(): b"name=%s",
    MULTIPART: b"--BoUnDaRyStRiNg\r\nContent-Disposition: form-data; "
    b'name="name"\r\n\r\n%s\r\n--BoUnDaRyStRiNg--\r\n',
}


@pytest.mark.parametrize("kind", [FORM, MULTIPART, "application/json"])
@pytest.mark.parametrize("charset", CHARSETS[2:-1])
def test_a_body_in_another_charset_is_not_read(kind: str, charset: str, rf: RequestFactory) -> None:
    """UTF-8 is the only charset. Django ignores a charset that does not exist."""
    for known, body in TYPES.items():
        if known.lower().startswith(kind.partition(";")[0]):
            request = rf.generic("POST", "/", body % b"ada", f"{kind}; charset={charset}")
            assert data_value(request, "name") is UNREAD
            request = rf.generic("POST", "/", body % b"ada", f"{kind}; charset=nope")
            assert data_value(request, "name") == "ada"


def test_the_default_charset_of_the_project_applies(rf: RequestFactory, settings: Any) -> None:
    """If it is not UTF-8, bodies without a charset are not read."""
    settings.DEFAULT_CHARSET = "latin-1"
    assert form_value(rf.generic("POST", "/", b"name=ada", FORM), "name") is UNREAD


def test_a_list_or_an_object_is_not_a_value(rf: RequestFactory) -> None:
    """Numbers and truth values are counted as JSON, and null is a missing value."""
    body = {"a": [1], "b": {"c": 1}, "d": 7, "e": 1.5, "f": True, "g": None, "h": "x"}
    request = rf.post("/", body, content_type="application/json")
    values = [json_value(request, name) for name in [*body, "b.c", "h.c", "i"]]
    assert values == [UNREAD, UNREAD, "7", "1.5", "true", None, "x", "1", None, None]
