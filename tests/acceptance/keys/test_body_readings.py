"""The content type and the charset give a client no other count, and avoid no block."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.core import is_ratelimited
from django_ratelimit_lua.models import RateLimitOverride
from tests.unit.identity.test_body import FORM, TYPES
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Method(APIView):
    """A view with a limit on its method."""

    @method_decorator(ratelimit("method", key="data:name", rate="2/h"))
    def post(self, request: Request) -> Response:
        return Response({"data": request.data, "limited": request.limited})


@api_view(["POST"])
@ratelimit("function", key="data:name", rate="2/h")
def function(request: Request) -> Response:
    return Response({"data": request.data})


class Asks(APIView):
    """A view that calls `is_ratelimited` before and after it reads the body."""

    def post(self, request: Request) -> Response:
        over = is_ratelimited(request, "asks", key="data:name", rate="2/h", increment=True)
        data = request.data
        assert is_ratelimited(request, "asks", key="data:name", rate="3/h") is False
        return Response({"data": data}, status=429 if over else 200)


class Plain(APIView):
    """A view with a rule of the middleware, or without a limit."""

    def post(self, request: Request) -> Response:
        return Response(request.data)


urlpatterns = [
    path("answer", answer),
    path("method", Method.as_view()),
    path("function", function),
    path("asks", Asks.as_view()),
    path("plain", Plain.as_view()),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]
    settings.RATELIMIT_RULES = []


def code(where: str, body: bytes, kind: str, **more: Any) -> int:
    client = Client(raise_request_exception=False)
    return int(client.generic("POST", where, body, kind, **more).status_code)


def block(**fields: Any) -> None:
    override = RateLimitOverride(effect="block", label="ada", **fields)
    if "field" in fields:
        override.set_value("ada")
    override.full_clean(exclude=["subject", "kind"])
    override.save()


def utf_7(mask: int) -> bytes:
    """Return JSON with a name in one of its many UTF-7 spellings."""
    letters = []
    for place, letter in enumerate("bobby"):
        shifted = "+" + base64.b64encode(letter.encode("utf-16-be")).decode().rstrip("=") + "-"
        letters.append(shifted if mask >> place & 1 else letter)
    return json.dumps({"name": "".join(letters)}).encode()


NAMED = b'{"name": "bobby"}'
UNREAD: dict[str, tuple[Callable[[int], bytes], str]] = {
    "utf-7": (utf_7, "application/json; charset=utf-7"),
    "utf-16": (lambda number: NAMED + b" " * number, "application/json; charset=utf-16"),
    "escapes": (lambda number: b"name=" + b"%5Cx62" * number, f"{FORM}; charset=unicode_escape"),
    "any type": (lambda number: NAMED + b" " * number, "application/*"),
    "broken": (lambda number: NAMED + b"\xc3" * (number + 1), "application/json"),
    "large": (lambda number: b"name=bob&" + b"x" * (70_000 + number), FORM),
}


@pytest.mark.parametrize("case", UNREAD)
@pytest.mark.parametrize("where", ["/plain", "/method", "/function"])
def test_a_body_that_is_not_read_allows_no_additional_guess(
    where: str, case: str, settings: Any
) -> None:
    """Such requests share the count of their address, which is not that of a missing name."""
    rule = {"name": "plain", "path": "/plain", "key": "data:name", "rate": "2/h"}
    settings.RATELIMIT_RULES = [rule]
    body, kind = UNREAD[case]
    assert code(where, b"{}", "application/json") < 429
    answers = [code(where, body(number), kind) for number in range(4)]
    assert [answer == 429 for answer in answers] == [False, False, True, True]
    assert code(where, body(0), kind, REMOTE_ADDR="192.0.2.9") != 429
    assert code(where, b"{}", "application/json", REMOTE_ADDR="192.0.2.9") < 429


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["/method", "/function", "/asks"])
def test_a_call_site_on_a_drf_method_can_count_by_a_body_field(where: str, kind: str) -> None:
    """Each name has its own count for every address, whatever parameters the content type has."""
    for name in (b"ada", b"eve"):
        body = TYPES[kind] % name
        addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.3")
        codes = [code(where, body, kind, REMOTE_ADDR=address) for address in addresses]
        assert codes == [200, 200, 429]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "kind", ["application/json", "text/json", "Application/Json; charset=UTF-8", "a/vnd.api+json"]
)
def test_a_block_by_a_field_applies_to_every_type_of_json(kind: str) -> None:
    """DRF parses all of them if the view has a parser for the type."""
    block(field="data:name")
    assert code("/answer", b'{"name": "eve"}', kind) == 200
    assert code("/answer", b'{"name": "ada"}', kind) == 429


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_limits_that_do_not_need_the_user_work_while_the_database_is_unavailable(
    way: str, settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overrides by user are not applied, and the log reports it once."""
    monkeypatch.setattr("django_ratelimit_lua.web.overrides._unknown_fields", set())
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.MIDDLEWARE = [SESSIONS, AUTHENTICATION, LIMITS]
    rule = {"name": "keys", "path": "/", "key": "header:X-API-Key", "rate": "4/h"}
    settings.RATELIMIT_RULES = [rule]
    user = User.objects.create_user("ada")
    block(user=user)
    client: Any = AsyncClient() if way == "async" else Client()
    client.force_login(user)
    send = async_to_sync(client.get) if way == "async" else client.get

    def get() -> int:
        return int(send("/answer").status_code)

    assert get() == 429
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE auth_user RENAME TO auth_user_away")
    try:
        with caplog.at_level(logging.ERROR, "django_ratelimit_lua"):
            assert [get() for _ in range(5)] == [200] * 4 + [429]
        said = "Overrides by user are not applied"
        assert len([text for text in caplog.messages if said in text]) == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE auth_user_away RENAME TO auth_user")
    assert get() == 429
