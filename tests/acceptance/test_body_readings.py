"""The content type and the charset that a client sends give it no other count, and do not avoid a
block.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.test.client import BOUNDARY
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.core import is_ratelimited
from django_ratelimit_lua.models import RateLimitOverride
from django_ratelimit_lua.rules.problems import problems
from tests.unit.identity.test_body import FORM, MULTIPART, TYPES, UNREADABLE, utf_7


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@ratelimit("named", key="post:name", rate="2/h")
def by_name(request: HttpRequest) -> HttpResponse:
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
    path("by_name", by_name),
    path("method", Method.as_view()),
    path("function", function),
    path("asks", Asks.as_view()),
    path("plain", Plain.as_view()),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_RULES = []


def code(where: str, body: bytes, kind: str, **more: Any) -> int:
    return int(
        Client(raise_request_exception=False).generic("POST", where, body, kind, **more).status_code
    )


def block(**fields: Any) -> None:
    override = RateLimitOverride(effect="block", label="ada", **fields)
    if "field" in fields:
        override.set_value("ada")
    override.full_clean(exclude=["subject", "kind"])
    override.save()


@pytest.mark.parametrize("where", ["/plain", "/method", "/function", "/asks"])
def test_another_charset_allows_no_additional_guess(where: str, settings: Any) -> None:
    """Names in UTF-7 or with escapes, which DRF decodes to the same name, share one count."""
    settings.RATELIMIT_RULES = [
        {"name": "plain", "path": "/plain", "key": "data:name", "rate": "2/h"}
    ]
    spelled = [
        code(where, utf_7("bobby", mask), "application/json; charset=utf-7") for mask in range(8)
    ]
    assert spelled.count(200) <= 4  # Of the name where all readings agree, else of the address.
    assert spelled[-3:] == [429] * 3
    escaped = [b"name=" + b"%5Cx65" * many + b"eeeee"[many:] for many in range(6)]
    sent = [
        code(where, body, f"{FORM}; charset=unicode_escape", REMOTE_ADDR="192.0.2.9")
        for body in escaped
    ]
    assert sent.count(200) <= 4
    assert sent[-1] == 429


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["/method", "/function", "/asks"])
def test_a_call_site_on_a_drf_method_can_count_by_a_body_field(where: str, kind: str) -> None:
    """Each name has its own count for every address, whatever parameters the content type has."""
    for name in (b"ada", b"eve"):
        codes = [
            code(where, TYPES[kind] % name, kind, REMOTE_ADDR=f"192.0.2.{last}")
            for last in (1, 2, 3)
        ]
        assert codes == [200, 200, 429]


@pytest.mark.parametrize("where", ["/method", "/function"])
def test_a_rule_with_the_name_of_a_drf_call_site_counts_once(where: str, settings: Any) -> None:
    """The rule takes one unit per request, although the method is also limited."""
    settings.RATELIMIT_RULES = [{"name": where[1:], "path": where, "key": "ip", "rate": "4/h"}]
    body = b'{"name": "ada"}'
    assert [code(where, body, "application/json") for _ in range(5)] == [200] * 4 + [429]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("field", ["post:name", "data:name", "json:name"])
def test_any_charset_is_answered_without_an_error(field: str, settings: Any) -> None:
    """With an override and a rule by a field, the request gets a response, the address is counted,
    and no rule is reported as broken.
    """
    settings.RATELIMIT_RULES = [{"name": "names", "path": "/", "key": [field], "rate": "1000/h"}]
    block(field=field)
    problems.clear()
    for charset in UNREADABLE:
        for kind, body in TYPES.items():
            for where in ("/answer", "/by_name"):
                sent = f"{kind.partition('; charset')[0]}; charset={charset}"
                address = f"192.0.2.{UNREADABLE.index(charset)}"
                status = code(where, body % b"eve", sent, REMOTE_ADDR=address)
                assert status == 200 or (status == 429 and where == "/by_name"), (where, sent)
    assert problems.found() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/*",
        "*/*",
        "*/json",
        "*/JSON; a=b",
        "Application/Json; charset=utf-7",
    ],
)
def test_a_block_applies_whatever_the_content_type(kind: str) -> None:
    """DRF parses a content type with a `*` by its first parser."""
    block(field="data:name")
    assert code("/plain", b'{"name": "eve"}', kind) == 200
    assert code("/plain", b'{"name": "ada"}', kind) == 429
    assert code("/plain", b'{"name": "ada"}\xc3', kind) in (429, 400)


@pytest.mark.django_db(transaction=True)
def test_a_block_applies_whatever_the_charset() -> None:
    """A block reads the same text as the view if DRF decodes it."""
    block(field="data:name")
    assert code("/plain", utf_7("ada", 5), "application/json; charset=utf-7") == 429
    assert code("/plain", b"name=%5Cx61da", f"{FORM}; charset=unicode_escape") == 429
    assert (
        code("/plain", '{"name": "ada"}'.encode("cp037"), "application/json; charset=cp037") == 429
    )
    assert (
        code("/plain", '{"name": "ada"}'.encode("utf-16"), "application/json; charset=utf-16")
        == 429
    )
    assert code("/plain", TYPES[MULTIPART] % b"+AGE-da", f"{MULTIPART}; charset=utf-7") == 429
    assert code("/plain", TYPES[MULTIPART] % b"ada", f"multipart/*; boundary={BOUNDARY}") == 429


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_limits_that_do_not_need_the_user_work_while_the_database_is_unavailable(
    way: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Overrides by user are not applied, and the log reports it once."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]
    settings.RATELIMIT_RULES = [
        {"name": "keys", "path": "/", "key": "header:X-API-Key", "rate": "4/h"}
    ]
    user = User.objects.create_user("ada")
    block(user=user)
    client: Any = AsyncClient() if way == "async" else Client()
    client.force_login(user)

    def get() -> int:
        if way == "sync":
            return int(client.get("/answer").status_code)
        from asgiref.sync import async_to_sync

        return int(async_to_sync(client.get)("/answer").status_code)

    assert get() == 429
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE auth_user RENAME TO auth_user_away")
    try:
        with caplog.at_level(logging.ERROR, "django_ratelimit_lua"):
            assert [get() for _ in range(5)] == [200] * 4 + [429]
        said = [
            one for one in caplog.records if "Overrides by user are not applied" in one.getMessage()
        ]
        assert len(said) == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE auth_user_away RENAME TO auth_user")
    assert get() == 429
