"""The request that `explain` builds from a description is like one that a server receives."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.identity.address import client_address
from django_ratelimit_lua.identity.keys import compile_key
from django_ratelimit_lua.management.arguments import build_request


@pytest.mark.parametrize(
    ("described", "path", "query"),
    [
        ("/", "/", {}),
        ("/api/?q=x&q=y", "/api/", {"q": ["x", "y"]}),
        ("/caf%C3%A9/", "/café/", {}),
        ("/café/?n=é", "/café/", {"n": ["é"]}),
        ("//odd//", "//odd//", {}),
    ],
)
def test_a_described_path_may_be_quoted_and_have_a_query(
    described: str, path: str, query: dict[str, list[str]]
) -> None:
    """The path may be percent-encoded and may have a query."""
    request = build_request(described)
    assert (request.path_info, dict(request.GET.lists())) == (path, query)


def test_a_described_request_has_the_given_address(settings: Any) -> None:
    """The address is also the given one if the site reads addresses from a header."""
    assert client_address(build_request(address="203.0.113.9")).network == "203.0.113.9"
    settings.RATELIMIT_IP_META_KEY = "HTTP_X_REAL_IP"
    assert client_address(build_request(address="203.0.113.9")).network == "203.0.113.9"


def test_a_described_request_has_headers_and_a_user_and_no_body() -> None:
    """Without a given user, the request has an anonymous one."""
    request = build_request("/", "POST", fields=[("header:X-Api-Key", "k1")])
    assert (request.method, request.body, request.user.is_authenticated) == ("POST", b"", False)
    assert compile_key("header:X-Api-Key").read("", request, None) == ("header", "X-Api-Key", "k1")
    assert build_request(user="somebody").user == "somebody"
