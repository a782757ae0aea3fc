"""The identities that keys read from a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.test import RequestFactory

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.address import client_address
from django_ratelimit_lua.identity.keys import compile_key


def identity(key: Any, request: HttpRequest) -> Any:
    compiled = compile_key(key)
    return compiled.read("group", request, getattr(request, "user", None))


def person(primary_key: Any) -> Any:
    return SimpleNamespace(pk=primary_key, is_authenticated=True)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        (" 192.0.2.7 ", "192.0.2.7"),
        ("", None),
        ("2001:db8:1:2:3:4:5:6:4711", "2001:db8:1:2::"),
        ("2001:db8:1:2:3:4:5:6:7:8", "unknown"),
        ("no address", "unknown"),
        ("192.0.2.7, 10.0.0.1", "unknown"),
        ("\x00", "unknown"),
    ],
)
def test_an_identity_by_address_is_masked(
    address: str, network: str | None, rf: RequestFactory
) -> None:
    """IPv4 addresses are complete, IPv6 addresses are masked to /64, and IPv4-mapped addresses
    are IPv4. Missing and invalid addresses are separate identities.
    """
    assert client_address(rf.get("/", REMOTE_ADDR=address)).network == network


def test_masks_and_the_address_source_are_configurable(rf: RequestFactory, settings: Any) -> None:
    """The settings of django-ratelimit have the same meaning."""
    request = rf.get("/", REMOTE_ADDR="192.0.2.7", HTTP_X_REAL_IP="2001:db8:1:2::9")
    settings.RATELIMIT_IPV4_MASK = 24
    assert client_address(request).network == "192.0.2.0"
    settings.RATELIMIT_IPV6_MASK = 48
    settings.RATELIMIT_IP_META_KEY = "HTTP_X_REAL_IP"
    assert client_address(request).network == "2001:db8:1::"
    settings.RATELIMIT_IP_META_KEY = lambda request: "198.51.100.1"
    assert client_address(request).network == "198.51.100.0"
    settings.RATELIMIT_IP_META_KEY = f"{__name__}.somewhere"
    assert client_address(request).network == "203.0.113.0"
    settings.RATELIMIT_IP_META_KEY = "HTTP_X_REAL_IP"
    request.META["HTTP_X_REAL_IP"] = "2001:db8:1:2:3:4:5:6:4711"
    assert client_address(request).network == "2001:db8:1::"
    settings.RATELIMIT_IP_META_KEY = "HTTP_MISSING"
    assert client_address(request).network is None


def somewhere(request: HttpRequest) -> str:
    return "203.0.113.9"


def test_every_key_reads_its_value(rf: RequestFactory) -> None:
    """The keys are parameters, form fields, headers and cookies, by name."""
    request = rf.post("/?q=find", {"username": "ada"}, headers={"x-api-key": "k1"})
    request.COOKIES["visitor"] = "v1"
    assert identity("get:q", request) == ("get", "q", "find")
    assert identity("post:username", request) == ("post", "username", "ada")
    assert identity("header:X-Api-Key", request) == ("header", "X-Api-Key", "k1")
    assert identity("cookie:visitor", request) == ("cookie", "visitor", "v1")
    assert identity(("ip", "get:q"), request) == (("ip", "127.0.0.1"), ("get", "q", "find"))
    assert identity(lambda group, request: 7, request) == 7


@pytest.mark.parametrize("key", ["exact:get:q", "exact:post:q", "exact:header:q", "cookie:q"])
def test_a_missing_value_differs_from_an_empty_exact_value(key: str, rf: RequestFactory) -> None:
    """An exact empty value is an identity of its own."""
    missing = identity(key, rf.post("/"))
    assert missing[-1] is None
    assert digest(missing) != digest((*missing[:-1], ""))
    empty = rf.post("/?q=", {"q": ""}, headers={"q": ""})
    empty.COOKIES["q"] = ""
    assert identity(key, empty)[-1] == ""


@pytest.mark.parametrize("key", ["get:q", "post:q", "header:q", "data:q"])
@pytest.mark.parametrize("value", ["", " ", "\t\u3000"])
def test_an_empty_value_shares_the_count_of_a_missing_one(
    key: str, value: str, rf: RequestFactory
) -> None:
    """A value that is empty when normalized shares it as well."""
    empty = rf.post("/", {"q": value}, query_params={"q": value}, headers={"q": value})
    assert identity(key, empty) == identity(key, rf.post("/")) == (*key.split(":"), None)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"[1]", "application/json"),
        (b'"name"', "application/json"),
        (b'{"name":"ada"}', "text/plain"),
        (b'{"name":null}', "application/vnd.api+json"),
    ],
)
def test_a_body_without_the_field_counts_as_a_missing_value(
    body: bytes, content_type: str, rf: RequestFactory
) -> None:
    """The body is not an object, or has another type."""
    request = rf.post("/", body, content_type=content_type)
    assert identity("json:name", request) == ("json", "name", None)


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 50_000, b'{"name": "\xff"}'])
def test_a_malformed_body_counts_as_the_address(body: bytes, rf: RequestFactory) -> None:
    """Some view may be able to read it."""
    request = rf.post("/", body, content_type="application/json")
    assert identity("json:name", request) == ("ip", "127.0.0.1")


def test_the_path_and_the_route_are_keys(rf: RequestFactory) -> None:
    """The keys are the path, the route and the arguments of the route."""
    request = rf.get("/things/7/")
    found = identity(("path", "route", "kwarg:pk"), request)
    assert found == (("path", "/things/7/"), ("route", None), ("kwarg", "pk", None))
    request.resolver_match = SimpleNamespace(route="things/<int:pk>/", kwargs={"pk": 7})
    found = identity(("route", "kwarg:pk"), request)
    assert found == (("route", "things/<int:pk>/"), ("kwarg", "pk", "7"))


@pytest.mark.parametrize(
    ("addresses", "count"),
    [
        (("203.0.113.1", "203.0.113.2"), 1),
        (("203.0.113.1", "203.0.114.1"), 2),
        (("2001:db8:7::1", "2001:db8:7:9::1", "2001:db8:7:ffff::1"), 1),
        (("2001:db8:7::1", "2001:db8:8::1"), 2),
    ],
)
def test_the_key_subnet_counts_neighbours_together(
    addresses: tuple[str, ...], count: int, rf: RequestFactory
) -> None:
    """A /24 of IPv4 and a /48 of IPv6 are one identity each."""
    requests = [rf.get("/", REMOTE_ADDR=address) for address in addresses]
    assert len({identity("subnet", request) for request in requests}) == count


def test_users_are_identified_by_primary_key(rf: RequestFactory) -> None:
    """Without a signed-in user, `user_or_ip` counts the address, and `user` counts all clients
    together.
    """
    request = rf.get("/")
    request.user = person(7)
    assert identity("user", request) == identity("user_or_ip", request) == ("user", "7")
    request.user = AnonymousUser()
    assert identity("user_or_ip", request) == ("ip", "127.0.0.1")
    assert identity("user", request) == ("user", None)
