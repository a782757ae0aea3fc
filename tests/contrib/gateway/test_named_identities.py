"""An identity that a service names is the client of a request with the same values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.test import RequestFactory

from django_ratelimit_lua.contrib.gateway.named_identities import NamedIdentities
from django_ratelimit_lua.identity.keys import compile_key
from django_ratelimit_lua.limits.rate import LimitError
from django_ratelimit_lua.web.overrides import RequestSubjects, SubjectSource

FIELDS = [
    "header:X-Key",
    "header:x-key",
    "exact:header:X-Key",
    "cookie:sid",
    "exact:cookie:sid",
    "get:q",
    "exact:get:q",
    "post:name",
    "data:name",
    "json:name",
]


def values_of(source: SubjectSource) -> dict[str, object]:
    """Return the values by which overrides are looked up."""
    values: dict[str, object] = {"user": source.user(), "address": source.address()}
    return values | {field: list(source.fields(field)) for field in FIELDS}


@pytest.mark.parametrize(
    ("named", "sent"),
    [
        ({"user": "7"}, {"user": 7}),
        ({"ip": "192.0.2.9"}, {"REMOTE_ADDR": "192.0.2.9"}),
        ({"ip": "[2001:db8::9]:80"}, {"REMOTE_ADDR": "2001:db8::9"}),
        ({"ip": "::ffff:192.0.2.9"}, {"REMOTE_ADDR": "192.0.2.9"}),
        ({"ip": "nowhere"}, {"REMOTE_ADDR": "nowhere"}),
        ({"user": "7", "ip": "192.0.2.9"}, {"user": 7, "REMOTE_ADDR": "192.0.2.9"}),
        ({"header:X_key": " Ada "}, {"headers": {"X-Key": " Ada "}}),
        (
            {"exact:header:X-Key": "Ada", "ip": "192.0.2.9"},
            {"headers": {"X-Key": "Ada"}, "REMOTE_ADDR": "192.0.2.9"},
        ),
        ({"header:X-Key": " "}, {"headers": {"X-Key": " "}}),
        ({"cookie:sid": "S"}, {"headers": {"Cookie": "sid=S"}}),
        (
            {"get:q": "A", "user": "7", "ip": "2001:db8::1"},
            {"q": "A", "user": 7, "REMOTE_ADDR": "2001:db8::1"},
        ),
        ({"post:name": "Ada"}, {"data": {"name": "Ada"}}),
        ({"json:name": "Ada"}, {"data": {"name": "Ada"}, "content_type": "application/json"}),
        (
            {"post:name": "Ada", "get:q": "1", "header:X-Key": "k"},
            {"data": {"name": "Ada"}, "q": "1", "headers": {"X-Key": "k"}},
        ),
        ({"session": "7", "path": "/", "route": "x"}, {}),
    ],
)
def test_named_identities_equal_those_of_a_request(
    rf: RequestFactory, named: dict[str, str], sent: dict[str, Any]
) -> None:
    """They have the same user, address and values of fields."""
    user, query = sent.pop("user", None), {"q": sent.pop("q")} if "q" in sent else {}
    request = rf.post("/", **{"REMOTE_ADDR": "", **sent}, query_params=query)
    who = None if user is None else SimpleNamespace(pk=user, is_authenticated=True)
    of_request = values_of(RequestSubjects(request, lambda: who))
    assert values_of(NamedIdentities(named)) == of_request
    assert any(of_request.values()) or {"session", " ", "nowhere"} & {*named, *named.values()}


def test_an_invalid_key_identifies_no_client() -> None:
    """The error lists the valid keys."""
    for key in ("id", "header", "header:", "IP", "user_or_ip", "exact:ip"):
        with pytest.raises(LimitError, match=r"unknown key .*; use ip, user"):
            NamedIdentities({key: "1"}).identity()


def acme(request: Any) -> str:
    return "acme"


def test_a_registered_key_identifies_the_same_client(rf: RequestFactory, settings: Any) -> None:
    """It is the same client alone, in a combination and for overrides."""
    settings.RATELIMIT_KEYS = {"tenant": acme}
    assert NamedIdentities({"tenant": "acme"}).identity() == compile_key("tenant").read(
        "", rf.get("/"), None
    )
    assert NamedIdentities({"tenant": "acme", "ip": "192.0.2.9"}).identity() == (
        ("tenant", "acme"),
        ("ip", "192.0.2.9"),
    )
    (found,) = NamedIdentities({"tenant": "acme"}).fields("tenant")
    assert found == ("tenant", "acme")
