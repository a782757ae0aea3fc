"""A rule is turned off, or refuses every client, only after a confirmation."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.management.rules_yaml import apply, changed_confirmations, plan
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.confirmations import confirmations
from django_ratelimit_lua.views.call_sites import (
    CallSite,
    closest_call_site,
    known_call_sites,
    place_problems,
    route_names,
)


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("api/", include(([path("things/", view, name="things")], "api"), namespace="v1")),
    path("", view),
]
RULE: dict[str, Any] = {"name": "api", "path": "/api/", "key": "ip", "rate": "5/m"}
SEARCH = CallSite("@ratelimit", "app.search", (Rate.parse("10/s"), Rate.parse("500/h")), "ip")
IN_PLACE = {"path": "", "name": "search", "key": ""}


def rule(**fields: Any) -> RateLimitRule:
    return RateLimitRule.from_spec({**RULE, **fields})


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose code has a limit with two rates, and one that counts all clients together."""
    settings.ROOT_URLCONF = __name__
    everybody = CallSite("@ratelimit", "app.all", (Rate.parse("10/s"),), "all")
    monkeypatch.setattr(
        known_call_sites, "_by_name", {"search": (SEARCH,), "together": (everybody,)}
    )


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({}, []),
        ({"path": "/"}, []),
        ({"path": "/", "exempt": True}, []),
        ({"rate": "0/m"}, ["rate"]),
        ({"rate": "0/m", "mode": "shadow"}, ["rate"]),
        ({"rate": "0/m", "mode": "off"}, []),
        ({"rate": ["5/m", "0/h"]}, ["rate"]),
        ({"cost": 6}, ["cost"]),
        ({"cost": 5}, []),
        ({"cost": 6, "algorithm": "token_bucket", "burst": 6}, []),
        ({"cost": 6, "algorithm": "token_bucket", "burst": 5}, ["cost"]),
        ({"cost": 6, "algorithm": "leaky_bucket", "queue": 5}, []),
        ({"cost": 6, "algorithm": "leaky_bucket", "queue": 4}, ["cost"]),
        ({**IN_PLACE, "rate": "5/s"}, []),
    ],
)
def test_rules_that_refuse_all_clients_have_to_be_confirmed(
    words: dict[str, Any], fields: list[str]
) -> None:
    """The confirmation is shown at the field that causes it. Other rules need none."""
    assert [field for field, _ in confirmations(rule(**words))] == fields


def test_turning_a_rule_off_has_to_be_confirmed() -> None:
    """A rule that is off already, or that is new, needs no confirmation."""
    off = rule(mode="off")
    found = {mode: [field for field, _ in confirmations(off, mode)] for mode in ("", "off")}
    assert found == {"": [], "off": []}
    for mode in ("enforce", "shadow"):
        assert [field for field, _ in confirmations(off, mode)] == ["mode"]
        assert confirmations(rule(), mode) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({}, ""),
        ({"route": "v1:things"}, ""),
        ({"route": "things"}, "No URL pattern has the name “things”"),
        ({"path": ""}, "No imported limit has the name “api”"),
        ({"group": "serach"}, "Did you mean “search”?"),
        ({"key": "user", "path": "/x", "exempt": True}, ""),
        (
            {"path": "", "name": "together", "key": "", "ban_after": 5, "ban_for": "1h"},
            "the rule never bans",
        ),
        ({"path": "", "name": "together", "key": "ip", "ban_after": 5, "ban_for": "1h"}, ""),
    ],
)
def test_rules_without_effect_have_a_problem(words: dict[str, Any], problem: str) -> None:
    """The problem says why the rule has no effect. It does not have to be confirmed."""
    found = " ".join(place_problems(rule(**words).compiled()))
    assert problem in found
    assert bool(found) is bool(problem)


def test_routes_are_listed_with_their_namespaces() -> None:
    """Routes without a name are not listed."""
    assert route_names() == {"v1:things"}


def test_a_name_close_to_a_call_site_gets_a_suggestion() -> None:
    """The suggestion is the most similar name."""
    found = [closest_call_site(name) for name in ("serach", "search", "orders", "")]
    assert found == ["search", "", "", ""]


@pytest.mark.django_db
def test_a_file_reports_only_the_effects_that_it_causes(settings: Any) -> None:
    """A rule that the file turns off is reported. One that was off before is not."""
    text = "- {name: all, path: /**, key: ip, rate: 5/m}\n- {name: none, path: /x, exempt: true}"
    assert changed_confirmations(plan(text)) == {}
    apply(plan(text))
    off = text.replace("rate: 5/m", "rate: 5/m, mode: 'off'")
    assert changed_confirmations(plan(off)) == {"all": ["If the rule is off, it limits no client."]}
    apply(plan(off))
    assert changed_confirmations(plan(off.replace("5/m", "9/m"))) == {}
    zero = changed_confirmations(plan(text.replace("5/m", "0/m")))
    assert "refuses every request" in zero["all"][0]
