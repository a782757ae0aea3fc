"""Keys by a field of the body, which is read if it is small and stays readable for the view."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request

from django_ratelimit_lua.identity.fields import (
    MAX_BODY_BYTES,
    UNREAD,
    form_value,
    json_value,
)
from django_ratelimit_lua.identity.keys import compile_key
from tests.acceptance.keys.body_urls import TAKES, checksum
from tests.support.served_site import serve
from tests.urls import LIMITS

URLS = "tests.acceptance.keys.body_urls"
FORM = "application/x-www-form-urlencoded"
LARGE = "x" * 70_000
MANY = {"path": "/", "rate": "1000000/h"}
RULES = [
    {"name": "body", "key": ["post:name", "data:name", "json:user.name"], **MANY},
    {"name": "exact", "key": "exact:post:name", **MANY},
]


def multipart(**fields: Any) -> bytes:
    return encode_multipart(BOUNDARY, fields)


def file(size: int) -> SimpleUploadedFile:
    return SimpleUploadedFile("a.bin", b"\x00\r\n-" * (size // 4))


BODIES: dict[str, tuple[bytes, str]] = {
    "form": (b"name=ada&name=Ada+&x=%ff%41", FORM),
    "form in another charset": (b"name=ada", FORM + "; charset=latin-1"),
    "large form": (b"name=ada&x=" + LARGE.encode(), FORM),
    "too many fields": (b"a=&" * 2000 + b"name=ada", FORM),
    "multipart": (multipart(name="ada", x="\u00e4"), MULTIPART_CONTENT),
    "multipart with a small file": (multipart(name="ada", f=file(400)), MULTIPART_CONTENT),
    "upload": (multipart(name="ada", f=file(70_000)), MULTIPART_CONTENT),
    "broken multipart": (multipart(name="ada")[:-20], MULTIPART_CONTENT),
    "multipart without a boundary": (multipart(name="ada"), "multipart/form-data"),
    "json": (b'{"name": "ada", "user": {"name": "ada"}}', "application/json"),
    "broken json": (b'{"name": ', "application/json"),
    "deep json": (b"[" * 20_000, "application/json"),
    "large json": (json.dumps({"name": LARGE}).encode(), "application/json"),
    "text": (b"name=ada\nline\nline", "text/plain"),
    "no kind": (b"name=ada", ""),
    "empty form": (b"", FORM),
    "empty": (b"", "application/json"),
}


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = URLS
    settings.MIDDLEWARE = [LIMITS]
    settings.RATELIMIT_RULES = RULES


def answer(method: str, path: str, body: bytes, kind: str) -> tuple[int, bytes]:
    is_async = path.startswith("/async")
    client: Any = (AsyncClient if is_async else Client)(raise_request_exception=False)
    response = client.generic(method, path, body, kind)
    if is_async:
        response = asyncio.run(response)
    return response.status_code, b"" if response.status_code >= 400 else response.content


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_view_reads_the_same_body_as_without_the_package(name: str, way: str) -> None:
    """This holds for every kind of body, method and way of reading it, under WSGI and ASGI. A view
    that would fail because it reads the stream twice may get the body instead.
    """
    asked = [
        (method, f"/{way}/{take.__name__}") for method in ("POST", "PUT", "GET") for take in TAKES
    ]
    with override_settings(RATELIMIT_ENABLE=False):
        without = [answer(*one, *BODIES[name]) for one in asked]
    for one, expected in zip(asked, without, strict=True):
        found = answer(*one, *BODIES[name])
        if b"RawPostDataException" in expected[1] or one[1].endswith("/partly"):
            assert found[0] == 200
        else:
            assert found == expected, one


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "name", ["form", "multipart", "multipart with a small file", "json", "upload"]
)
def test_drf_reads_the_same_body_as_without_the_package(method: str, name: str) -> None:
    """DRF's parsers read the stored stream."""
    with override_settings(RATELIMIT_ENABLE=False):
        without = answer(method, "/echo", *BODIES[name])
    assert without[0] == 200
    assert answer(method, "/echo", *BODIES[name]) == without


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("name", ["form", "multipart", "multipart with a small file", "json"])
def test_a_small_body_is_read_for_every_method(method: str, name: str, rf: RequestFactory) -> None:
    """The body is parsed as DRF parses it."""
    body, kind = BODIES[name]
    values = {"data": "ada", "post": "ada", "json": None}
    if name == "json":
        values = {"data": "ada", "json": "ada"}
    for field, value in values.items():
        read = compile_key(f"{field}:name").read("", rf.generic(method, "/", body, kind), None)
        assert read == (field, "name", value)


def test_a_parsed_body_is_used_at_any_size(rf: RequestFactory) -> None:
    """Django's CSRF check parses most POST requests, including uploads."""
    for name in ("large form", "upload"):
        request = rf.generic("POST", "/", *BODIES[name])
        assert request.POST["name"] == "ada"
        assert compile_key("post:name").read("", request, None) == ("post", "name", "ada")


