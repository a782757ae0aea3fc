"""Whom a key counts, in views and rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.identity.keys import FIELDS
from tests.examples import examples


def ok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


async def aok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


def test_a_user_key_without_authentication_names_the_missing_middleware(rf: RequestFactory) -> None:
    """The error is the same in sync and async views."""
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        ratelimit(key="user", rate="5/m")(ok)(rf.get("/"))
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware"):
        asyncio.run(ratelimit(key="user", rate="5/m")(aok)(rf.get("/")))


def test_an_invalid_identity_is_refused(rf: RequestFactory) -> None:
    """For example, the text of a model instance might differ in every request."""
    with pytest.raises(TypeError, match="primary key"):
        ratelimit(key=lambda group, request: object(), rate="5/m")(ok)(rf.get("/"))


def test_asynchronous_keys_in_a_tuple_are_awaited(rf: RequestFactory) -> None:
    """They are also awaited in a sync view."""

    async def key(group: str, request: HttpRequest) -> str:
        return "one"

    view = ratelimit(key=("ip", key), rate="1/m")(ok)
    assert [view(rf.get("/")).status_code for _ in range(2)] == [200, 429]


KEYS = [
    "ip",
    "user",
    "user_or_ip",
    "session",
    "path",
    "route",
    *(f"{prefix}{kind}:name" for kind in FIELDS for prefix in ("", "exact:", "int:")),
]
NASTY = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            " ",
            "\x00",
            "\ud800",
            "\u3000",
            "a" * 70_000,
            "%00%ff%",
            "[" * 2000,
            '{"name": [1, {"a": null}]}',
        ]
    ),
)
LATIN = st.text(
    st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n"), max_size=40
)
SITE = {
    "ROOT_URLCONF": __name__,
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ],
    "SESSION_ENGINE": "django.contrib.sessions.backends.cache",
    "RATELIMIT_RULES": [
        {"name": key, "path": "/", "key": key, "rate": "1000000/h"} for key in KEYS
    ],
}
urlpatterns = [path("ok/<str:name>", ok), path("aok/<path:name>", aok)]


@pytest.fixture
def odd_site() -> Iterator[None]:
    with override_settings(**SITE):
        yield


@pytest.mark.parametrize("way", ["ok", "aok"])
@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25)
)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    name=NASTY,
    body=st.one_of(
        st.binary(max_size=200), NASTY.map(lambda text: text.encode(errors="surrogatepass"))
    ),
    kind=st.one_of(
        st.sampled_from(
            [
                "application/json",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
                "a/b+json",
                "",
            ]
        ),
        st.text(
            st.characters(min_codepoint=1, max_codepoint=126, exclude_characters="\r\n"),
            max_size=20,
        ),
    ),
    header=LATIN,
    cookie=LATIN,
    forwarded=LATIN,
)
@example(
    method="POST",
    name="ada",
    body=b"name=ada",
    kind="application/x-www-form-urlencoded",
    header="x",
    cookie="y",
    forwarded="z",
)
@example(
    method="PUT",
    name="\x00\ud800",
    body=b'{"name": {"name": 1}}',
    kind="application/json",
    header="\x80",
    cookie="\xff",
    forwarded="::ffff:192.0.2.1",
)
def test_a_key_reads_any_request_without_an_error(
    way: str,
    method: str,
    name: str,
    body: bytes,
    kind: str,
    header: str,
    cookie: str,
    forwarded: str,
    odd_site: None,
) -> None:
    """Rules with all keys apply to a view, under WSGI and ASGI. The response is never a 500."""
    quoted = quote(name.encode(errors="surrogatepass"))[:3000]
    url = f"/{way}/{quoted}?name={quoted}"
    headers = {
        "name": header,
        "cookie": f"name={cookie}; sessionid={cookie}",
        "x-forwarded-for": forwarded,
    }
    if way == "ok":
        response = Client().generic(method, url, body, kind, headers=headers)
    else:
        response = asyncio.run(AsyncClient().generic(method, url, body, kind, headers=headers))  # type: ignore[arg-type]
    assert response.status_code in (200, 404, 400)
    if response.status_code == 200:
        assert (
            len(
                response.asgi_request.ratelimit.limits
                if way == "aok"
                else response.wsgi_request.ratelimit.limits
            )
            >= 10
        )
