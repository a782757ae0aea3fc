"""What a rule would do that its author may not expect, and has to confirm."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.operations.rules_yaml import apply, plan
from django_ratelimit_lua.operations.surprises import changed_surprises, surprises
from django_ratelimit_lua.rules.callsite import CallSite, known_call_sites
from django_ratelimit_lua.rules.places import meant_by, route_names


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("api/", include(([path("things/", view, name="things")], "api"), namespace="v1")), path("", view)]
RULE: dict[str, Any] = {"name": "api", "path": "/api/", "key": "ip", "limit": 5, "audience": "everyone"}
SEARCH = CallSite("@ratelimit", "app.search", (Rate.parse("10/s"), Rate.parse("500/h")), "ip")


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the code has one limit."""
    settings.ROOT_URLCONF = __name__
    monkeypatch.setattr(known_call_sites, "_by_name", {"search": (SEARCH,)})


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
        ({"path": "", "name": "search", "rates": ["5/s", "500/h"]}, []),
        ({"path": "", "name": "search", "rates": ["5/s"]}, ["more_rates"]),
        ({"path": "", "name": "search", "rates": ["11/s", "500/h"]}, ["limit"]),
        ({"path": "", "name": "search", "rates": ["5/s", "900/h"]}, ["more_rates"]),
        ({"path": "", "name": "search", "rates": ["5/s", "5/h"], "key": "path"}, ["key", "key"]),
        ({"path": "", "name": "search", "rates": ["5/s", "5/h"], "mode": "off"}, ["more_rates", "more_rates"]),
        ({"path": "", "name": "slow", "group": "search", "rates": ["5/s"]}, []),
    ],
)
def test_what_is_surprising_is_said_of_its_field(words: dict[str, Any], fields: list[str]) -> None:
    """And nothing of what is as one would think."""
    assert [field for field, _ in surprises({**RULE, **words})] == fields


def test_routes_are_known_by_their_names_with_namespaces() -> None:
    """Those without a name are none."""
    assert route_names() == {"v1:things"}


def test_a_name_that_is_nearly_one_of_the_code_is_told() -> None:
    """What may be meant; nothing where it is one, or like none."""
    assert [meant_by(name) for name in ("serach", "search", "orders", "")] == ["search", "", "", ""]


@pytest.mark.django_db
def test_of_changes_only_what_is_new_is_told(settings: Any) -> None:
    """Paths that the same file exempts are exempt, and those whose rule it deletes are not."""
    settings.ROOT_URLCONF = "example_project.urls"
    text = "- {name: all, path: /**, mode: 'off', key: ip, rate: 5/m}\n- {name: admin, path: /admin/, exempt: true}"
    assert list(changed_surprises(plan(text))) == ["all"]
    apply(text)
    on = text.replace("mode: 'off', ", "")
    assert changed_surprises(plan(on)) == {}
    lost = changed_surprises(plan(on.splitlines()[0]))
    assert [len(problems) for problems in lost.values()] == [1]
    assert "limits this admin" in lost["all"][0]