def test_only_small_bodies_are_read(settings: Any, rf: RequestFactory) -> None:
    """A body of the maximum size is read. A body that Django would refuse is not read."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    for size, is_read in ((MAX_BODY_BYTES, True), (MAX_BODY_BYTES + 1, False)):
        body = b"name=" + b"a" * (size - 5)
        assert (form_value(rf.generic("POST", "/", body, FORM), "name") is not UNREAD) is is_read
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 7
    assert form_value(rf.generic("POST", "/", b"name=ada", FORM), "name") is UNREAD


@pytest.mark.parametrize(
    "path", ["/sync/read", "/async/read", "/async/handlers", "/sync/body", "/async/body"]
)
def test_a_body_that_django_would_refuse_is_not_read(path: str, settings: Any) -> None:
    """If the project's maximum is smaller, the view gets the whole stream, or Django's error."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    body = multipart(name="a" * 30)
    with override_settings(RATELIMIT_ENABLE=False):
        without = answer("PUT", path, body, MULTIPART_CONTENT)
    assert answer("PUT", path, body, MULTIPART_CONTENT) == without


class Untouched(io.RawIOBase):
    """A stream that raises an error when it is read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise AssertionError("it was read")


@pytest.mark.parametrize(
    "kind", [FORM, MULTIPART_CONTENT, "application/json", "text/plain", "application/octet-stream"]
)
def test_an_upload_is_not_read(kind: str) -> None:
    """No byte of a large body is read, under WSGI and ASGI, with or without a length, although
    DRF's request could parse it. A small body of another type is not read either.
    """
    size = 4000 if kind.startswith(("text", "application/octet")) else 400 * 2**20
    meta = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": kind, "CONTENT_LENGTH": str(size)}
    environment = RequestFactory()._base_environ(**meta, **{"wsgi.input": Untouched()})
    requests: list[Any] = [WSGIRequest(environment)]
    scope = {"type": "http", "method": "POST", "path": "/", "client": ["::1", 0]}
    with tempfile.TemporaryFile() as upload:
        upload.truncate(size)
        for length in ([(b"content-length", str(size).encode())], []):
            headers = [(b"content-type", kind.encode()), *length]
            requests.append(ASGIRequest({**scope, "headers": headers}, upload))
        parsers = [JSONParser(), FormParser(), MultiPartParser()]
        wrapped = Request(requests[-1], parsers=parsers)
        for request in (*requests, wrapped):
            for key in ("post:name", "data:name", "json:name"):
                compile_key(key).read("", request, None)
                assert upload.tell() == 0
            assert not request._read_started


def test_a_client_that_disconnects_during_the_body_causes_no_error(rf: RequestFactory) -> None:
    """A stream that is closed, or that a view has begun to read, causes no error either."""

    class Gone(Untouched):
        def readinto(self, buffer: Any) -> int:
            raise ConnectionResetError

    meta = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": FORM, "CONTENT_LENGTH": "8"}
    environment = rf._base_environ(**meta, **{"wsgi.input": Gone()})
    assert form_value(WSGIRequest(environment), "name") is UNREAD
    request: Any = rf.generic("POST", "/", b"{}", "application/json")
    _ = request.body
    request._stream.close()
    assert json_value(request, "name") in (None, UNREAD)
    for field, kind in ((form_value, FORM), (json_value, "application/json")):
        request = rf.generic("POST", "/", b"name=ada", kind)
        request.read(1)
        assert field(request, "name") is UNREAD


@pytest.fixture(params=["gunicorn", "uvicorn"])
def server(request: Any, prefix: str) -> Iterator[tuple[str, int]]:
    """Return a real server's kind and port."""
    rules = [{"name": "names", "path": "/", "key": "data:name", "rate": "2/h"}]
    site = {"RATELIMIT_CACHE_PREFIX": prefix, "RATELIMIT_RULES": rules}
    with serve(request.param, URLS, **site) as served:
        yield request.param, served.port


def send(
    port: int, path: str, body: Any, kind: str = FORM, method: str = "POST"
) -> tuple[int, Any]:
    """Send a body, in chunks and without a length if it is an iterator."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            method, path, body, {"Content-Type": kind}, encode_chunked=not isinstance(body, bytes)
        )
        response = connection.getresponse()
        content = response.read()
    except ConnectionError:
        return 0, None  # The server has answered, and hung up before it had read all.
    finally:
        connection.close()
    return response.status, json.loads(content) if response.status == 200 else None


def test_real_servers_count_fields_and_pass_uploads_through(server: tuple[str, int]) -> None:
    """A name counts with a length and in chunks. An upload is not read."""
    way, port = server
    view = "/sync/" if way == "gunicorn" else "/async/"
    expected = [[10, _digest(b"name=grace")]] if way == "gunicorn" else []
    assert send(port, f"{view}servers_own", b"name=grace")[1]["took"] == expected
    assert send(port, f"{view}read", b"name=ada")[0] == 200
    if way == "uvicorn":  # Under WSGI, Django has no body without a length.
        found = send(port, f"{view}body", iter([b"na", b"me=A", b"da"]))
        assert found == (200, {"took": [[8, _digest(b"name=Ada")]] * 2})
        assert send(port, f"{view}body", iter([b"name=ada"]))[0] == 429
    else:
        assert send(port, f"{view}body", b"name=Ada", method="PUT")[0] == 200
    assert send(port, f"{view}body", b"name=%20ada", method="PATCH")[0] == 429
    upload = multipart(name="ada", f=file(2**24))
    for _ in range(2):
        status, took = send(port, f"{view}handlers", upload, MULTIPART_CONTENT)
        assert status == 200
        assert took["took"][0] == {"name": ["ada"]}
        assert took["took"][1][0][1][0][1][0] == 2**24
    # An upload counts as the address.
    assert send(port, f"{view}handlers", upload, MULTIPART_CONTENT)[0] in (429, 0)
    assert send(port, f"{view}body", b"name=eve")[0] == 200


def _digest(data: bytes) -> str:
    return str(checksum(data)[1])
