"""What a rule would do that its author may not expect, and has to confirm."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_ratelimit_lua.admin.warnings import route_names, surprises
from django_ratelimit_lua.rules.callsite import known_call_sites


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("api/", include(([path("things/", view, name="things")], "api"), namespace="v1")), path("", view)]
RULE: dict[str, Any] = {"name": "api", "path": "/api/", "key": "ip", "limit": 5, "audience": "everyone"}


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the code has one limit."""
    settings.ROOT_URLCONF = __name__
    monkeypatch.setattr(known_call_sites, "_names", {"search"})


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({}, []),
        ({"path": "/"}, ["path"]),
        ({"path": "**"}, ["path"]),
        ({"path": "/api/\n*.php\n/a?b"}, ["path", "path"]),
        ({"path": "**.php"}, []),
        ({"limit": 0}, ["limit"]),
        ({"key": "user"}, ["key"]),
        ({"key": "user + path"}, ["key"]),
        ({"key": "user", "audience": "authenticated"}, []),
        ({"key": "user", "exempt": True}, []),
        ({"key": "nonsense"}, []),
        ({"route": "v1:things"}, []),
        ({"route": "things"}, ["route"]),
        ({"path": ""}, ["name"]),
        ({"path": "", "group": "search"}, []),
        ({"path": "", "name": "search"}, []),
    ],
)
def test_what_is_surprising_is_said_of_its_field(words: dict[str, Any], fields: list[str]) -> None:
    """And nothing of what is as one would think."""
    assert [field for field, _ in surprises({**RULE, **words})] == fields


def test_routes_are_known_by_their_names_with_namespaces() -> None:
    """Those without a name are none."""
    assert route_names() == {"v1:things"}
