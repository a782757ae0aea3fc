"""The CPU time of a refusal is bounded and small, for a large request compared with a small one."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.throttling import SimpleRateThrottle
from tests.tools.floors import PACKAGE
from tests.urls import LIMITS

pytestmark = pytest.mark.alone
FEWEST, MAX_ENTRIES = 10, 800_000
DEAREST = 60
"""How many times as dear as a small request's refusal a large one's may be; unbounded, they were
200 to 40,000.
"""
rf = RequestFactory()
serial = itertools.count()


def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


class NoRequests(SimpleRateThrottle):
    rate = "0/h"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return self.get_ident(request)


class Api(APIView):
    authentication_classes = ()
    throttle_classes = (NoRequests,)

    def get(self, request: Any, **kwargs: Any) -> Response:
        return Response({})


urlpatterns = [
    path("plain/", view),
    path("slug/<slug:who>/", view, name="slug"),
    path("rest/<path:who>", view),
]


def sends(name: str, piece: str, end: str = "") -> Callable[[int], HttpRequest]:
    """Return a function that makes requests with a long header, which differs each time."""
    return lambda size: rf.get("/plain/", **{name: f"{next(serial)}{filled(piece, size)}{end}"})


def filled(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


def asks(query: str, piece: str) -> Callable[[int], HttpRequest]:
    return lambda size: rf.get(f"/plain/?{query}{filled(piece, size)}")


def leads(where: str, piece: str) -> Callable[[int], HttpRequest]:
    # Another path each time, as nothing is remembered of it then.
    return lambda size: rf.get(f"{where}{next(serial)}{piece * (min(size, 60_000) // len(piece))}")


def posts(kind: str, piece: str, length: int | None = None) -> Callable[[int], HttpRequest]:
    def made(size: int) -> HttpRequest:
        extra = {} if length is None else {"CONTENT_LENGTH": "9" * min(size, 4000)}
        return rf.generic("POST", "/plain/", filled(piece, size).encode(), kind, **extra)

    return made


def typed(size: int) -> HttpRequest:
    # No more: Django itself takes time by the square of it, when the request is made.
    kind = "application/json;" + "a=b;" * (min(size, 9_000) // 4)
    return rf.generic("POST", "/plain/", b"{}", kind)


def many(size: int) -> HttpRequest:
    return rf.get("/plain/", **{f"HTTP_X_{number}": "x" for number in range(size // 80)})


TRUSTED = {"RATELIMIT_TRUSTED_PROXIES": 32}
FORWARDED = {**TRUSTED, "RATELIMIT_PROXY_HEADER": "Forwarded"}
NETWORKS = {"RATELIMIT_TRUSTED_PROXIES": ["127.0.0.0/8"]}
META = {"RATELIMIT_IP_META_KEY": "HTTP_X_REAL_IP"}
LOCALE = {"MIDDLEWARE": ["django.middleware.locale.LocaleMiddleware"]}
QUOTED = 'for="127.0.0.1"'
# By the part of a request: how it is made large, the rule that reads it, and settings.
CASES: dict[str, tuple[Callable[[int], HttpRequest], dict[str, Any], dict[str, Any]]] = {
    "Accept, many": (sends("HTTP_ACCEPT", "a/b,"), {}, {}),
    "Accept, empty ones": (sends("HTTP_ACCEPT", ","), {}, {}),
    "Accept, one": (sends("HTTP_ACCEPT", "a/b;c=d;"), {}, {}),
    "Accept, quality": (sends("HTTP_ACCEPT", "*/*;q=0.1,"), {}, {}),
    "X-Forwarded-For, many": (sends("HTTP_X_FORWARDED_FOR", "1.2.3.4,"), {}, TRUSTED),
    "X-Forwarded-For, one": (sends("HTTP_X_FORWARDED_FOR", "1"), {}, TRUSTED),
    "X-Forwarded-For, networks": (sends("HTTP_X_FORWARDED_FOR", "127.0.0.1,"), {}, NETWORKS),
    "X-Forwarded-For, untrusted": (sends("HTTP_X_FORWARDED_FOR", "1.2.3.4,"), {}, {}),
    "Forwarded, many": (sends("HTTP_FORWARDED", "for=1.2.3.4,", "for=1.2.3.4"), {}, FORWARDED),
    "Forwarded, quoted": (sends("HTTP_FORWARDED", f"{QUOTED},", QUOTED), {}, FORWARDED),
    "Forwarded, quotes": (sends("HTTP_FORWARDED", ',a=";b=";'), {}, FORWARDED),
    "Forwarded, semicolons": (sends("HTTP_FORWARDED", ",a=b;;;;"), {}, FORWARDED),
    "META key": (sends("HTTP_X_REAL_IP", "1"), {}, META),
    "header": (sends("HTTP_X_KEY", "a"), {"key": "header:x-key"}, {}),
    "header, not ASCII": (sends("HTTP_X_KEY", "\ufdfa"), {"key": "header:x-key"}, {}),
    "header, token": (sends("HTTP_AUTHORIZATION", "a "), {"key": "header:authorization"}, {}),
    "header, User-Agent": (sends("HTTP_USER_AGENT", "(;"), {"key": "header:User-Agent"}, {}),
    "User-Agent": (sends("HTTP_USER_AGENT", "ab"), {"user_agent": ["*a*b*", "!*b*a*c*"]}, {}),
    "headers": (many, {"key": ("ip", "header:x-key")}, TRUSTED),
    "cookie, many": (sends("HTTP_COOKIE", "a=b;"), {"key": "cookie:k"}, {}),
    "cookie, empty ones": (sends("HTTP_COOKIE", ";"), {"key": "cookie:k"}, {}),
    "cookie, one": (sends("HTTP_COOKIE", "k=%41"), {"key": "cookie:k"}, {}),
    "cookie, number": (sends("HTTP_COOKIE", "1"), {"key": "int:cookie:k"}, {}),
    "get, many": (asks("", "a=b&"), {"key": "get:k"}, {}),
    "get, one": (asks("k=", "%41"), {"key": "get:k"}, {}),
    "get, not ASCII": (asks("k=", "%EF%B7%BA"), {"key": "get:k"}, {}),
    "path": (leads("/plain/", "a"), {"key": "path"}, {}),
    "path, prefix": (leads("/plain/", "a/"), {"path": ["/plain/", "/q"]}, {}),
    "path, glob": (leads("/", "a"), {"path": ["/**.php", "/*a*b", "/**a**"]}, {}),
    "path, kwarg": (leads("/rest/", "a"), {"key": "kwarg:who"}, {}),
    "path, route": (leads("/rest/", "a-"), {"key": ("ip", "route")}, {}),
    "Content-Type": (typed, {"key": "json:a"}, {}),
    "Content-Length": (posts("application/json", "1", 1), {"key": "json:a"}, {}),
    "body, json": (posts("application/json", "["), {"key": "json:a"}, {}),
    "body, data": (posts("application/json", '{"a":'), {"key": "data:a"}, {}),
    "Accept-Language": (sends("HTTP_ACCEPT_LANGUAGE", "de,"), {"key": ("ip", "kwarg:who")}, {}),
    "Accept-Language, answered": (sends("HTTP_ACCEPT_LANGUAGE", "de,"), {}, LOCALE),
    "Accept-Language, one": (sends("HTTP_ACCEPT_LANGUAGE", "de-"), {}, LOCALE),
    "path, logged": (leads("/plain/", "\u2028"), {}, {}),
}


def spent(answer: Callable[[Any], Any], make: Callable[[int], Any], size: int) -> float:
    """Return the minimum CPU time of a refusal, without creating the request."""
    times = []
    for request in [make(size) for _ in range(3)]:
        started = time.thread_time()
        try:
            status = answer(request).status_code
        except SuspiciousOperation:  # Which Django answers.
            status = 400
        finally:
            times.append(time.thread_time() - started)
        assert status == 429 or (status == 400 and size > FEWEST)
    return min(times)


def assert_as_cheap(answer: Callable[[Any], Any], make: Callable[[int], Any], *sizes: int) -> None:
    """Compare the costs repeatedly, because the machine may be busy."""
    spent(answer, make, FEWEST)
    small = spent(answer, make, FEWEST)
    for size in sizes:
        times = (spent(answer, make, size) for _ in range(20))
        assert any(seconds < DEAREST * small for seconds in times), size


@pytest.mark.parametrize("case", CASES)
def test_refusing_a_large_request_costs_no_more_than_a_small_one(case: str, settings: Any) -> None:
    """Every part of a request that is read may have from 4 KB to 800 KB."""
    make, rule, given = CASES[case]
    for name, value in given.items():
        setattr(settings, name, value)
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_RULES = [{"name": "rule", "path": "/", "key": "ip", "rate": "0/h", **rule}]
    middleware = RateLimitMiddleware(view)
    assert_as_cheap(middleware, make, 4_000, 16_000, 60_000, MAX_ENTRIES)


@pytest.mark.parametrize("proxies", [None, 2])
@pytest.mark.parametrize("name", ["HTTP_X_FORWARDED_FOR", "HTTP_COOKIE", "HTTP_X_KEY"])
def test_a_throttle_refuses_large_requests_at_the_same_cost(
    name: str, proxies: int | None, settings: Any
) -> None:
    """DRF parses `Accept` itself."""
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": proxies}
    assert_as_cheap(Api.as_view(), sends(name, "1.2.3.4,"), MAX_ENTRIES)


# Which of the cases make large what is read there.
READ = {
    "META[CONTENT_LENGTH]": "Content-Length",
    "META[HTTP_ACCEPT]": "Accept",
    "META[HTTP_COOKIE]": "cookie",
    "META[HTTP_FORWARDED]": "Forwarded",
    "META[HTTP_USER_AGENT]": "User-Agent",
    "META[HTTP_X_FORWARDED_FOR]": "X-Forwarded-For",
    "META[QUERY_STRING]": "get",
    "META[…]": "META key",
    "COOKIES": "cookie",
    "GET": "get",
    "body": "body",
    "content_type": "Content-Type",
    "path_info": "path",
    "path": "path",
    "resolver_match": "path",
    "META": "headers",
}
SHORT = {"META[REMOTE_ADDR]", "META[wsgi.input]", "META[CSRF_COOKIE_NEEDS_UPDATE]"}
SHORT |= {"POST", "method", "encoding", "session"}
"""Parts that a client cannot make large, or that Django bounds."""


def test_the_list_of_bounded_values_is_complete() -> None:
    """Every part of a request that the core reads has a case that makes it large."""
    found = parts_read(PACKAGE, "admin", "contrib", "testing.py", "pytest_plugin.py", "preview.py")
    assert found - set(READ) - SHORT == set(), "add a case that makes it large"
    for read in found - SHORT:
        assert any(name.startswith(READ[read]) for name in CASES), read


PARTS = {
    *("META", "headers", "COOKIES", "GET", "POST", "FILES", "body", "content_type"),
    *("content_params", "encoding", "path", "path_info", "session", "accepted_types", "scheme"),
    *("resolver_match", "method", "read", "readline", "get_host", "get_full_path"),
    *("build_absolute_uri", "accepts", "get_signed_cookie"),
}


def parts_read(folder: Path, *without: str) -> set[str]:
    """Return the parts of requests that the code in a folder reads."""
    files = [
        file for file in folder.rglob("*.py") if file.relative_to(folder).parts[0] not in without
    ]
    found = set()
    for file in files:
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        keys: dict[ast.AST, ast.AST] = {}
        for node in nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="get", value=read), args=[key, *_]):
                    keys[read] = key
                case ast.Subscript(value=read, slice=key):
                    keys[read] = key
                case ast.Compare(left=key, comparators=[read, *_]):
                    keys[read] = key
        for node in nodes:
            match node:
                case ast.Attribute(attr="META", value=ast.Name("request")) if node in keys:
                    key = keys[node]
                    found.add(f"META[{key.value if isinstance(key, ast.Constant) else '…'}]")
                case ast.Attribute(attr=part, value=ast.Name("request")) if part in PARTS:
                    found.add(part)
    return found


def test_an_oversized_value_is_a_bad_request(settings: Any) -> None:
    """It has no effect if no rule reads the value."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]
    large = (
        ("HTTP_X_KEY", "a" * 70_000, "header:x-key"),
        ("HTTP_COOKIE", "k=" + "a" * 17_000, "int:cookie:k"),
        ("QUERY_STRING", "a" * 70_000, "get:k"),
    )
    for name, value, key in large:
        for counted, status in ((key, 400), ("ip", 200)):
            rule = {"name": f"{key} {counted}", "path": "/", "key": counted, "rate": "50/h"}
            settings.RATELIMIT_RULES = [rule]
            assert Client().get("/plain/", **{name: value}).status_code == status


def test_a_large_cookie_header_is_not_parsed(settings: Any) -> None:
    """Some versions of Python unquote a cookie in quadratic time (CVE-2024-7592)."""
    settings.RATELIMIT_RULES = [{"name": "rule", "path": "/", "key": "cookie:k", "rate": "5/h"}]
    request = rf.get("/plain/", HTTP_COOKIE='k="' + "\\" * 64_000 + '"')
    before = time.thread_time()
    with pytest.raises(RequestDataTooBig, match="COOKIE is longer than 16384"):
        RateLimitMiddleware(view)(request)
    assert time.thread_time() - before < 1
